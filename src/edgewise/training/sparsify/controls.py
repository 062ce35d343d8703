"""Controls: is it the learned gates, or would any mask of that density do? And is it the mask, or just more training?

Every control starts from the same dense weights and is measured on the same held-out rows as the twin.

    threshold       training-free: drop each edge whose attention weight is below t, for several t
    random          a fixed random mask that leaves each head as many edges as the twin's
    top-k           for each head and query the k largest attention weights, the same k everywhere: the twin's mean
    top-k of layers in each layer and for each query the k largest over all heads, k as in that layer of the twin: how many
                    edges a layer needs is then something that the learned gates have found
    dense           no mask at all: what the same budget of training on the text gains by itself

Masks are measured as they are, and behind them the dense model is post-trained as the twin was: all weights or adapters,
with its budget, fit and learning rates; what comes of that is kept in `controls/`. Controls that were interrupted go on with
`--resume --controls`.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from edgewise.data import IGNORE, Batch
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import Measured, cross_entropy, measure, parts, run_model
from edgewise.models.checkpoint import gate
from edgewise.training.averaging import Average
from edgewise.training.snapshot import FOLDER, explained
from edgewise.training.sparsify.null_value import Mask, above, set_null_values, with_null_values
from edgewise.training.sparsify.objective import compare, schedule
from edgewise.training.sparsify.parameters import as_trained
from edgewise.training.sparsify.sampled_softmax import only

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from edgewise.core.console import Display
    from edgewise.training.sparsify.run import SparsifyRun

THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def random_mask(density_per_head: Tensor, context: int, seed: int) -> Mask:  # [layers, heads]
    """Drawn once for each pair of positions, so that training can get used to it."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(*density_per_head.shape, context, context, generator=generator)
    masks = drawn < density_per_head[..., None, None].cpu()

    def mask(layer: int, weights: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]  # the last query stands at the last key
        return masks[layer, :, keys - queries : keys, :keys].to(weights)

    return mask


def top_k_mask(edges_per_query_per_head: Tensor) -> Mask:  # [layers, heads]
    """The same k for every head; where that is a fraction, queries take turns with one edge more."""
    k = edges_per_query_per_head.mean().item()

    def mask(layer: int, weights: Tensor) -> Tensor:
        return _largest(weights.detach(), k)

    return mask


def top_k_of_layers_mask(edges_per_query_per_head: Tensor) -> Mask:  # [layers, heads]
    """The heads of a layer share its edges."""
    k_of_layer = edges_per_query_per_head.sum(1).tolist()

    def mask(layer: int, weights: Tensor) -> Tensor:
        _, heads, _, keys = weights.shape
        together = weights.detach().transpose(1, 2).flatten(2)  # [batch, queries, heads * keys]
        chosen = _largest(together[:, None], k_of_layer[layer], ends_at=keys)[:, 0]
        return chosen.unflatten(2, (heads, keys)).transpose(1, 2)

    return mask


def _largest(weights: Tensor, k: float, ends_at: int | None = None) -> Tensor:
    """[batch, heads, queries, n] -> ones at each query's k largest, zeros elsewhere. `ends_at` is the number of keys, at the
    last of which the last query stands."""
    _, heads, queries, n = weights.shape
    ends_at = ends_at or n
    position = torch.arange(ends_at - queries, ends_at, device=weights.device)
    head = torch.arange(heads, device=weights.device)[:, None]
    turn = (position * 0.618034 + head * 0.754878) % 1.0  # evenly spread over [0, 1)
    count = (k + turn).floor().long()  # [heads, queries]
    first = torch.arange(n, device=weights.device) * 1e-12  # of equal weights, the first
    largest = (weights.double() - first).topk(min(int(count.max()), n), -1)
    kept = torch.arange(largest.values.shape[-1], device=count.device) < count[..., None]
    kept = kept & (largest.values > 0)
    return torch.zeros_like(weights).scatter(-1, largest.indices, kept.to(weights))


TOP_K = {"top-k": top_k_mask, "top-k of layers": top_k_of_layers_mask}


@contextmanager
def masked(model: nn.Module, mask: Mask | None) -> Iterator[list[Tensor]]:
    """Attend through a mask, without renormalising, as gates do. Without gradients, gives the edges left and the pairs of
    each layer, [2]."""
    left: list[Tensor] = []
    if mask is None:
        yield left
        return

    def edit(layer: int, weights: Tensor) -> Tensor:
        chosen = mask(layer, weights).expand_as(weights)
        if not torch.is_grad_enabled():
            seen = weights > 0  # outside of a document and in the future it is 0
            left.append(torch.stack([(chosen * seen).sum(), seen.sum()]))
        return weights * chosen

    with tap(model, edit={"weights": edit}):
        yield left


def train_masked(
    run: "SparsifyRun", mask: Mask | None, display: "Display", null_value: list[Tensor] | None
) -> "PreTrainedModel":
    """The dense model, post-trained behind a mask as the twin was: what is trained, the fit and its words, the rates, rows,
    precision and number of steps are the run's own, and so is the average. `null_value` is where the null values start,
    if the twin has it, so that they differ in their edges only."""
    recipe, device, steps = run.recipe.optimizer, run.accelerator.device, run.state.step
    plain = copy.deepcopy(run.dense).float()  # pyright: ignore
    set_null_values(plain, null_value)
    unembedding: Any = plain.get_output_embeddings()
    model = as_trained(plain, run.config)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=run.learning_rates[0], betas=(0.9, 0.98), weight_decay=0.0)
    average = Average(learned) if recipe.averaged_fraction else None
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    with display.bar("", steps) as advance:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = run.learning_rates[0] * schedule(
                step, steps, recipe.warmup_steps, recipe.decay_fraction
            )
            batch = run.data.train.take(run.batch_size)
            asked = (batch.targets != IGNORE).sum().item()
            for part in parts(batch, run.micro_batch_size, device):
                words, piece = run.gradients.words(part, step)
                with masked(model, mask), run.gradients.autocast(), only(unembedding, words):
                    logits = run_model(model, piece)
                if run.recipe.distillation and mask is not None:
                    dense = run.gradients.dense_logits(piece, words)
                    loss = compare(logits, dense, piece.targets).divergence
                else:  # the dense model cannot learn from itself, but it can from text
                    loss = cross_entropy(logits, piece.targets)
                (loss / asked).backward()
            nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                average.update(recipe.averaged_fraction * run.horizon)
            advance(1)
    if average is not None:
        average.swap()
    return (model if run.config.lora is None else model.merge_and_unload()).eval()  # pyright: ignore


def measure_masked(model: nn.Module, mask: Mask | None, held_out: Batch) -> dict[str, float]:
    with torch.no_grad(), masked(model, mask) as left:
        ce = measure(model, held_out).ce
    if mask is None:
        return {"ce": ce, "density": 1.0}
    opened, pairs = torch.stack(left).sum(0).tolist()
    return {"ce": ce, "density": opened / pairs}


def run_controls(
    run: "SparsifyRun", twin: Measured, display: "Display", known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """All controls of a finished run but those already known, trained on the same text from its beginning. Gives what is
    known after each, so that it can be kept."""
    context, held_out = run.data.train.context, run.data.held_out
    masks: dict[str, Mask | None] = {
        **{name: make(twin.edges_per_query_per_head) for name, make in TOP_K.items()},
        "random": random_mask(twin.density_per_head, context, run.config.seed),
        "dense": None,
    }
    results: dict[str, Any] = known or {"threshold": thresholds(run.dense, held_out, run.mean_unattended)}
    for name, mask in masks.items():
        if f"{name}, trained" in results:
            continue
        null_value = None if mask is None else run.mean_unattended(mask)
        if mask is not None:
            with with_null_values(run.dense, null_value):
                results[f"{name}, untrained"] = measure_masked(run.dense, mask, held_out)
        display.print(f"control: {name}, trained for {run.state.step:,} steps")
        run.data.train.load_state_dict(run.batches.first_state)
        model = train_masked(run, mask, display, null_value)
        if mask is not None:
            with explained(run.config.out / FOLDER, "a control"):
                save_control(
                    control_folder(run.config.out, name), model, name, twin, context, run.config.seed
                )
        results[f"{name}, trained"] = measure_masked(model, mask, held_out)
        yield results


def control_folder(run: Path, name: str) -> Path:
    return run / "controls" / name.replace(" ", "-")


def save_control(folder: Path, model: nn.Module, kind: str, twin: Measured, context: int, seed: int) -> None:
    """Weights and mask of a control, in files that do not load as a model: without its mask it would not be one."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, str(folder / "behind-a-mask.safetensors"))
    counts = {"density": twin.density_per_head, "edges_per_query": twin.edges_per_query_per_head}
    content = {"kind": kind, "context": context, "seed": seed}
    content |= {name: values.tolist() for name, values in counts.items()}
    (folder / "mask.json").write_text(json.dumps(content) + "\n")


def load_control(folder: Path, dense: nn.Module) -> Mask:
    """Give a dense model a control's weights, in place; the mask it was trained behind is to be put around it (`masked`)."""
    content = json.loads((folder / "mask.json").read_text())
    file = str(folder / "behind-a-mask.safetensors")
    with safe_open(file, "pt") as weights:
        has_null_value = any(key.endswith("edge_gate.null_value") for key in weights.keys())  # noqa: SIM118
    set_null_values(
        dense,
        [torch.zeros(each.kv_heads, each.width) for each in gates_of(dense)] if has_null_value else None,
    )
    load_model(dense, file)
    if content["kind"] == "random":
        return random_mask(torch.tensor(content["density"]), content["context"], content["seed"])
    return TOP_K[content["kind"]](torch.tensor(content["edges_per_query"]))


def thresholds(
    dense: "PreTrainedModel", held_out: Batch, mean_unattended: Callable[[Mask], list[Tensor] | None]
) -> list[dict[str, float]]:
    """The training-free curve: edges of less weight are closed."""
    found = []
    for threshold in THRESHOLDS:
        model = gate(copy.deepcopy(dense), GateConfig("relative", b=-math.log(threshold)))
        set_null_values(model, mean_unattended(above(threshold)))
        measured = measure(model, held_out)
        found.append({"threshold": threshold, "density": measured.density, "ce": measured.ce})
    return found
