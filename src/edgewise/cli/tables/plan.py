"""Table of a plan, and the command that starts the run it describes."""

from rich.table import Table

from edgewise.cli.tables.output import Output
from edgewise.planning.gpu_layout import Layout
from edgewise.planning.hardware import CPU_SHARE, GIB, GPUS, H100, USABLE
from edgewise.planning.memory import Memory
from edgewise.planning.plan import Plan, Stage
from edgewise.training.sparsify.config import SparsifyConfig

_MEMORY = ("weights", "gradients", "optimizer", "dense", "activations", "logits", "masks")
_GPUS_PER_MACHINE = 8
_LAUNCH_FLAGS = ("context", "recipe", "lora", "attention_only")
"""Flags of `edgewise plan` that the run takes as they are; the plan decides the others."""


def print_plan(plan: Plan) -> None:
    """Print the stages, the memory of post-training, the assumptions, and the command to run."""
    output = Output()
    output.print_plain("\n".join(_run(plan)))
    output.print(_stages(plan))
    output.print(_memory(plan))
    output.print_plain("\n".join([*_assumptions(plan), "", *_commands(plan)]))


def _run(plan: Plan) -> list[str]:
    shape = plan.shape
    kv = "" if shape.kv_heads == shape.heads else f" on {shape.kv_heads} key/value heads"
    lines = [
        f"{shape.name}: {shape.parameters:,} parameters, {shape.layers} layers x {shape.heads} heads{kv}, "
        f"width {shape.width}, vocabulary {shape.vocabulary:,}; "
        f"sequences of {plan.context:,} tokens, {plan.batch_size} per step"
    ]
    if plan.config.token_limit is None:
        lines.append(
            f"{plan.tokens / 1e6:g}M tokens are an assumption: how many a model needs is not known; give --tokens"
        )
    return lines


def _assumptions(plan: Plan) -> list[str]:
    run = plan.run
    lines = [
        f"This machine: about {span(plan.machine.seconds(run.work))} for {run.name} (measured "
        f"{plan.machine.rate / 1e9:,.0f} GFLOP/s for a matrix product; stages reach about {CPU_SHARE:.0%} of that)."
    ]
    lines += [
        f"{gpu.name}: {gpu.bf16:g} TFLOP/s in bf16 and {gpu.float32:g} in float32 (gated attention, transcoders), "
        f"{gpu.utilisation:.0%} of it assumed; {gpu.bandwidth:g} TB/s, {gpu.bandwidth_utilisation:.0%} assumed. "
        f"The gate's row passes take {gpu.row_pass_share(run.work):.0%} of {run.name}."
        for gpu in GPUS
    ]
    return [
        *lines,
        "Nothing has been run on a GPU: these figures are computed, for --dtype bfloat16 (see docs/research/README.md).",
    ]


def _commands(plan: Plan) -> list[str]:
    layout = plan.run.layout
    if layout is None:
        return [f"{plan.run.name} fits on no number of GPUs: {plan.run.obstacle}."]
    launch = launch_line(plan, layout)
    if layout.setup.sharded:
        return [launch]
    return [launch, f"or, faster, on N of them: accelerate launch --multi_gpu --num_processes N -m {launch}"]


def launch_line(plan: Plan, layout: Layout) -> str:
    """The command that starts a run on the GPUs where it fits."""
    config, default = plan.config, SparsifyConfig()
    words = ["edgewise sparsify", plan.shape.name, *([] if plan.has_own_data else ["--data ..."])]
    words += [f"--tokens {plan.tokens / 1e6:g}M", "--dtype bfloat16"]
    for name in _LAUNCH_FLAGS:
        value = getattr(config, name)
        if value != getattr(default, name):
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    if layout.batch_size != layout.setup.recipe.optimizer.batch_size:
        words.append(f"--batch-size {layout.batch_size}")
    if layout.grad_accum > 1:
        words.append(f"--grad-accum {layout.grad_accum}")
    command = " ".join([*words, "--out ..."])
    return f"{_accelerate(layout)} -m {command}" if layout.setup.sharded else command


def _accelerate(layout: Layout) -> str:
    n_gpus = layout.setup.n_gpus
    options = ["--use_fsdp --fsdp_version 2", f"--num_processes {n_gpus}"]
    if n_gpus > _GPUS_PER_MACHINE:
        options.append(f"--num_machines {n_gpus // _GPUS_PER_MACHINE}")
    options.append("--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP")
    # otherwise only one process loads the dense model's weights, and those of all others are zeros
    options.append("--fsdp_cpu_ram_efficient_loading false")
    options += ["--fsdp_activation_checkpointing true"] if layout.setup.checkpointing else []
    return f"accelerate launch {' '.join(options)}"


def _stages(plan: Plan) -> Table:
    table = Table("stage", "of", title="Costs", title_justify="left")
    hours = [f"{gpu.name.split()[0]}-hours" for gpu in GPUS]
    for heading in ("FLOP per token", "FLOP", "memory", "this machine", *hours):
        table.add_column(heading, justify="right")
    table.add_column("GPUs of 80 GB at least")
    for stage in plan.stages:
        on_gpus = [short(gpu.seconds(stage.work) / 3600) for gpu in GPUS]
        table.add_row(
            stage.name,
            stage.scale,
            f"{stage.flops_per_token:.2e}",
            f"{stage.work.flops:.2e}",
            f"{stage.memory.total / GIB:,.1f} GB",
            span(plan.machine.seconds(stage.work)),
            *on_gpus,
            _gpus(stage),
        )
    return table


def _gpus(stage: Stage) -> str:
    if stage.gpus is None:
        return "fits on none"
    return f"{stage.gpus}, {stage.layout.kind}" if stage.layout and stage.gpus > 1 else str(stage.gpus)


def _memory(plan: Plan) -> Table:
    """Memory of the two kinds of post-training: on one device with the run's dtype, and on each GPU where it fits."""
    table = Table("GB", *_MEMORY, "total", title="Peak memory of post-training", title_justify="left")
    for stage in plan.stages[:2]:
        table.add_row(f"{stage.name}, one device, {plan.config.dtype}", *_gigabytes(stage.memory))
        if stage.layout:
            gpus = "one GPU" if stage.gpus == 1 else f"each of {stage.gpus} GPUs"
            micro_batch = f"micro-batch {stage.layout.setup.micro_batch}"
            table.add_row(f"{stage.name}, {gpus}, bf16, {micro_batch}", *_gigabytes(stage.layout.memory))
    table.caption = f"Of a GPU's 80 GB, {USABLE * H100.memory / GIB:.0f} are taken to be usable."
    return table


def _gigabytes(memory: Memory) -> list[str]:
    return [f"{size / GIB:,.2f}" for size in (*(getattr(memory, name) for name in _MEMORY), memory.total)]


def short(number: float) -> str:
    """A number with two digits, or a whole one."""
    if number < 0.001:
        return "<0.001"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def span(seconds: float) -> str:
    """A duration, in seconds to years."""
    for unit, length in (("years", 365 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return (
                f"{seconds / length:,.0f} {unit}"
                if seconds >= 10 * length
                else f"{seconds / length:.1f} {unit}"
            )
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
