"""A twin beside the dense model trained on: what learning the text gives by itself, without closing anything.

    python benchmarks/trained_on.py pocket pocket-sparse --tokens 2.5M
    python benchmarks/trained_on.py pocket-addition pocket-addition-sparse --tokens 2.5M
    python benchmarks/trained_on.py models/smollm2-135m runs/smollm2-sparse --data text/wiki.train.txt \
        --valid text/wiki.valid.txt --tokens 0.77M --lora 16 --context 128 --lr 3e-4

The control of `edgewise sparsify --controls`, alone: batches, learning rates and parameters are those of a run with these
settings, the loss is cross-entropy. Both are compared with the dense model on the same held-out text.
"""

import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from accelerate import Accelerator

import edgewise
from edgewise.core.console import Display
from edgewise.core.quantities import token_count
from edgewise.measure.loss import Measured, measure
from edgewise.measure.reference import Reference
from edgewise.training.data import tokenizer_for, training_data
from edgewise.training.sparsify.controls import train_masked
from edgewise.training.sparsify.run import SparsifyRun


@dataclass(frozen=True)
class TrainedOn:
    """The dense model trained on, beside a twin."""

    dense: Annotated[str, tyro.conf.Positional]
    twin: Annotated[str, tyro.conf.Positional]
    tokens: str = "2.5M"
    """How much text the dense model is trained on."""
    data: str | None = None
    """Text; embedded models bring their own."""
    valid: tuple[str, ...] | None = None
    context: int | None = None
    lora: int | None = None
    lr: float | None = None
    seed: int = 0


def main(arguments: TrainedOn) -> None:
    dense = edgewise.load(arguments.dense)
    config = edgewise.SparsifyConfig(
        tokens=arguments.tokens,
        valid=arguments.valid,
        context=arguments.context,
        lora=arguments.lora,
        lr=arguments.lr,
        seed=arguments.seed,
    )
    data = training_data(
        arguments.dense, arguments.data, config, dense, tokenizer_for(arguments.dense, arguments.data)
    )
    run = SparsifyRun(dense, data, config, Accelerator(cpu=True))
    run.state.step = run.state.planned_steps = max(1, token_count(arguments.tokens) // run.batches.tokens)
    reference = Reference(dense)
    print(
        row(arguments.twin, measure(edgewise.load(arguments.twin), data.held_out, reference=reference)),
        flush=True,
    )
    began = time.perf_counter()
    trained = train_masked(run, None, Display(), None)
    seconds = time.perf_counter() - began
    name = f"dense, {run.state.step * run.batches.tokens:,} tokens more"
    print(row(name, measure(trained, data.held_out, reference=reference)), f"{seconds:.0f} s", sep="  ")


def row(name: str, measured: Measured) -> str:
    against = measured.against_dense
    assert against is not None
    return (
        f"{name:<34} loss {against.delta_ce:+.5f} ± {against.delta_ce_error:.5f}  KL {against.kl:.5f}  "
        f"density {measured.density:.2%}  {measured.tokens:,} held-out tokens"
    )


if __name__ == "__main__":
    main(tyro.cli(TrainedOn))
