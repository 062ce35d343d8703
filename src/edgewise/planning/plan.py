"""`plan`: what all stages would cost on a model, before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path

from edgewise import pocket
from edgewise.circuits.config import CircuitConfig
from edgewise.core.errors import EdgewiseError
from edgewise.planning import flops, memory
from edgewise.planning.fit import Layout, in_the_way, launch_line, smallest_layout
from edgewise.planning.flops import Work
from edgewise.planning.hardware import H100, USABLE, ThisMachine, measure_machine
from edgewise.planning.memory import Memory, Setup
from edgewise.planning.shape import Shape, find_shape
from edgewise.training.sparsify.config import LONGEST_CONTEXT, SparsifyConfig, recipe_for
from edgewise.training.transcoder.config import TranscoderConfig

ASSUMED_TOKENS = 200_000_000
"""Where --tokens says nothing: as in the documentation's example for GPT-2. How many a model needs is not known; `pocket`'s
default run reads three for each of its parameters."""
SHIPPED_TOKENS = 4_000_000
TRANSCODER_SHARE = 4
"""A transcoder is trained on a quarter of the tokens, as in the examples of the documentation."""
PROMPT_TOKENS = 16
LORA_RANK = 16
TRACE = "trace"


@dataclass(frozen=True)
class Stage:
    """One stage's cost."""

    name: str
    scale: str
    """What is done, and how much of it."""
    tokens: float
    """By which the work is divided to tell that of one token."""
    work: Work
    memory: Memory
    """On one device, in the precision and with the rows asked for."""
    gpus: int | None
    """That it needs at least; None if it fits on no number of them."""
    layout: Layout | None = None
    """How post-training is laid out there."""
    obstacle: str = ""
    """Why it fits on none."""

    @property
    def flops_per_token(self) -> float:
        return self.work.flops / self.tokens


@dataclass(frozen=True)
class Plan:
    """The answer of `edgewise sparsify MODEL --plan`."""

    shape: Shape
    config: SparsifyConfig
    tokens: int
    context: int
    rows: int
    machine: ThisMachine
    stages: list[Stage]

    @property
    def asked(self) -> Stage:
        """The run that was asked for: of all weights, or of adapters."""
        return self.stages[0 if self.config.lora is None else 1]

    @property
    def launch(self) -> str | None:
        """The command that starts it on GPUs; None if it fits on none."""
        layout = self.asked.layout
        return layout and launch_line(layout, self.shape.name, self.config, self.tokens)


def plan(
    model: str | Path | Shape, config: SparsifyConfig | None = None, machine: ThisMachine | None = None
) -> Plan:
    """What post-training a model, finding circuits in it and tracing it would cost. Reads its config, never its weights.

    >>> plan = edgewise.plan("gpt2", edgewise.SparsifyConfig(tokens="200M"))
    >>> [(stage.name, stage.work.flops, stage.memory.total) for stage in plan.stages]
    """
    config = config or SparsifyConfig()
    shape = model if isinstance(model, Shape) else find_shape(model)
    own = shape.context or LONGEST_CONTEXT
    if config.context is not None and config.context > own:
        raise EdgewiseError(f"`context={config.context}` is longer than the model's own context, {own}")
    shipped = shape.name in pocket.NAMES
    tokens = config.token_limit or (SHIPPED_TOKENS if shipped else ASSUMED_TOKENS)
    context = config.context or min(own, LONGEST_CONTEXT)
    rows = config.batch_size or recipe_for(config.recipe, shape.parameters).batch_size
    stages = [
        _sparsify(shape, config, tokens, context, rows, lora, not shipped)
        for lora in (None, config.lora or LORA_RANK)
    ]
    stages += _circuits(shape, min(own, PROMPT_TOKENS))
    stages += _transcoder_and_trace(
        shape, tokens // TRANSCODER_SHARE, context, min(own, PROMPT_TOKENS), not shipped
    )
    return Plan(shape, config, tokens, context, rows, machine or measure_machine(), stages)


def _sparsify(
    shape: Shape, config: SparsifyConfig, tokens: int, T: int, rows: int, lora: int | None, packed: bool
) -> Stage:
    recipe = recipe_for(config.recipe, shape.parameters)
    at_once = max(1, rows // config.grad_accum)
    here = Setup(
        T,
        at_once,
        lora,
        recipe,
        packed,
        bf16=config.dtype == "bfloat16",
        attention_only=config.attention_only,
    )
    layout = smallest_layout(shape, here, rows, config.grad_accum, H100)
    there = layout.setup if layout else here
    words = flops.words_at_once(shape, recipe, there.B * T, there.sharded)
    return Stage(
        "sparsify"
        + (" --attention-only" if config.attention_only else "")
        + ("" if lora is None else f" --lora {lora}"),
        f"{tokens / 1e6:,.4g}M tokens",
        tokens,
        flops.sparsify(
            shape, T, recipe, lora, packed, there.checkpointing, words, attention_only=config.attention_only
        )
        * tokens,
        memory.sparsify(shape, here),
        layout and layout.setup.G,
        layout,
        "" if layout else in_the_way(shape, here, H100),
    )


def _circuits(shape: Shape, t: int) -> list[Stage]:
    asked = CircuitConfig()
    n, limit = asked.prompts, asked.memory
    heads, edges = memory.circuits(shape, n, t, limit), memory.edges(shape, n, t, limit)
    curves = flops.head_curve(shape, n, t) + flops.edge_curve(shape, n, t)
    count = f"{shape.layers * shape.heads:,} heads, {n} pairs of {t} tokens"
    edge_count = f"{shape.edges:,} edges, {asked.ig_steps} steps"
    attributed = flops.attribute_edges(shape, n, t, asked.ig_steps)
    return [
        Stage(
            "circuit, heads patched", count, n * t, flops.patch_heads(shape, n, t), heads, _one_device(heads)
        ),
        Stage("circuit, edges by EAP-IG", edge_count, n * t, attributed, edges, _one_device(edges)),
        Stage("circuit, both curves", "at most", n * t, curves, edges, _one_device(edges)),
    ]


def _transcoder_and_trace(shape: Shape, tokens: int, T: int, t: int, packed: bool) -> list[Stage]:
    features = TranscoderConfig().features_for(shape.layers, shape.width)
    rows = max(1, round(features / 2 / T))
    work = flops.train_transcoder(shape, features, T, packed) * tokens
    needs, traced = memory.transcoder(shape, features, T, rows), memory.trace(shape, features, t)
    return [
        Stage(
            "transcoder",
            f"{tokens / 1e6:,.4g}M tokens, {features:,} features a layer",
            tokens,
            work,
            needs,
            _one_device(needs),
        ),
        Stage(TRACE, f"one prompt of {t} tokens", t, flops.trace(shape, t), traced, None),
    ]


def _one_device(needs: Memory) -> int | None:
    """For stages that are not divided over GPUs."""
    return 1 if needs.total <= USABLE * H100.memory else None
