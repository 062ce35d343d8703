"""Inference of compacted twins against dense models with torch's scaled_dot_product_attention, as ratios of time.

    python benchmarks/inference.py                # all
    python benchmarks/inference.py pocket --rounds 20

Both models take turns in one run; a ratio is the median of neighbours in time, so that a slow moment of the machine does not
count against one of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import edgewise  # isort: skip  # before torch: it chooses how threads wait
import torch
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from edgewise.gating.edge_gate import gates_of

GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
CLOSED = 9
"""Of the 12 heads of each layer of the GPT-2-shaped twin."""


def ratio(twin: Callable[[], Any], dense: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Time of the twin over time of the dense model, and the dense model's in seconds."""
    pairs = []
    for round_ in range(rounds + 1):  # the first warms up
        times = []
        for work in (twin, dense):
            began = time.perf_counter()
            with torch.no_grad():
                work()
            times.append(time.perf_counter() - began)
        if round_:
            pairs.append(times)
    return statistics.median(a / b for a, b in pairs), statistics.median(b for _, b in pairs)


def plain(model: Any) -> GPT2LMHeadModel:
    """The same dense model as transformers runs it, without edgewise."""
    made = GPT2LMHeadModel(model.config).eval()
    made.set_attn_implementation("sdpa")
    state = {key: value for key, value in model.state_dict().items() if ".edge_gate." not in key}
    made.load_state_dict(state)
    return made


def cache_elements(model: Any, ids: Tensor) -> int:
    cache: Any = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


def report(what: str, measured: tuple[float, float]) -> None:
    print(f"{what:<58}{measured[0]:>7.2f}x{1000 * measured[1]:>12.1f} ms dense", flush=True)


def pocket(rounds: int) -> None:
    dense = plain(edgewise.load("pocket"))
    whole = edgewise.load("pocket-sparse")
    small = edgewise.compact(whole)
    ids = torch.randint(0, dense.config.vocab_size, (16, 128))
    for name, twin in (("pocket-sparse", whole), ("pocket-sparse, compacted", small)):
        measured = ratio(lambda t=twin: t(ids, use_cache=False), lambda: dense(ids, use_cache=False), rounds)
        report(f"{name}: forward, 16 x 128", measured)
    print(f"{'parameters':<58}{small.num_parameters() / whole.num_parameters():>7.2f}x")
    print(f"{'key/value cache':<58}{cache_elements(small, ids) / cache_elements(dense, ids):>7.2f}x")


def gpt2_shaped(rounds: int, new_tokens: int = 256) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**GPT2}
    dense = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    twin = edgewise.gate(GPT2LMHeadModel(GPT2Config(**sizes)).eval(), edgewise.GateConfig("relative", b=3.5))
    with torch.no_grad():
        for gate in gates_of(twin):
            gate.b[:CLOSED] = -1.0
    small = edgewise.compact(twin)
    del twin
    ids = torch.randint(0, 50257, (1, 1024))
    hidden = torch.randn(1, 1024, 768)
    measured = ratio(lambda: small(ids, use_cache=False), lambda: dense(ids, use_cache=False), rounds)
    report(f"GPT-2-shaped, {CLOSED} of 12 heads closed: forward, 1 x 1024", measured)
    models: list[Any] = [small, dense]
    ours, theirs = ([block.attn for block in model.transformer.h] for model in models)
    measured = ratio(
        lambda: [attention(hidden) for attention in ours],
        lambda: [attention(hidden) for attention in theirs],
        rounds,
    )
    report("attention blocks alone", measured)
    print(f"{'key/value cache':<58}{cache_elements(small, ids) / cache_elements(dense, ids):>7.2f}x")
    prompt = ids[:, :16]
    settings = {
        "max_new_tokens": new_tokens,
        "min_new_tokens": new_tokens,
        "do_sample": False,
        "pad_token_id": 0,
    }
    measured = ratio(
        lambda: small.generate(prompt, **settings),  # pyright: ignore
        lambda: dense.generate(prompt, **settings),  # pyright: ignore
        max(1, rounds // 5),
    )
    report(f"generation of {new_tokens} tokens", measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="pocket, gpt2; both if not given")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for kind in arguments.kinds or ("pocket", "gpt2"):
        {"pocket": pocket, "gpt2": gpt2_shaped}[kind](arguments.rounds)


if __name__ == "__main__":
    main()
