"""The command line: each command is a function, its docstring and annotations are the help. No logic lives here."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.circuits.config import CircuitConfig
from edgewise.core.errors import EdgewiseError
from edgewise.tracing.config import TraceConfig
from edgewise.training.sparsify.config import SparsifyConfig, count
from edgewise.training.transcoder.config import FeaturesConfig, TranscoderConfig


def info(model: Annotated[str, tyro.conf.Positional], json: bool = False) -> None:
    """Say what a model is: architecture, layers x heads, dense or sparse, its gate, parameters, memory.

    Reads the config and the headers of the weight files only, so it is quick for any size.

    Args:
        model: A shipped name (pocket, pocket-addition, pocket-sparse ...), a folder, or a Hugging Face name such as gpt2.
        json: Print JSON instead of text.
    """
    import edgewise

    described = edgewise.info(model)
    print(described.to_json() if json else described)


def sparsify(
    model: Annotated[str, tyro.conf.Positional],
    config: Annotated[SparsifyConfig, tyro.conf.arg(name="")],
    data: tuple[str, ...] | None = None,
) -> None:
    """Post-train a dense model until almost no attention edges remain, at the same loss.

    Says what it will do, shows how it goes, and leaves the sparse twin with summary.json, log.jsonl and run.png in --out.
    Ctrl-C saves; --resume goes on. On several devices: accelerate launch -m edgewise sparsify ... With --plan it only says
    what that would cost, on this machine and on GPUs.

    Args:
        model: The dense model: a shipped name (pocket), a folder, or a Hugging Face name such as gpt2.
        config: How.
        data: Text, jsonl or parquet files, folders of them, or the name of a Hugging Face dataset. The shipped models bring
            their own.
    """
    import edgewise

    if config.plan:
        from edgewise.planning.console import print_plan

        print_plan(edgewise.plan(model, config))
    else:
        edgewise.sparsify(model, data, config)


def evaluate(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    data: tuple[str, ...] | None = None,
    context: int | None = None,
    tokens: str = "64K",
    heads: bool = False,
    sinks: bool = False,
    out: Path | None = None,
) -> None:
    """Loss, perplexity, density and edges per query of one model, or of a dense model and its twin side by side.

    Args:
        models: Shipped names, folders or Hugging Face names.
        data: Text, jsonl or parquet files, folders of them, or the name of a dataset. The shipped models bring their own.
        context: Tokens to a row; the shortest of the models' contexts (at most 1024) if not given.
        tokens: How much of the data to read.
        heads: Also print each head's edges per query.
        sinks: Also measure how much attention rests on the first token of a text.
        out: Also write everything to this JSON file.
    """
    from edgewise.core.console import Display
    from edgewise.measure.evaluation import evaluate_models, print_evaluation

    print_evaluation(
        evaluate_models(models, data, context, count(tokens), sinks, Display().print), heads, out
    )


def tasks(
    model: Annotated[str, tyro.conf.Positional],
    task: tuple[str, ...] | None = None,
    n: int = 100,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """How well a model does tasks with a known answer: accuracy of each, with three example prompts.

    Args:
        model: A shipped name (pocket, pocket-sparse), a folder, or a Hugging Face name such as gpt2.
        task: Any of copy, ioi, greater-than, docstring, antonym, or JSONL files of your own with clean, corrupt, answer,
            wrong on each line. All five if not given.
        n: Prompts of each task.
        seed: Decides which.
        out: Also write everything to this JSON file.
    """
    from edgewise.tasks.console import print_tasks
    from edgewise.tasks.measure import measure_tasks

    print_tasks(measure_tasks(model, task, n, seed), out)


def circuit(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    config: Annotated[CircuitConfig, tyro.conf.arg(name="")],
) -> None:
    """Find the heads and edges that carry a task's effect, in a model or in a dense model and its twin.

    Heads are patched exactly, one by one; edges are ranked by attribution and their curve measured by patching. The table
    goes to the display, all curves and rankings to circuit.json in --out, with pictures of them.

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: How.
    """
    from edgewise.circuits.console import print_result
    from edgewise.circuits.find import find_circuits
    from edgewise.core.console import Display
    from edgewise.plots.circuit import save_circuit_figures

    display = Display()
    result = find_circuits(models, config, display=display)
    print_result(result)
    if config.out is not None:
        save_circuit_figures(result, config.out)
        display.print(
            f"circuit.json is in {config.out}, drawn as circuit-curves and circuit-wiring (svg, pdf, png)"
        )


def flow(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    prompt: str | None = None,
    colour_heads: bool = False,
    out: Path = Path("runs/flow"),
) -> None:
    """Draw a prompt's open attention edges: tokens across, layers upward, a dense model above its twin.

    Args:
        models: One model, or two that read the same tokens (dense first): shipped names, folders or Hugging Face names.
        prompt: The text to read; for an addition model a sum, 53+21=. Without one, an addition model gets three sums.
        colour_heads: Give each head a colour of its own.
        out: Folder for flow.json and for flow as svg, pdf and png.
    """
    from edgewise.flow.collect import collect_flow
    from edgewise.plots.flow import draw_flow
    from edgewise.plots.style import save_figure

    flows = collect_flow(models, () if prompt is None else prompt)
    flows.save(out)
    save_figure(draw_flow(flows, colour_heads), out / "flow")
    print(f"flow.json is in {out}, drawn as flow (svg, pdf, png)")


def maps(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    task: str = "copy",
    prompt: str | None = None,
    heads: str | None = None,
    circuit: Path | None = None,
    threshold: float = 0.9,
    prompts: int = 32,
    columns: int | None = None,
    narrow: bool = False,
    colour_bar: bool = False,
    mark: str | None = None,
    out: Path = Path("runs/maps"),
) -> None:
    """Draw attention maps of the heads that a task needs, a dense model above its twin, and say what kind each head is.

    Leaves attention-maps.svg, .pdf and .png in --out, and all that is needed to draw them again in .json and .safetensors.

    Args:
        models: One model, or two that read the same tokens (dense first): shipped names, folders or Hugging Face names.
        task: copy, ioi, greater-than, docstring, antonym, or a JSONL file of clean, corrupt, answer, wrong.
        prompt: Show this text instead of the task's first prompt.
        heads: Show these heads instead of those that the task needs: L5H1,L0H0, or all. One alone is shown with its tokens.
        circuit: A folder with circuit.json, from which the task and its heads are taken instead of searching for them.
        threshold: Share of the task's effect that the heads must explain.
        prompts: Pairs of prompts by which heads are chosen.
        columns: Maps to a row: 9, or 5 if narrow.
        narrow: Draw for a paper's column instead of its page.
        colour_bar: Add the scale of weights.
        mark: A cell to frame in red in every map, as query,key counted from 0: 8,5.
        out: Folder for everything.
    """
    from edgewise.core.console import Display
    from edgewise.maps.collect import collect_maps
    from edgewise.maps.console import print_maps
    from edgewise.plots.attention_maps import MapLook, cell, draw_maps
    from edgewise.plots.style import save_figure

    look = MapLook(columns, narrow, colour_bar, None if mark is None else cell(mark))
    display = Display()
    found = collect_maps(
        models,
        task,
        prompt=prompt,
        heads=heads,
        circuit=circuit,
        threshold=threshold,
        prompts=prompts,
        out=out,
        display=display,
    )
    found.save(out)
    save_figure(draw_maps(found, look), out / "attention-maps")
    print_maps(found)
    display.print(f"attention-maps.json is in {out}, drawn as attention-maps (svg, pdf, png)")


def transcoder(
    model: Annotated[str, tyro.conf.Positional],
    config: Annotated[TranscoderConfig, tyro.conf.arg(name="")],
    data: tuple[str, ...] | None = None,
) -> None:
    """Train a cross-layer transcoder: features that say what a model's MLPs do, few of them active at a time.

    Says what it will do, shows how it goes, and leaves the transcoder with summary.json and log.jsonl in --out. Ctrl-C
    saves; --resume goes on.

    Args:
        model: A dense model or a sparse twin: a shipped name (pocket, pocket-sparse), a folder, or a Hugging Face name.
        config: How.
        data: Text, jsonl or parquet files, folders of them, or the name of a Hugging Face dataset. The shipped models bring
            their own.
    """
    import edgewise

    edgewise.train_transcoder(model, data, config)


def features(
    transcoder: Annotated[Path, tyro.conf.Positional],
    config: Annotated[FeaturesConfig, tyro.conf.arg(name="")],
) -> None:
    """Show what features of a transcoder respond to: the contexts in which they are most active, the tokens they promote.

    Args:
        transcoder: Its folder.
        config: Which features.
    """
    from edgewise.training.transcoder.show import show_features

    show_features(transcoder, config)


def trace(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    config: Annotated[TraceConfig, tyro.conf.arg(name="")],
    transcoder: tuple[Path, ...] | None = None,
) -> None:
    """Explain one prediction: the features it comes from, the heads that carry each link, and why they look there.

    The table goes to the display. In --out: trace.json with its arrays, the diagram (svg, pdf, png), and in graphs/ the JSON
    that circuit-tracer's front end and Neuronpedia read.

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: How.
        transcoder: The folder of each model's transcoder, in the same order. The shipped models bring theirs.
    """
    from edgewise.core.console import Display
    from edgewise.plots.style import save_figure
    from edgewise.plots.trace_diagram import draw_trace
    from edgewise.tracing.console import print_traces
    from edgewise.tracing.save import save_traces

    display = Display()
    found = save_traces(models, transcoder, config, display)
    save_figure(draw_trace(found, config.key_place, config.share), config.out / "trace-diagram")
    print_traces(found, config)
    display.print(
        f"trace.json is in {config.out}, drawn as trace-diagram (svg, pdf, png); graphs/ is for other viewers"
    )


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    open: bool = False,
) -> None:
    """Write one page to explore all results in a folder: maps, flow, circuits, traces, the run. It needs no network.

    Args:
        folder: A folder in which other commands have left their results, at any depth.
        out: The page; report.html in the folder if not given.
        open: Show it in the browser.
    """
    import webbrowser

    from edgewise.report.page import write_report

    path = write_report(folder, out)
    print(path)
    if open:
        webbrowser.open(path.resolve().as_uri())


def demo() -> None:
    """Run the main job on what is shipped with the package, and say where the results are (runs/demo)."""
    from edgewise.cli.demo import run

    run()


COMMANDS = {
    "info": info,
    "sparsify": sparsify,
    "eval": evaluate,
    "tasks": tasks,
    "circuit": circuit,
    "maps": maps,
    "flow": flow,
    "transcoder": transcoder,
    "features": features,
    "trace": trace,
    "report": report,
    "demo": demo,
}


def main() -> None:
    """Entry point of `edgewise` and `python -m edgewise`."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="edgewise",
            description="Read what a transformer does: remove attention edges, keep the loss, look at what is left.",
        )
    except EdgewiseError as error:
        print(f"edgewise: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(f"edgewise: {interrupt}", file=sys.stderr)
        sys.exit(130)
