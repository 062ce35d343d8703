"""The stages of `edgewise demo`. Each prints its result and adds it to one dictionary, which becomes summary.json."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

import edgewise
from edgewise.cli.tables.circuit import print_circuits
from edgewise.cli.tables.maps import print_maps
from edgewise.cli.tables.output import Output
from edgewise.cli.tables.trace import print_traces
from edgewise.core.console import Display
from edgewise.core.files import folder_lock, write_json
from edgewise.data.embedded import embedded_data
from edgewise.measure.evaluation import Evaluation
from edgewise.measure.loss import measure
from edgewise.plots.circuit import save_circuit_figures
from edgewise.training.config import TrainerConfig

DENSE, SPARSE = "pocket", "pocket-sparse"
SHORT_RUN = "short-run"
"""Folder of the twin that the demo trains; circuits, maps and traces are of the embedded one."""
ADDITION, ADDITION_SPARSE = "pocket-addition", "pocket-addition-sparse"
HELD_OUT_SEQUENCES = 512  # as in the documents
THRESHOLDS = (0.001, 0.01, 0.1)
OPPOSITE = 'The opposite of " large " is "'
COPIED = (
    "orange of tickets gloves After there host Bucharest necklaces toy slow dtype lamps teeth doll from Leo"
)
PROMPTS = {
    "copy": (f"{COPIED} quiet {COPIED}", ["quiet"]),
    "ioi": (
        "After Kurt and Wendy came to the school , Gary stayed at home and Wendy passed a candle to",
        ["Kurt"],
    ),
    "greater-than": (
        "It was in 12 63 that the feud began , and it ended in 12",
        [str(year) for year in range(64, 100)],
    ),
    "docstring": (
        'def merge ( timeout , rate , path ) : """ optional :param timeout : record :param rate : address :param',
        ["path"],
    ),
    "relations": (OPPOSITE, ["small"]),
}
"""A prompt of each task that is not in the training text of `pocket`, and what may follow."""


def run(out: Path, minutes: float, prompts: int = 32) -> dict[str, Any]:
    """Run every stage; `minutes` is the time for post-training, `prompts` are the pairs on which circuits are searched."""
    with folder_lock(out):
        return _run(out, minutes, prompts)


def _run(out: Path, minutes: float, prompts: int) -> dict[str, Any]:
    disable_progress_bar()  # each model would show one
    demo = Demo(out, minutes, prompts, Output(), edgewise.load_models([DENSE, SPARSE], display=Display()))
    stages = {
        "what the pocket model knows": demo.answer_prompts,
        "what the addition model knows": demo.add_numbers,
        "edges that can go without training": demo.gate_untrained,
        "edges that can go with a short post-training": demo.sparsify,
        "the embedded twin": demo.evaluate,
        "which heads and edges carry a behaviour": demo.find_circuits,
        "how one prediction comes about": demo.trace,
        "figures": demo.draw_figures,
    }
    summary: dict[str, Any] = {}
    with Progress(console=demo.output, transient=True) as progress:
        for title, stage in progress.track(stages.items(), description="demo"):
            demo.output.rule(title)
            summary |= stage()
    path = write_json(out / "summary.json", summary, indent=2)
    page = edgewise.report(out)
    demo.output.print(f"Results: {path}; to explore them, open {page} in a browser")
    return summary


@dataclass(frozen=True)
class Demo:
    """Settings of the demo, and the two models that most stages look at, loaded once."""

    out: Path
    minutes: float
    prompts: int
    output: Output
    pair: edgewise.LoadedModels

    def answer_prompts(self) -> dict[str, Any]:
        """One held-out prompt of each task, with the dense model's answer and the probability of right ones."""
        model, tokenizer = self.pair.models[0], self.pair.tokenizer
        table = Table(
            "task", "prompt", "answer", "right with probability", title=f"{DENSE}: prompts it never saw"
        )
        answers = []
        for task, (prompt, right) in PROMPTS.items():
            with torch.no_grad():
                logits = model(**tokenizer(prompt, return_tensors="pt")).logits
            probabilities = logits[0, -1].softmax(-1)
            answer = str(tokenizer.decode([int(probabilities.argmax())]))
            probability = probabilities[tokenizer.convert_tokens_to_ids(right)].sum().item()
            answers.append({"task": task, "prompt": prompt, "answer": answer, "probability": probability})
            table.add_row(task, prompt, answer, f"{probability:.3f}")
        self.output.print(table)
        return {"prompts": answers}

    def add_numbers(self) -> dict[str, Any]:
        """Three sums: without, with one and with two carries."""
        (flows,) = edgewise.collect_flow(ADDITION).rows
        sums = {flow.prompt: "".join(flow.answers) for flow in flows}
        self.output.print("  ".join(f"{question} = {answer}" for question, answer in sums.items()))
        return {"sums": sums}

    def gate_untrained(self) -> dict[str, Any]:
        """Thresholds alone, on the dense weights: the baseline that post-training has to beat."""
        data = embedded_data(DENSE, seed=0, held_out=HELD_OUT_SEQUENCES)
        assert data is not None
        dense = measure(self.pair.models[0], data.held_out)
        columns = ("an edge stays above", "edges left", "per query", "held-out loss")
        table = Table(*columns, title=f"{DENSE}, gated, not trained")
        table.add_row("dense", "100.0%", f"{dense.edges_per_query:.1f}", f"{dense.ce:.4f}")
        results = []
        for threshold in THRESHOLDS:
            gate = edgewise.GateConfig("relative", b=-math.log(threshold))
            gated = measure(edgewise.gate(edgewise.load(DENSE), gate), data.held_out)
            results.append(
                {
                    "threshold": threshold,
                    "density": gated.density,
                    "edges_per_query": gated.edges_per_query,
                    "ce": gated.ce,
                    "density_per_head": gated.density_per_head.tolist(),
                }
            )
            cells = (f"{gated.density:.1%}", f"{gated.edges_per_query:.1f}", f"{gated.ce:.4f}")
            table.add_row(f"{threshold:g}", *cells)
        self.output.print(table)
        self.output.print(_per_head(results[1]["density_per_head"], THRESHOLDS[1]))
        return {"dense_ce": dense.ce, "untrained": results}

    def sparsify(self) -> dict[str, Any]:
        """Post-training in miniature: a sparse twin, its figures and the curves of the run."""
        folder = self.out / SHORT_RUN
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier demo
        config = edgewise.SparsifyConfig(out=folder, minutes=self.minutes)
        any_budget = TrainerConfig(
            step_share=0
        )  # on a busy machine set-up takes a good part of so short a run
        summary = edgewise.sparsify(DENSE, config=config, trainer=any_budget).summary
        tasks = ("copy", "ioi", "docstring")
        table = Table(
            "",
            "edges left",
            "per query",
            "held-out loss",
            *tasks,
            title=f"{DENSE} and the twin of this short run",
        )
        dense_edges = (summary["settings"]["context"] + 1) / 2
        for name, density, edges, ce in (
            ("dense", 1.0, dense_edges, summary["dense_ce"]),
            ("sparse", summary["density"], summary["edges_per_query"], summary["sparse_ce"]),
        ):
            scores = [f"{summary['tasks'][name][task]:.3f}" for task in tasks]
            table.add_row(name, f"{density:.1%}", f"{edges:.1f}", f"{ce:.4f}", *scores)
        self.output.print(table)
        return {"sparse": {key: value for key, value in summary.items() if not key.endswith("per_head")}}

    def evaluate(self) -> dict[str, Any]:
        """Loss and density of the embedded models, of which the stages below are."""
        data = embedded_data(DENSE, seed=0, held_out=HELD_OUT_SEQUENCES)
        assert data is not None
        models = zip(self.pair.names, self.pair.models, strict=True)
        measured = Evaluation({name: measure(model, data.held_out) for name, model in models})
        table = Table("", "edges left", "per query", "held-out loss", title="the embedded models")
        for name, of_model in measured.items():
            table.add_row(
                name, f"{of_model.density:.2%}", f"{of_model.edges_per_query:.1f}", f"{of_model.ce:.4f}"
            )
        self.output.print(table)
        measured.save(self.out)
        return {"shipped": {name: {"density": m.density, "ce": m.ce} for name, m in measured.items()}}

    def find_circuits(self) -> dict[str, Any]:
        """What explains 90 % of the effect, in the dense model and in the embedded twin."""
        ratios = {}
        for task in ("copy", "ioi"):
            config = edgewise.CircuitConfig(
                task=task, prompts=self.prompts, scrutiny=False, out=self.out / "circuits" / task
            )
            result = edgewise.find_circuits(self.pair, config)
            print_circuits(result)
            ratios[task] = result.ratios
        self.output.print(
            f"Curves and rankings: {self.out}/circuits/*/circuit.json. These are {self.prompts} prompts"
            + (
                ", those of the figures in the documents."
                if self.prompts == 32
                else "; the documents' figures are of 32."
            )
        )
        return {"circuits": ratios}

    def trace(self) -> dict[str, Any]:
        """Large to small, through the features of both models, down to the heads."""
        folder = self.out / "trace"
        config = edgewise.TraceConfig(prompt=OPPOSITE, out=folder)
        traces = edgewise.trace(self.pair, config)
        _save(traces, folder)
        print_traces(traces, config)
        self.output.print(f"{folder}: trace-diagram (svg, pdf, png), */trace.json, graphs/ for other viewers")
        return {
            "trace": {
                trace.kind: {"heads_at_80": len(trace.heads_at(0.8)), **trace.metrics} for trace in traces
            }
        }

    def draw_figures(self) -> dict[str, Any]:
        """The figures, from the circuits that an earlier stage has left."""
        folder, circuit = self.out / "figures", self.out / "circuits" / "copy"
        maps = edgewise.collect_maps(self.pair, edgewise.MapsConfig(circuit=circuit))
        _save(maps, folder)
        print_maps(maps)
        save_circuit_figures(edgewise.CircuitResult.load(circuit), folder)
        _save(
            edgewise.collect_flow(self.pair, edgewise.FlowConfig(('The opposite of "large" is "',))), folder
        )
        _save(edgewise.collect_flow([ADDITION, ADDITION_SPARSE]), folder / "sums")
        for figure in [
            *(self.out / SHORT_RUN).glob("run.*"),
            *(self.out / "trace").glob("trace-diagram.*"),
        ]:
            shutil.copy(figure, folder)
        drawn = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
        self.output.print(f"{folder}: {', '.join(drawn)}; each also as SVG and PDF")
        return {"figures": drawn}


def _save(result: Any, folder: Path) -> None:
    """Save a result with its figure."""
    result.save(folder)
    edgewise.save_figure(result.plot(), folder / result.figure_name)


def _per_head(density: list[list[float]], threshold: float) -> Table:
    heads = [f"H{head}" for head in range(len(density[0]))]
    table = Table("", *heads, title=f"edges left of each head, in %, above {threshold:g}")
    for layer, densities in enumerate(density):
        table.add_row(f"L{layer}", *(f"{100 * share:.0f}" for share in densities))
    return table
