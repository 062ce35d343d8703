"""What `make demo` runs: the main job on what is shipped with the package, offline. Holds no logic of its own.

Each stage prints what it found and adds it to one dictionary, which ends as runs/demo/summary.json.
"""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

import edgewise
from edgewise.cli.tables.circuit import print_circuits
from edgewise.cli.tables.maps import print_maps
from edgewise.cli.tables.trace import print_traces
from edgewise.core.console import Display
from edgewise.flow.collect import collect_flow
from edgewise.maps.collect import collect_maps
from edgewise.plots.attention_maps import draw_maps
from edgewise.plots.circuit import save_circuit_figures
from edgewise.plots.flow import draw_flow
from edgewise.plots.style import save_figure
from edgewise.pocket import addition, evaluate, stream, world
from edgewise.report.page import write_report

OUT = Path("runs/demo")
HELD_OUT_ROWS = 256


def run(out: Path = OUT, minutes: float = 1.6, prompts: int = 8) -> dict[str, Any]:
    """Every stage in turn; `minutes` is what post-training may take, `prompts` what circuits are found on."""
    console = Console()
    disable_progress_bar()  # five small models would each show one
    stages: dict[str, Callable[[Console], dict[str, Any]]] = {
        "what the pocket model knows": know,
        "what the addition model knows": add,
        "edges that can go without training": gate_untrained,
        "edges that can go with a short post-training": partial(
            sparsify, out=out / "pocket-sparse", minutes=minutes
        ),
        "which heads and edges carry a behaviour": partial(circuits, out=out / "circuits", prompts=prompts),
        "how one prediction comes about": partial(traces, out=out / "trace"),
        "pictures": partial(pictures, out=out),
    }
    summary: dict[str, Any] = {}
    with Progress(console=console, transient=True) as progress:
        for title, stage in progress.track(stages.items(), description="demo"):
            console.rule(title)
            summary |= stage(console)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n")
    page = write_report(out)
    console.print(f"Results: {path}; to explore them, open {page} in a browser")
    return summary


def know(console: Console) -> dict[str, Any]:
    """One held-out prompt of each task, with the model's answer."""
    model, tokenizer = edgewise.load("pocket"), edgewise.load_tokenizer("pocket")
    table = Table("task", "prompt", "answer", "right with probability", title="pocket: prompts it never saw")
    prompts = [world.held_out_prompts(kind, 1)[0] for kind in ("copy", "ioi", "greater-than", "docstring")]
    prompts.append(world.relation_prompt("opposite", "large"))
    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt.text, return_tensors="pt").input_ids
        with torch.no_grad():
            probabilities = model(input_ids=ids).logits[0, -1].softmax(-1)
        answer = str(tokenizer.decode([int(probabilities.argmax())]))
        right = probabilities[[evaluate.ID[word] for word in prompt.answers]].sum().item()
        rows.append({"task": prompt.kind, "prompt": prompt.text, "answer": answer, "probability": right})
        table.add_row(prompt.kind, prompt.text, answer, f"{right:.3f}")
    console.print(table)
    return {"prompts": rows}


def add(console: Console) -> dict[str, Any]:
    """The three sums of the paper's picture: without, with one and with two carries."""
    model = edgewise.load("pocket-addition")
    a, b = torch.tensor([53, 36, 43]), torch.tensor([21, 28, 59])
    tokens, _ = addition.encode(a, b)
    with torch.no_grad():
        digits = model(input_ids=tokens).logits[:, addition.ANSWER].argmax(-1)
    sums = {
        f"{x}+{y}": "".join(map(str, d))
        for x, y, d in zip(a.tolist(), b.tolist(), digits.tolist(), strict=True)
    }
    console.print("  ".join(f"{question} = {answer}" for question, answer in sums.items()))
    return {"sums": sums}


def gate_untrained(console: Console) -> dict[str, Any]:
    """Thresholds alone, on the dense weights: the baseline that post-training has to beat."""
    table = Table(
        "an edge stays above", "edges left", "per query", "held-out loss", title="pocket, gated, not trained"
    )
    results = []
    dense = evaluate.held_out_loss(edgewise.load("pocket"), HELD_OUT_ROWS)
    table.add_row("dense", "100.0%", f"{(stream.CONTEXT + 1) / 2:.1f}", f"{dense:.4f}")
    for threshold in (0.001, 0.01, 0.1):
        twin = edgewise.gate(edgewise.load("pocket"), edgewise.GateConfig("relative", b=-math.log(threshold)))
        with edgewise.tap(twin) as seen:
            loss = evaluate.held_out_loss(twin, HELD_OUT_ROWS)
        found = {
            "threshold": threshold,
            "density": seen.density,
            "edges_per_query": seen.edges_per_query,
            "ce": loss,
        }
        results.append({**found, "density_per_head": seen.density_per_head.tolist()})
        table.add_row(f"{threshold:g}", f"{seen.density:.1%}", f"{seen.edges_per_query:.1f}", f"{loss:.4f}")
    console.print(table)
    per_head = results[1]["density_per_head"]
    heads = Table(
        "", *(f"H{h}" for h in range(len(per_head[0]))), title="edges left of each head, in %, above 0.01"
    )
    for layer, row in enumerate(per_head):
        heads.add_row(f"L{layer}", *(f"{100 * x:.0f}" for x in row))
    console.print(heads)
    return {"dense_ce": dense, "untrained": results}


def sparsify(console: Console, out: Path, minutes: float) -> dict[str, Any]:
    """The main job in miniature: a sparse twin, its figures and the picture of the run."""
    shutil.rmtree(out, ignore_errors=True)  # the last demo's
    result = edgewise.sparsify("pocket", config=edgewise.SparsifyConfig(out=out, minutes=minutes))
    table = Table(
        "",
        "edges left",
        "per query",
        "held-out loss",
        "copy",
        "ioi",
        "docstring",
        title="pocket and its twin",
    )
    found = result.summary
    for name, density, edges, ce in (
        ("dense", 1.0, (stream.CONTEXT + 1) / 2, found["dense_ce"]),
        ("sparse", found["density"], found["edges_per_query"], found["sparse_ce"]),
    ):
        scores = [f"{found['tasks'][name][kind]:.3f}" for kind in ("copy", "ioi", "docstring")]
        table.add_row(name, f"{density:.1%}", f"{edges:.1f}", f"{ce:.4f}", *scores)
    console.print(table)
    return {"sparse": {key: value for key, value in found.items() if not key.endswith("per_head")}}


def circuits(console: Console, out: Path, prompts: int) -> dict[str, Any]:
    """What explains 90 % of the effect, in the dense model and in the twin that is shipped."""
    ratios = {}
    for task in ("copy", "ioi"):
        config = edgewise.CircuitConfig(task=task, prompts=prompts, out=out / task)
        result = edgewise.find_circuits(["pocket", "pocket-sparse"], config)
        print_circuits(result)
        ratios[task] = result.ratios
    console.print(f"Curves and rankings: {out}/*/circuit.json")
    return {"circuits": ratios}


def traces(console: Console, out: Path) -> dict[str, Any]:
    """Large to small, through the features of both models, down to the heads."""
    config = edgewise.TraceConfig(out=out)
    found = edgewise.trace(["pocket", "pocket-sparse"], config, display=Display())
    found.save(out)
    save_figure(found.plot(), out / found.figure_name)
    print_traces(found, config)
    console.print(f"{out}/trace-diagram (svg, pdf, png), {out}/*/trace.json, {out}/graphs for other viewers")
    return {
        "trace": {trace.kind: {"heads_at_80": len(trace.heads_at(0.8)), **trace.metrics} for trace in found}
    }


def pictures(console: Console, out: Path) -> dict[str, Any]:
    """The figures, from what the stages before have left."""
    folder, models = out / "figures", ["pocket", "pocket-sparse"]
    config = edgewise.MapsConfig(circuit=out / "circuits" / "copy", out=folder)
    maps = collect_maps(models, config)
    save_figure(draw_maps(maps), folder / "attention-maps")
    print_maps(maps)
    save_circuit_figures(edgewise.CircuitResult.load(out / "circuits" / "copy"), folder)
    flows = collect_flow(models, edgewise.FlowConfig(('The opposite of "large" is "',), folder))
    save_figure(draw_flow(flows), folder / "flow")
    sums = edgewise.FlowConfig(out=folder / "sums")
    flows = collect_flow(["pocket-addition", "pocket-addition-sparse"], sums)
    save_figure(draw_flow(flows), folder / "sums" / "flow")
    for picture in [*(out / "pocket-sparse").glob("run.*"), *(out / "trace").glob("trace-diagram.*")]:
        shutil.copy(picture, folder)
    drawn = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    console.print(f"{folder}: {', '.join(drawn)}; each also as SVG and PDF")
    return {"figures": drawn}
