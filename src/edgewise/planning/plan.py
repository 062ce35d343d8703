"""`plan`: what training and analysing a model would cost, before anything is loaded."""

from dataclasses import dataclass, replace
from pathlib import Path

from edgewise.circuits.config import CircuitConfig
from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import config_of
from edgewise.models.registry import embedded
from edgewise.planning import flops, memory
from edgewise.planning.flops import Work
from edgewise.planning.gpu_layout import Layout, obstacle, smallest_layout
from edgewise.planning.hardware import H100, USABLE, ThisMachine, measure_machine
from edgewise.planning.memory import Memory
from edgewise.planning.setup import Setup
from edgewise.planning.shape import Shape, find_shape
from edgewise.training.sparsify.config import LONGEST_CONTEXT, SparsifyConfig
from edgewise.training.sparsify.recipe import choose_recipe
from edgewise.training.transcoder.config import TranscoderConfig

ASSUMED_TOKENS = 200_000_000
"""Without `tokens`: as in the documentation's example for GPT-2. How many a model needs is not known; the default run of
`pocket` reads three per parameter."""
EMBEDDED_TOKENS = 4_000_000
TRANSCODER_SHARE = 4
"""A transcoder is trained on a quarter of the tokens, as in the documentation's examples."""
PROMPT_TOKENS = 16
LORA_RANK = 16


@dataclass(frozen=True)
class Stage:
    """The cost of one stage."""

    name: str
    scale: str
    """What is computed, and how much of it."""
    tokens: float
    work: Work
    memory: Memory
    """On one device, with the run's dtype and batch size."""
    gpus: int | None
    """GPUs that it needs at least; None if it fits on no number of them."""
    layout: Layout | None = None
    """Post-training on that many."""
    obstacle: str = ""
    """Why it fits on none."""

    @property
    def flops_per_token(self) -> float:
        return self.work.flops / self.tokens


@dataclass(frozen=True)
class Plan:
    """What each stage costs on a model."""

    shape: Shape
    config: SparsifyConfig
    tokens: int
    context: int
    batch_size: int
    machine: ThisMachine
    stages: list[Stage]
    has_own_data: bool
    """The model is embedded, with text to train on."""

    @property
    def run(self) -> Stage:
        """The run of post-training that `config` describes: of all weights, or of adapters."""
        return self.stages[0 if self.config.lora is None else 1]


def plan(
    model: str | Path | Shape, config: SparsifyConfig | None = None, machine: ThisMachine | None = None
) -> Plan:
    """Estimate what post-training a model, finding its circuits and training its transcoder cost. Reads its config only.

    >>> plan = edgewise.plan("gpt2", edgewise.SparsifyConfig(tokens="200M"))
    >>> [(stage.name, stage.work.flops, stage.memory.total) for stage in plan.stages]
    """
    config = config_of(SparsifyConfig, config)
    shape = model if isinstance(model, Shape) else find_shape(model)
    longest = shape.context or LONGEST_CONTEXT
    if config.context is not None and config.context > longest:
        raise EdgewiseError(f"`context={config.context}` is longer than the model's own context, {longest}")
    is_embedded = embedded(shape.name) is not None
    tokens = config.token_limit or (EMBEDDED_TOKENS if is_embedded else ASSUMED_TOKENS)
    recipe = choose_recipe(config.recipe, shape.parameters)
    batch_size = config.batch_size or recipe.optimizer.batch_size
    setup = Setup(
        context=config.context or min(longest, LONGEST_CONTEXT),
        micro_batch=max(1, batch_size // config.grad_accum),
        attention_only=config.attention_only,
        recipe=recipe,
        packed=not is_embedded,
        bf16=config.dtype == "bfloat16",
    )
    stages = [
        _sparsify(shape, setup, tokens, batch_size, config.grad_accum),
        _sparsify(
            shape, replace(setup, lora=config.lora or LORA_RANK), tokens, batch_size, config.grad_accum
        ),
        *_circuits(shape, CircuitConfig(), min(longest, PROMPT_TOKENS)),
        _transcoder(shape, setup, max(1, tokens // TRANSCODER_SHARE)),
    ]
    return Plan(
        shape, config, tokens, setup.context, batch_size, machine or measure_machine(), stages, is_embedded
    )


def _sparsify(shape: Shape, setup: Setup, tokens: int, batch_size: int, grad_accum: int) -> Stage:
    layout = smallest_layout(shape, setup, batch_size, grad_accum, H100)
    name = "sparsify"
    name += ", attention only" if setup.attention_only else ""
    name += "" if setup.lora is None else f", LoRA {setup.lora}"
    return Stage(
        name,
        f"{tokens / 1e6:,.4g}M tokens",
        tokens,
        flops.sparsify(shape, layout.setup if layout else setup) * tokens,
        memory.sparsify(shape, setup),
        layout and layout.setup.n_gpus,
        layout,
        "" if layout else obstacle(shape, setup, H100),
    )


def _circuits(shape: Shape, config: CircuitConfig, t: int) -> list[Stage]:
    n, steps, needs = (
        config.prompts,
        config.ig_steps,
        memory.circuits(shape, config.prompts, t, config.max_bytes),
    )
    costs = {
        "heads patched": (f"{shape.layers * shape.heads:,} heads", flops.patch_heads(shape, n, t)),
        "edges by EAP-IG": (
            f"{shape.edges:,} edges, {steps} steps",
            flops.attribute_edges(shape, n, t, steps),
        ),
    }
    return [
        Stage(f"circuit, {name}", f"{scale}, {n} pairs of {t} tokens", n * t, work, needs, _one_gpu(needs))
        for name, (scale, work) in costs.items()
    ]


def _transcoder(shape: Shape, setup: Setup, tokens: int) -> Stage:
    features = TranscoderConfig().features_for(shape.layers, shape.width)
    work = flops.train_transcoder(shape, features, setup.context, setup.packed) * tokens
    batch_size = max(1, round(features / 2 / setup.context))
    needs = memory.train_transcoder(shape, features, setup.context, batch_size)
    scale = f"{tokens / 1e6:,.4g}M tokens, {features:,} features per layer"
    return Stage("transcoder", scale, tokens, work, needs, _one_gpu(needs))


def _one_gpu(needs: Memory) -> int | None:
    """1 where a stage that is not divided over GPUs fits on one, else None."""
    return 1 if needs.total <= USABLE * H100.memory else None
