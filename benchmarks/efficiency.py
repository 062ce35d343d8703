"""Tokens until the same density at the same loss: the default recipe against the paper's.

    python benchmarks/efficiency.py --seeds 0 1 2 --tokens 2.4M --paper-tokens 10M --out runs/efficiency

Each run is `edgewise sparsify pocket --density 0.02`: it stops at the first validation with at most 2 % of edges and a
held-out loss of at most dense + 0.01. A run that does not get there within its budget counts as "more than" that budget.
Runs that are finished are not run again, so the benchmark can be stopped and continued, and its runs spread over processes.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import edgewise
from edgewise.core.quantities import token_count


@dataclass(frozen=True)
class Efficiency:
    """Tokens that two recipes need for the same result."""

    seeds: tuple[int, ...] = (0, 1, 2)
    density: float = 0.02
    tokens: str = "2.4M"
    """Budget of the default recipe, to which its schedule is fitted."""
    paper_tokens: str = "10M"
    """Budget of the paper's recipe."""
    recipes: tuple[Literal["small", "paper"], ...] = ("small", "paper")
    out: Path = Path("runs/efficiency")


def run(options: Efficiency, recipe: Literal["small", "paper"], seed: int) -> dict:
    out = options.out / f"{recipe}-{seed}"
    if not (out / "summary.json").is_file():
        budget = options.tokens if recipe == "small" else options.paper_tokens
        config = edgewise.SparsifyConfig(
            out=out,
            recipe=recipe,
            tokens=budget,
            density=options.density,
            seed=seed,
            resume=bool(list(out.glob("snapshots/step-*"))),
        )
        edgewise.sparsify("pocket", config=config)
    return json.loads((out / "summary.json").read_text())


def main(options: Efficiency) -> None:
    needed: dict[str, list[float]] = {}
    for seed in options.seeds:
        for recipe in options.recipes:
            results = run(options, recipe, seed)
            reached = results["stopped"].startswith("density")
            print(
                f"{recipe:<9} seed {seed}: {'' if reached else 'more than '}{results['tokens'] / 1e6:.2f}M tokens, "
                f"density {results['density']:.2%}, loss {results['delta_ce']:+.4f}, {results['seconds']:.0f} s",
                flush=True,
            )
            needed.setdefault(recipe, []).append(results["tokens"])
    if len(needed) == 2:
        ours, papers = (statistics.median(needed[recipe]) for recipe in ("small", "paper"))
        budget = token_count(options.paper_tokens)
        least = "at least " if papers >= 0.99 * budget else ""
        print(f"the default recipe needs {least}{papers / ours:.1f}x fewer tokens (medians)")


if __name__ == "__main__":
    main(tyro.cli(Efficiency))
