"""Masks without training, beside a twin: what its density would cost if nothing made up for it.

    python benchmarks/untrained.py MODEL runs/sparse --data text.txt --context 128 --tokens 8192

Edges of the dense model dropped by their weight, at several thresholds; and the dense model behind masks with as many edges
as the twin has: the largest of each head, the largest of each layer (which gets the twin's number for it), random ones.
"""

from dataclasses import dataclass
from typing import Annotated

import tyro

import edgewise
from edgewise.checkpoint import load_tokenizer
from edgewise.data import held_out_only
from edgewise.evaluation import measure
from edgewise.posttraining.config import count
from edgewise.posttraining.controls import TOP_K, measure_masked, random_mask, thresholds


@dataclass(frozen=True)
class Untrained:
    """Compare a twin with masks that nobody trained."""

    model: Annotated[str, tyro.conf.Positional]
    twin: Annotated[str, tyro.conf.Positional]
    data: str
    context: int = 128
    tokens: str = "8192"
    seed: int = 0


def main(asked: Untrained) -> None:
    dense, tokenizer = edgewise.load(asked.model), load_tokenizer(asked.model)
    rows = held_out_only(asked.data, tokenizer, asked.context, tokens=count(asked.tokens))
    base, twin = measure(dense, rows).ce, measure(edgewise.load(asked.twin), rows)
    print(f"{rows.ids.numel():,} tokens; the dense model's loss is {base:.4f}\n")
    print("|  | edges | loss |\n| --- | ---: | ---: |")

    def row(name: str, density: float, ce: float) -> None:
        print(f"| {name} | {density:.2%} | {ce - base:+.4f} |", flush=True)

    row("twin", twin.density, twin.ce)
    masks = {name: make(twin.edges_per_query_per_head) for name, make in TOP_K.items()}
    masks["random"] = random_mask(twin.density_per_head, asked.context, asked.seed)
    for name, mask in masks.items():
        row(f"{name}, untrained", **measure_masked(dense, mask, rows))
    for each in thresholds(dense, rows):
        row(f"weights above {each['threshold']:g}, untrained", each["density"], each["ce"])


if __name__ == "__main__":
    main(tyro.cli(Untrained))
