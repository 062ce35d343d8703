"""A step of gated training against the same model trained densely with torch's scaled_dot_product_attention.

    python benchmarks/step.py            # ratios; the three kinds of step take turns in one run

`gated` is forward, backward and update with gates and the density's gradient; `distilled` adds the dense model's forward
pass, which the default recipe needs for its target (a choice of recipe, not of attention).
"""

import statistics
import time
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

import edgewise

SHAPES = {
    "pocket, T=128, 16 rows": (
        {"n_layer": 6, "n_head": 8, "n_embd": 128, "n_positions": 128, "vocab_size": 820},
        16,
        9,
    ),
    "GPT-2 small, T=512, 1 row": ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 512}, 1, 5),
}


def host(shape: dict[str, Any]) -> GPT2LMHeadModel:
    quiet = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "activation_function": "gelu_pytorch_tanh",
    }
    return GPT2LMHeadModel(GPT2Config(**shape, **quiet))  # sdpa is what transformers takes by default


def step(
    model: PreTrainedModel,
    update: torch.optim.Optimizer,
    ids: Tensor,  # [rows, T]
    gated: bool = False,
    teacher: PreTrainedModel | None = None,
) -> float:
    """One step of training, in seconds."""
    began = time.perf_counter()
    if teacher is not None:
        with torch.no_grad():
            teacher(input_ids=ids, use_cache=False)
    if gated:
        with edgewise.tap(model) as activations:
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss = loss + 0.01 * activations.expected_density.mean()
    else:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    update.step()
    update.zero_grad()
    return time.perf_counter() - began


class Compared(NamedTuple):
    """By kind of step."""

    seconds: dict[str, float]
    """Medians."""
    ratio: dict[str, float]
    """To the dense step: medians of ratios of neighbours in time, so that a slow moment of the machine does not count
    against one kind."""


def compare(shape: dict[str, Any], rows: int, rounds: int) -> Compared:
    torch.manual_seed(0)
    dense, twin = host(shape).train(), edgewise.gate(host(shape)).train()
    ids = torch.randint(0, dense.config.vocab_size, (rows, shape["n_positions"]))
    of_dense, of_twin = (
        torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for model in (dense, twin)
    )
    kinds = {
        "dense": partial(step, dense, of_dense, ids),
        "gated": partial(step, twin, of_twin, ids, gated=True),
        "distilled": partial(step, twin, of_twin, ids, gated=True, teacher=dense),
    }
    results: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_ in range(rounds + 2):  # the first two warm up
        for kind, run in kinds.items():
            spent = run()
            if round_ >= 2:
                results[kind].append(spent)
    ratio = {
        kind: statistics.median(x / y for x, y in zip(times, results["dense"], strict=True))
        for kind, times in results.items()
    }
    return Compared({kind: statistics.median(times) for kind, times in results.items()}, ratio)


def main() -> None:
    print(
        f"{'shape':<28}{'dense':>10}{'gated':>10}{'distilled':>11}{'gated/dense':>13}{'distilled/dense':>17}"
    )
    for name, (shape, rows, rounds) in SHAPES.items():
        seconds, ratio = compare(shape, rows, rounds)
        print(
            f"{name:<28}{1000 * seconds['dense']:>7.0f} ms{1000 * seconds['gated']:>7.0f} ms"
            f"{1000 * seconds['distilled']:>8.0f} ms{ratio['gated']:>12.2f}x{ratio['distilled']:>16.2f}x"
        )


if __name__ == "__main__":
    main()
