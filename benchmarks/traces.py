"""The table of docs/tracing.md: ten relations traced in a dense model and in its sparse twin.

    python benchmarks/traces.py --out runs/traces
    python benchmarks/traces.py --models pocket runs/my-twin --transcoders runs/tc-pocket runs/tc-my-twin

For each prompt: the heads that carry 80 % of the attention flow into the answer, in all and from the subject word to the
last token, and how well the graph predicts the effects of ablating its features and heads.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

import edgewise
from edgewise.models.loaded import load_models
from edgewise.tasks.words import RELATIONS

QUESTIONS = (
    ("opposite", "large"),
    ("opposite", "hot"),
    ("opposite", "old"),
    ("opposite", "king"),
    ("plural", "mouse"),
    ("plural", "king"),
    ("capital", "France"),
    ("capital", "Japan"),
    ("colour", "grass"),
    ("colour", "frog"),
)
SUBJECT, LAST = 4, 7
"""Positions of the subject word and of the last token."""
KINDS = ("feature", "head", "token")
PREDICTIONS = {
    "graph": "",
    "graph, frozen": "_frozen",
    "gradient": "_gradient",
    "replaced model": "_replaced",
}


@dataclass(frozen=True)
class Config:
    """Ten relations, traced."""

    models: tuple[str, str] = ("pocket", "pocket-sparse")
    transcoders: tuple[Path, Path] | None = None
    share: float = 0.8
    out: Path = Path("runs/traces")


def main(config: Config) -> None:
    models = load_models(config.models)
    pairs: list[edgewise.Traces] = []
    for relation, word in QUESTIONS:
        trace_config = edgewise.TraceConfig(prompt=f'The {relation} of " {word} " is "')
        pairs.append(edgewise.trace(models, trace_config, transcoders=config.transcoders))
        pairs[-1].save(config.out / f"{relation}-{word}")
    print_prompts(pairs, config.share)
    for name, traces in zip(config.models, zip(*pairs, strict=True), strict=True):
        print_model(name, traces)


def print_prompts(pairs: Sequence[edgewise.Traces], share: float) -> None:
    """A line for each prompt, dense model / twin, and the mean ratios of their numbers of heads."""
    print(f"\n| prompt | answer, p | heads at {share:.0%} | from the word | attributed to the word |")
    print("|---|---|---:|---:|---:|")
    ratios: list[list[float]] = [[], []]
    for (relation, word), pair in zip(QUESTIONS, pairs, strict=True):
        answer = RELATIONS[relation][word]
        counts = [
            [len(trace.heads_at(share)) for trace in pair],
            [len(trace.heads_at(share, SUBJECT, LAST)) for trace in pair],
        ]
        cells = [
            " / ".join(f"{trace.logits[0][0].strip()} {trace.logits[0][1]:.3f}" for trace in pair),
            *(" / ".join(map(str, both)) for both in counts),
            " / ".join(f"{trace.origins[SUBJECT]:.0%}" for trace in pair),
        ]
        is_right = all(trace.logits[0][0].strip() == answer for trace in pair)
        print(f"| {relation} of {word}{'' if is_right else f' (is {answer})'} | {' | '.join(cells)} |")
        for values, (dense, twin) in zip(ratios, counts, strict=True):
            values.append(dense / max(1, twin))
    in_all, from_word = (statistics.fmean(values) for values in ratios)
    print(f"\nmean ratio: {in_all:.1f}x in all, {from_word:.1f}x from the word")


def print_model(name: str, traces: Sequence[edgewise.Trace]) -> None:
    """How exact one model's traces are, and how well they predict ablations."""
    metrics = [trace.metrics for trace in traces]
    print(
        f"\n{name}: closure at worst {max(m['closure'] for m in metrics):.1e}, "
        f"errors' influence {statistics.fmean(m['influence_of_errors'] for m in metrics):.0%}, "
        f"{statistics.fmean(m['seconds'] for m in metrics):.1f} s a trace"
    )
    print(f"effects: parts add up to {max(m['effect_closure'] for m in metrics):.1e} of the largest")
    for kind in KINDS:
        for prediction, ending in PREDICTIONS.items():
            values = [r for m in metrics if (r := m[f"{kind}_correlation{ending}"]) is not None]
            if values:
                print(
                    f"  {kind}s, {prediction}: mean {statistics.fmean(values):.2f}, worst {min(values):.2f}"
                )
        print_parts(kind, traces)


def print_parts(kind: str, traces: Sequence[edgewise.Trace]) -> None:
    """How much of the measured effects each part makes up, as shares of the parts' sizes; and what r is left without one."""
    parts = ("values", "attention", "norms", "errors")
    tested = [i for trace in traces for i in trace.interventions if i.kind == kind]
    sizes = {part: sum(abs(getattr(i, part)) for i in tested) for part in parts}
    print(
        "    parts: " + ", ".join(f"{part} {size / sum(sizes.values()):.0%}" for part, size in sizes.items())
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
