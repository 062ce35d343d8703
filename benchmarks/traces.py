"""The table of docs/tracing.md: ten relations traced in a dense model and in its twin.

    python benchmarks/traces.py --out runs/traces
    python benchmarks/traces.py --models pocket runs/my-twin --transcoders runs/tc-pocket runs/tc-my-twin

For each prompt: the heads that carry 80 % of what attention brings to the answer, in all and from the word asked to the
last token, and how well the graph foretells what happens when its features and heads are taken away.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path

import tyro

import edgewise
from edgewise.pocket.words import RELATIONS

ASKED = (
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
FIGURES = (
    "feature_correlation",
    "feature_correlation_frozen",
    "head_correlation",
    "head_correlation_frozen",
)


@dataclass(frozen=True)
class Traces:
    """Ten relations, traced."""

    models: tuple[str, str] = ("pocket", "pocket-sparse")
    transcoders: tuple[Path, Path] | None = None
    share: float = 0.8
    out: Path = Path("runs/traces")


def main(asked: Traces) -> None:
    found: list[list[edgewise.Trace]] = []
    for place, name in enumerate(asked.models):
        model, tokenizer = edgewise.load(name), edgewise.load_tokenizer(name)
        folder = asked.transcoders[place] if asked.transcoders else None
        traces = []
        for relation, word in ASKED:
            config = edgewise.TraceConfig(prompt=f'The {relation} of " {word} " is "')
            transcoder = None if folder is None else edgewise.load_transcoder(folder, model)
            traces.append(edgewise.trace(model if folder else name, transcoder, config, tokenizer=tokenizer))
            traces[-1].save(asked.out / f"{relation}-{word}" / str(place))
        found.append(traces)
    print(f"\n| prompt | answer, p | heads at {asked.share:.0%} | from the word | began at the word |")
    print("|---|---|---:|---:|---:|")
    ratios: list[list[float]] = [[], []]
    for (relation, word), dense, twin in zip(ASKED, *found, strict=True):
        right = RELATIONS[relation][word]
        cells = [
            " / ".join(f"{each.logits[0][0].strip()} {each.logits[0][1]:.3f}" for each in (dense, twin)),
            " / ".join(str(len(each.heads_at(asked.share))) for each in (dense, twin)),
            " / ".join(str(len(each.heads_at(asked.share, 4, 7))) for each in (dense, twin)),
            " / ".join(f"{each.origins[4]:.0%}" for each in (dense, twin)),
        ]
        wrong = "" if all(each.logits[0][0].strip() == right for each in (dense, twin)) else f" (is {right})"
        print(f"| {relation} of {word}{wrong} | {' | '.join(cells)} |")
        for kept, (key, query) in zip(ratios, ((None, None), (4, 7)), strict=True):
            counts = [len(each.heads_at(asked.share, key, query)) for each in (dense, twin)]
            kept.append(counts[0] / max(1, counts[1]))
    print(
        f"\nmean ratio: {statistics.fmean(ratios[0]):.1f}x in all, {statistics.fmean(ratios[1]):.1f}x from the word"
    )
    for name, traces in zip(asked.models, found, strict=True):
        print(f"\n{name}: closure at worst {max(each.figures['closure'] for each in traces):.1e}, "
              f"errors' influence {statistics.fmean(each.figures['influence_of_errors'] for each in traces):.0%}, "
              f"{statistics.fmean(each.figures['seconds'] for each in traces):.1f} s a trace")  # fmt: skip
        for figure in FIGURES:
            values = [each.figures[figure] for each in traces if each.figures[figure] is not None]
            if values:
                print(
                    f"  {figure}: mean {statistics.fmean(values):.2f}, worst {min(values):.2f} of {len(values)}"
                )


if __name__ == "__main__":
    main(tyro.cli(Traces))
