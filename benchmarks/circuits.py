"""The tables of the research log about circuits and controls: three seeds, each with its controls.

    python benchmarks/circuits.py --tokens 2.5M          # hours on two cores; what is already in --out is not done again
    python benchmarks/circuits.py --analyse-only         # train nothing: whatever is there goes through the tasks
    python benchmarks/circuits.py --tables-only          # print the tables of what is there

For each seed `pocket` is post-trained and so are its controls (a random mask and top-k of the same density, dense training).
Then all of them, and the shipped twin, go through the five tasks.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgewise
from edgewise.circuits.find import find_circuit
from edgewise.circuits.result import CircuitResult
from edgewise.tasks import TASKS
from edgewise.tasks.generate import split_task
from edgewise.training.sparsify.control_store import control_folder, load_control
from edgewise.training.sparsify.masks import TOP_K, masked

SEEDS = (0, 1, 2)
CONTROLS = ("random", *TOP_K)
NONE = "none"
ROWS = {
    "heads": "heads, prefix",
    "heads_minimal": "heads, minimal",
    "heads_per_prompt": "heads, each prompt's own",
    "edges": "edges, prefix",
    "edges_minimal": "edges, minimal",
    "edges_per_prompt": "edges, each prompt's own",
    "head_head_edges": "pairs of heads joined",
    "open_token_edges": "token edges open",
    "token_edges": "token edges used",
}


@dataclass(frozen=True)
class Subject:
    """A model that goes through the tasks."""

    kind: str
    name: str
    folder: Path | None = None

    def load(self) -> tuple[Any, Any]:
        """The model, and the mask it was trained behind, if any."""
        if self.kind in CONTROLS:
            model = edgewise.load("pocket")
            return model, load_control(self.folder, model)  # pyright: ignore
        return edgewise.load(str(self.folder or self.name)), None


def subjects(out: Path, seeds: tuple[int, ...]) -> list[Subject]:
    listed = [Subject("dense", "pocket"), Subject("shipped twin", "pocket-sparse")]
    for seed in seeds:
        folder = out / f"seed-{seed}"
        listed += [
            Subject("twin", f"twin {seed}", folder),
            *(Subject(kind, f"{kind} {seed}", control_folder(folder, kind)) for kind in CONTROLS),
        ]
    return [subject for subject in listed if subject.folder is None or subject.folder.is_dir()]


def post_train(out: Path, tokens: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        folder = out / f"seed-{seed}"
        config = edgewise.SparsifyConfig(
            out=folder, tokens=tokens, seed=seed, controls=True, resume=(folder / "snapshots").is_dir()
        )
        edgewise.sparsify("pocket", None, config)


def analyse(out: Path, prompts: int, seeds: tuple[int, ...]) -> None:
    tokenizer = edgewise.load_tokenizer("pocket")
    for subject in subjects(out, seeds):
        wanted = [task for task in TASKS if not _file(out, subject, task).is_dir()]
        if not wanted:
            continue
        model, mask = subject.load()
        for name in wanted:
            task = split_task(name, tokenizer, prompts)
            config = edgewise.CircuitConfig(task=name, prompts=prompts)
            with masked(model, mask):
                circuit = find_circuit(model, task, config, name=subject.name)
            result = CircuitResult(name, task.metric, config.threshold, 0, config.method, [], [circuit])
            result.save(_file(out, subject, name))
            print(subject.name, name, circuit.accuracy, circuit.counts(), flush=True)


def _file(out: Path, subject: Subject, task: str) -> Path:
    return out / "circuits" / subject.name.replace(" ", "-") / task


def tables(out: Path, seeds: tuple[int, ...]) -> None:
    """Markdown: the shipped twin against the dense model, then the twins of all seeds and their controls."""
    kinds: dict[str, list[Subject]] = {}
    for subject in subjects(out, seeds):
        kinds.setdefault(subject.kind, []).append(subject)
    circuits = {kind: {task: _load(out, members, task) for task in TASKS} for kind, members in kinds.items()}
    head = f"| | {' | '.join(TASKS)} |\n|---|{'---:|' * len(TASKS)}"
    print(f"\nDense → shipped twin (times fewer)\n\n{head}")
    for key, label in ROWS.items():
        pairs = [
            (_values(circuits["dense"][task], key), _values(circuits["shipped twin"][task], key))
            for task in TASKS
        ]
        print(f"| {label} | {' | '.join(_against(*pair) for pair in pairs)} |")
    print(f"\nSeeds and controls\n\n{head}")
    others = [kind for kind in circuits if kind not in ("dense", "shipped twin")]
    for kind in others:
        cells = [_cell([100 * model.accuracy for model in circuits[kind][task]], " %") for task in TASKS]
        print(f"| accuracy, {kind} | {' | '.join(cells)} |")
    for key, label in ROWS.items():
        for kind in others:
            cells = [_cell(_values(circuits[kind][task], key)) for task in TASKS]
            if any(cell != NONE for cell in cells):
                print(f"| {label}, {kind} | {' | '.join(cells)} |")
    _print_controls(out, seeds)


def _load(out: Path, members: list[Subject], task: str) -> list[Any]:
    files = [_file(out, subject, task) for subject in members]
    return [CircuitResult.load(path).models[0] for path in files if path.is_dir()]


def _values(models: list[Any], key: str) -> list[Any]:
    return [model.counts()[key] for model in models]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def _against(dense: list[Any], twin: list[Any]) -> str:
    if not (dense and twin and dense[0] is not None and twin[0] is not None):
        return NONE
    ratio = f" ({dense[0] / twin[0]:.1f}x)" if twin[0] else ""
    return f"{_number(dense[0])} → {_number(twin[0])}{ratio}"


def _cell(values: list[Any], unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    mean = f"{_number(statistics.fmean(known))}{unit}"
    missing = f" ({len(values) - len(known)} of {len(values)} none)" if len(known) < len(values) else ""
    return (mean + f" ± {_number(statistics.stdev(known))}" if len(known) > 1 else mean) + missing


def _print_controls(out: Path, seeds: tuple[int, ...]) -> None:
    files = [out / f"seed-{seed}" / "summary.json" for seed in seeds]
    summaries = [json.loads(path.read_text()) for path in files if path.is_file()]
    summaries = [summary for summary in summaries if "controls" in summary]
    if not summaries:
        return
    dense = summaries[0]["dense_ce"]
    print("\n| | seeds | density | loss against the dense model, nats |\n|---|---:|---:|---:|")
    rows: dict[str, list[dict[str, float]]] = {
        "twin": [{"density": s["density"], "ce": s["sparse_ce"]} for s in summaries]
    }
    for name in summaries[0]["controls"]:
        if name != "threshold":
            rows[name] = [s["controls"][name] for s in summaries if name in s["controls"]]
    for name, runs in rows.items():
        density = f"{statistics.fmean(run['density'] for run in runs):.2%}"
        losses = [run["ce"] - dense for run in runs]
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        print(f"| {name} | {len(runs)} | {density} | {statistics.fmean(losses):+.4f}{spread} |")
    for run in summaries[0]["controls"]["threshold"]:
        print(f"| threshold {run['threshold']:g} | | {run['density']:.2%} | {run['ce'] - dense:+.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="2.5M", help="of each post-training")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/circuits"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--analyse-only", action="store_true")
    parser.add_argument("--tables-only", action="store_true")
    arguments = parser.parse_args()
    seeds = SEEDS[: arguments.seeds]
    if not (arguments.tables_only or arguments.analyse_only):
        post_train(arguments.out, arguments.tokens, seeds)
    if not arguments.tables_only:
        analyse(arguments.out, arguments.prompts, seeds)
    tables(arguments.out, seeds)


if __name__ == "__main__":
    main()
