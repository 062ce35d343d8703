"""The tables of docs/circuits.md, and of the controls in docs/posttraining.md: three seeds, each with its controls.

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
from edgewise.posttraining.controls import TOP_K, control_folder, load_control, masked
from edgewise.tasks import TASKS, make_task

SEEDS = (0, 1, 2)
CONTROLS = ("random", *TOP_K)
ROWS = {
    "heads": "heads",
    "heads_per_prompt": "heads, each prompt's own",
    "edges": "edges",
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
    found = [Subject("dense", "pocket"), Subject("shipped twin", "pocket-sparse")]
    for seed in seeds:
        folder = out / f"seed-{seed}"
        found += [
            Subject("twin", f"twin {seed}", folder),
            *(Subject(kind, f"{kind} {seed}", control_folder(folder, kind)) for kind in CONTROLS),
        ]
    return [each for each in found if each.folder is None or each.folder.is_dir()]


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
            task = make_task(name, tokenizer, prompts)
            config = edgewise.CircuitConfig(task=name, prompts=prompts)
            with masked(model, mask):
                found = find_circuit(model, task, config, subject.name)
            result = CircuitResult(name, task.metric, config.threshold, 0, config.method, [], [found])
            result.save(_file(out, subject, name))
            print(subject.name, name, found.accuracy, found.counts(), flush=True)


def _file(out: Path, subject: Subject, task: str) -> Path:
    return out / "circuits" / subject.name.replace(" ", "-") / task


def tables(out: Path, seeds: tuple[int, ...]) -> None:
    """Markdown."""
    kinds: dict[str, list[Subject]] = {}
    for subject in subjects(out, seeds):
        kinds.setdefault(subject.kind, []).append(subject)
    for task in TASKS:
        loaded = {
            kind: [
                CircuitResult.load(_file(out, s, task)).models[0]
                for s in members
                if _file(out, s, task).is_dir()
            ]
            for kind, members in kinds.items()
        }
        loaded = {kind: found for kind, found in loaded.items() if found}
        print(f"\n### {task}\n\n| | {' | '.join(loaded)} |\n|---|{'---:|' * len(loaded)}")
        print(
            f"| accuracy | {' | '.join(_cell([m.accuracy * 100 for m in f], ' %') for f in loaded.values())} |"
        )
        for key, label in ROWS.items():
            cells = [_cell([m.counts()[key] for m in found]) for found in loaded.values()]
            print(f"| {label} | {' | '.join(cells)} |")
    _print_controls(out, seeds)


def _cell(values: list[Any], unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none found"
    mean = f"{statistics.fmean(known):,.1f}{unit}"
    missing = f" ({len(values) - len(known)} of {len(values)} none)" if len(known) < len(values) else ""
    return (mean + f" ± {statistics.stdev(known):,.1f}" if len(known) > 1 else mean) + missing


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
    for name, found in rows.items():
        density = _cell([100 * each["density"] for each in found], " %")
        losses = [each["ce"] - dense for each in found]
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        print(f"| {name} | {len(found)} | {density} | {statistics.fmean(losses):+.4f}{spread} |")
    for each in summaries[0]["controls"]["threshold"]:
        print(f"| threshold {each['threshold']:g} | | {each['density']:.2%} | {each['ce'] - dense:+.4f} |")


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
    asked = parser.parse_args()
    seeds = SEEDS[: asked.seeds]
    if not (asked.tables_only or asked.analyse_only):
        post_train(asked.out, asked.tokens, seeds)
    if not asked.tables_only:
        analyse(asked.out, asked.prompts, seeds)
    tables(asked.out, seeds)


if __name__ == "__main__":
    main()
