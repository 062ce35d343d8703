"""Interventions by hand: ablate, scale or patch heads and features together, and see what the model says next.

What heads and features of a prompt are set to:

    scale 0     a head to its null value (zero without one), a feature to 0: ablated
    scale s     s times what is above that
    patch_from  what they are on another prompt of as many tokens, position by position

All are set at once, in the model itself, to values taken from undisturbed passes. Beside the measured change of the log odds
stands what the attribution graph predicts, whose attention patterns and norm denominators are frozen.
"""

import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.devices import computing_on
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_json
from edgewise.core.ranges import config_of
from edgewise.core.results import Result
from edgewise.core.text import visible
from edgewise.gating.tap import tap
from edgewise.measure.forward import eval_mode
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_output
from edgewise.models.linearise import linearise
from edgewise.models.linearised_pass import LinearisedPass
from edgewise.models.loaded import ModelsLike, load_models
from edgewise.tasks.prompt import encode_prompt
from edgewise.tracing.ablations import last_logits
from edgewise.tracing.config import InterventionConfig
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.graph_predictions import graph_gradients
from edgewise.tracing.target_logits import most_likely_tokens, target_logits, token_of_text
from edgewise.tracing.trace import TranscoderLike, subjects_of

FILE = "intervention.json"


@dataclass(frozen=True, repr=False)
class Intervened(Result):
    """Next-token probabilities before and after an intervention, and the change of the log odds."""

    figure_name: ClassVar[str] = "intervention"

    model: str
    prompt: str
    changed: list[str]
    how: str
    measured_on: str
    measured: float
    predicted: float
    """By the attribution graph."""
    next_tokens: list[tuple[str, float, float]]
    """Token, probability before and after: the likeliest of both, by what they were before."""

    def table(self) -> list[list[str]]:
        rows = [["next token", "before", "after"]]
        rows += [[visible(token), f"{p:.1%}", f"{q:.1%}"] for token, p, q in self.next_tokens]
        rows.append([f"change of {self.measured_on}: measured", "", f"{self.measured:+.2f}"])
        rows.append(["  predicted by the graph", "", f"{self.predicted:+.2f}"])
        return rows

    def save(self, folder: str | Path) -> Path:
        """Write intervention.json into a folder."""
        return write_json(Path(folder) / FILE, asdict(self))


def intervene(
    model: ModelsLike,
    config: InterventionConfig,
    *,
    transcoder: TranscoderLike | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    display: Display | None = None,
) -> Intervened:
    """Ablate, scale or patch heads and features of one model.

    >>> edgewise.intervene("pocket-sparse", edgewise.InterventionConfig(heads=("L4H1", "L3H4")))
    >>> edgewise.intervene("pocket-sparse", edgewise.InterventionConfig(features=("L0/118@5",), scale=2.0))

    Args:
        model: A name, a folder or a loaded model.
        config: What is changed, and to what.
        transcoder: Folder or loaded; models that are embedded in a package bring theirs.
        tokenizer: Required with a loaded model.
        display: Where progress is shown; nowhere if not given.
    """
    config = config_of(InterventionConfig, config)
    loaded = load_models(model, tokenizer=tokenizer, display=display)
    if len(loaded) != 1:
        raise EdgewiseError(f"intervene in one model at a time, not {len(loaded)}")
    (subject,) = subjects_of(loaded, transcoder)
    name, network, tokenizer = subject.name, subject.model, subject.tokenizer
    with (
        torch.no_grad(),
        eval_mode(network),
        computing_on(network.device),
        loaded.display.status("intervening"),
    ):
        prompt = encode_prompt(network, name, tokenizer, config.prompt)
        linear = linearise(network, torch.tensor(prompt.ids))
        answer = (
            most_likely_tokens(linear.logits)[:1]
            if config.logit is None
            else token_of_text(tokenizer, config.logit, len(linear.logits), name)
        )
        graph = build_graph(linear, subject.transcoder, target_logits(network, linear.logits, answer))
        source = _source_pass(network, name, tokenizer, config, len(prompt.ids))
        outputs = _head_outputs(graph, config, source)
        writes = _feature_writes(graph, config, source)
        after = _run(network, graph, outputs, writes)
        predicted = _predicted(graph, outputs, writes)
    measured = (graph.logits.log_odds(after) - graph.logits.log_odds(linear.logits)).item()
    word = visible(str(tokenizer.decode([int(answer[0])])).strip())
    how = f"patched from {config.patch_from!r}" if config.patch_from else f"scaled by {config.scale:g}"
    return Intervened(
        model=name,
        prompt=config.prompt,
        changed=[*_names(config.heads), *_names(config.features)],
        how=how,
        measured_on=f"log odds of {word}",
        measured=measured,
        predicted=predicted,
        next_tokens=_next_tokens(tokenizer, linear.logits, after, config.top),
    )


# ---------------------------------------------------------------------------------------------- what is set to which values


def _names(given: tuple[str, ...]) -> list[str]:
    """Names that commas or spaces separate."""
    return [name for text in given for name in re.split(r"[,\s]+", text) if name]


def _source_pass(
    model: PreTrainedModel,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    config: InterventionConfig,
    length: int,
) -> LinearisedPass | None:
    if config.patch_from is None:
        return None
    prompt = encode_prompt(model, name, tokenizer, config.patch_from)
    if len(prompt.ids) != length:
        raise EdgewiseError(
            f"`patch_from` has {len(prompt.ids)} tokens and `prompt` {length}; values are taken position by position"
        )
    return linearise(model, torch.tensor(prompt.ids))


def _head_outputs(
    graph: Graph, config: InterventionConfig, source: LinearisedPass | None
) -> dict[tuple[int, int], Tensor]:  # layer, head -> [T, d]
    """What each head's output is set to."""
    linear, outputs = graph.linear, {}
    for name in _names(config.heads):
        match = re.fullmatch(r"L(\d+)-?H(\d+)", name, re.IGNORECASE)
        layer, head = (int(match[1]), int(match[2])) if match else (-1, -1)
        if not (0 <= layer < len(linear.layers) and 0 <= head < linear.n_heads):
            last = f"L{len(linear.layers) - 1}H{linear.n_heads - 1}"
            raise EdgewiseError(f"there is no head {name}: `heads` go from L0H0 to {last}")
        null_value = linear.layers[layer].null_value[head]
        own = linear.head_outputs[layer][head]
        scaled = null_value + config.scale * (own - null_value)
        outputs[layer, head] = scaled if source is None else source.head_outputs[layer][head]
    return outputs


def _feature_writes(
    graph: Graph, config: InterventionConfig, source: LinearisedPass | None
) -> Tensor:  # -> [L, T, D]
    """What is added to the output of each MLP."""
    linear, transcoder = graph.linear, graph.transcoder
    own = transcoder.encode(linear.mlp_inputs)  # [L, T, F]
    target = config.scale * own if source is None else transcoder.encode(source.mlp_inputs)
    writes = torch.zeros(len(linear.layers), linear.length, linear.width)
    for name in _names(config.features):
        layer, index, positions = _feature(name, graph)
        change = (target - own)[layer, :, index] * positions
        for later in transcoder.outputs_of(layer):
            writes[later] += change[:, None] * transcoder.writes_to(later, layer, torch.tensor([index]))
    return writes


def _feature(name: str, graph: Graph) -> tuple[int, int, Tensor]:  # -> ..., bool [T]
    """Layer, index and positions of a feature named L0/312 or L0/312@5."""
    match = re.fullmatch(r"L(\d+)[/.F](\d+)(?:@(\d+))?", name, re.IGNORECASE)
    layers, features, length = len(graph.linear.layers), graph.transcoder.features, graph.linear.length
    layer, index = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not (0 <= layer < layers and 0 <= index < features):
        raise EdgewiseError(
            f"there is no feature {name}: `features` go from L0/0 to L{layers - 1}/{features - 1}"
        )
    positions = torch.ones(length, dtype=torch.bool)
    if match and match[3]:
        position = int(match[3])
        if not 1 <= position <= length:
            raise EdgewiseError(
                f"there is no token {position} in {name}: they are counted from 1 to {length}"
            )
        positions = torch.arange(1, length + 1) == position
    return layer, index, positions


# ------------------------------------------------------------------------------------------------------------ run, predict


def _run(
    model: PreTrainedModel, graph: Graph, outputs: dict[tuple[int, int], Tensor], writes: Tensor
) -> Tensor:  # -> [vocabulary]
    def set_heads(layer: int, y: Tensor) -> Tensor | None:
        of_layer = {head: output for (at, head), output in outputs.items() if at == layer}
        if not of_layer:
            return None
        y = y.clone()
        for head, output in of_layer.items():
            y[:, head] = output.to(y)
        return y

    with ExitStack() as stack:
        for number, layer in enumerate(architecture_of(model).layers):
            if writes[number].any():
                stack.enter_context(
                    replace_output(layer.mlp_out, lambda y, i=number: y + writes[i].to(y).reshape(y.shape))
                )
        stack.enter_context(tap(model, edit={"outputs": set_heads}))
        return last_logits(model, graph, 1)[0]


def _predicted(graph: Graph, outputs: dict[tuple[int, int], Tensor], writes: Tensor) -> float:
    """Change of the log odds by the graph: the sum of what each component changes times its gradient."""
    gradients = graph_gradients(graph)
    change = (gradients.at_mlps * writes).sum()
    for (layer, head), output in outputs.items():
        change = (
            change
            + (gradients.at_heads[layer, head] * (output - graph.linear.head_outputs[layer][head])).sum()
        )
    return change.item()


def _next_tokens(
    tokenizer: PreTrainedTokenizerBase, before: Tensor, after: Tensor, top: int
) -> list[tuple[str, float, float]]:
    p, q = before.softmax(-1), after.softmax(-1)
    likely = {*p.topk(min(top, len(p))).indices.tolist(), *q.topk(min(top, len(q))).indices.tolist()}
    return [
        (str(tokenizer.decode([token])), p[token].item(), q[token].item())
        for token in sorted(likely, key=lambda token: -p[token].item())
    ]
