"""Masks without training, beside a twin: what its density would cost if nothing made up for it.

    python benchmarks/untrained.py MODEL runs/sparse --data text.txt --context 128 --tokens 8192

Edges of the dense model dropped by their weight, at several thresholds; and the dense model behind masks with as many edges
as the twin has: the largest of each head, the largest of each layer (which gets the twin's number for it), random ones.
Each twice: where attending to nothing is 0, and where it has the value that twins of large models start with, the mean of
what is not attended to (on other text than the loss is measured on).
"""

from dataclasses import dataclass
from typing import Annotated

import tyro

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import token_count
from edgewise.data import held_out_only
from edgewise.measure.loss import measure
from edgewise.models.load import load_tokenizer
from edgewise.training.sparsify.controls import THRESHOLDS
from edgewise.training.sparsify.masks import TOP_K, measure_masked, random_mask, threshold_mask
from edgewise.training.sparsify.null_value import mean_closed_values, sequences_needed, with_null_values


@dataclass(frozen=True)
class Untrained:
    """Compare a twin with masks that nobody trained."""

    model: Annotated[str, tyro.conf.Positional]
    twin: Annotated[str, tyro.conf.Positional]
    data: str
    context: int = 128
    tokens: str = "8192"
    seed: int = 0


def main(options: Untrained) -> None:
    dense, tokenizer = edgewise.load(options.model), load_tokenizer(options.model)
    few, tokens = sequences_needed(options.context), token_count(options.tokens)
    results = held_out_only(options.data, tokenizer, options.context, tokens=tokens + few * options.context)
    if len(results.ids) < 2:
        raise EdgewiseError(
            f"{options.data} has too little text: rows for the loss, and others for the mean, are needed"
        )
    few = min(few, len(results.ids) // 2)
    others, rows = results.select(slice(few)), results.select(slice(few, None))
    sparse = edgewise.load(options.twin)
    base, twin = measure(dense, rows).ce, measure(sparse, rows)
    print(f"{rows.ids.numel():,} tokens; the dense model's loss is {base:.4f}\n")
    print("|  | edges | nothing is 0 | nothing has a value |\n| --- | ---: | ---: | ---: |")

    def row(name: str, density: float, *losses: str) -> None:
        print(f"| {name} | {density:.2%} | {' | '.join(losses)} |", flush=True)

    loss, gate = f"{twin.ce - base:+.4f}", edgewise.gate_config(sparse)
    row("twin", twin.density, *(("", loss) if gate is not None and gate.null_value else (loss, "")))
    masks = {name: make(twin.edges_per_query_per_head) for name, make in TOP_K.items()}
    masks["random"] = random_mask(twin.density_per_head, options.context, options.seed)
    masks |= {f"weights above {threshold:g}": threshold_mask(threshold) for threshold in THRESHOLDS}
    for name, mask in masks.items():
        both = []
        for means in (None, mean_closed_values(dense, others, mask)):
            with with_null_values(dense, means):
                both.append(measure_masked(dense, mask, rows))
        row(f"{name}, untrained", both[0]["density"], *(f"{each['ce'] - base:+.4f}" for each in both))


if __name__ == "__main__":
    main(tyro.cli(Untrained))
