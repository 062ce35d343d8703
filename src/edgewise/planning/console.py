"""A plan as tables."""

from rich.console import Console
from rich.table import Table

from edgewise.planning.hardware import CPU_SHARE, GIB, GPUS, H100, USABLE
from edgewise.planning.memory import Memory
from edgewise.planning.plan import TRACE, Plan, Stage

_PARTS = ("weights", "gradients", "optimizer", "dense", "activations", "logits", "masks")


def print_plan(plan: Plan) -> None:
    """The stages; what the memory is; and what to type."""
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to fit
    say = lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    shape = plan.shape
    kv = "" if shape.kv_heads == shape.heads else f" on {shape.kv_heads} key/value heads"
    say(
        f"{shape.name}: {shape.parameters:,} parameters, {shape.layers} layers x {shape.heads} heads{kv}, "
        f"width {shape.width}, vocabulary {shape.vocabulary:,}; rows of {plan.context:,} tokens, {plan.rows} to a step"
    )
    if plan.config.token_limit is None:
        say(
            f"{plan.tokens / 1e6:g}M tokens are an assumption: how many a model needs is not known before; give --tokens"
        )
    console.print(_stages(plan))
    console.print(_memory(plan))
    say(
        f"On this machine: about {span(plan.machine.seconds(plan.asked.work))} for {plan.asked.name} (measured "
        f"{plan.machine.rate / 1e9:,.0f} GFLOP/s for a matrix product; stages reach about {CPU_SHARE:.0%} of that)."
    )
    for gpu in GPUS:
        say(
            f"{gpu.name}: {gpu.bf16:g} TFLOP/s in bf16 and {gpu.float32:g} in float32 (gated attention, transcoders), "
            f"{gpu.utilisation:.0%} of it assumed; {gpu.bandwidth:g} TB/s, {gpu.bandwidth_utilisation:.0%} assumed. "
            f"The gate's row passes would take {gpu.row_pass_share(plan.asked.work):.0%} of {plan.asked.name}."
        )
    say("Nothing has been run on a GPU: these figures are a model, with --dtype bfloat16 (docs/scaling.md).")
    if plan.launch is None:
        say(f"\n{plan.asked.name} fits on no number of GPUs; in the way: {plan.asked.obstacle}.")
        return
    say(f"\n{plan.launch}")
    if plan.asked.gpus == 1:
        say(f"or, faster, on N of them: accelerate launch --multi_gpu --num_processes N -m {plan.launch}")


def _stages(plan: Plan) -> Table:
    table = Table("stage", "of", title="What it takes", title_justify="left")
    hours = [f"{gpu.name.split()[0]}-hours" for gpu in GPUS]
    for heading in ("FLOP a token", "FLOP", "memory", "here", *hours):
        table.add_column(heading, justify="right")
    table.add_column("GPUs of 80 GB at least")
    for stage in plan.stages:
        on_gpus = ["-" if stage.name == TRACE else short(gpu.seconds(stage.work) / 3600) for gpu in GPUS]
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
        return "runs on a CPU" if stage.name == TRACE else "fits on none"
    return f"{stage.gpus}, {stage.layout.kind}" if stage.layout and stage.gpus > 1 else str(stage.gpus)


def _memory(plan: Plan) -> Table:
    """Of the two kinds of post-training: on one device as asked, and on each GPU where it fits."""
    table = Table("GB", *_PARTS, "in all", title="Peak memory of post-training", title_justify="left")
    for stage in plan.stages[:2]:
        table.add_row(f"{stage.name}, one device, {plan.config.dtype}", *_parts(stage.memory))
        if stage.layout:
            each = "one GPU" if stage.gpus == 1 else f"each of {stage.gpus} GPUs"
            at_once = f"{stage.layout.setup.B} row{'s' if stage.layout.setup.B > 1 else ''} at once"
            table.add_row(f"{stage.name}, {each}, bf16, {at_once}", *_parts(stage.layout.memory))
    table.caption = f"Of a GPU's 80 GB, {USABLE * H100.memory / GIB:.0f} are taken to be there for all this."
    return table


def _parts(memory: Memory) -> list[str]:
    return [f"{size / GIB:,.2f}" for size in (*(getattr(memory, part) for part in _PARTS), memory.total)]


def short(number: float) -> str:
    """Two digits, or whole numbers."""
    if number < 0.001:
        return "<0.001"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def span(seconds: float) -> str:
    """A length of time, from seconds to years."""
    for unit, length in (("years", 365 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return (
                f"{seconds / length:,.0f} {unit}"
                if seconds >= 10 * length
                else f"{seconds / length:.1f} {unit}"
            )
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
