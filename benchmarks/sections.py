"""What bench.py measures, a function a table."""

import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attention
import step
import torch
from page import Section
from patching import FIRST, MEMORY, pairs, random_model
from peers import RIVALS, Environment, ask, say

SAME = 1e-4
"""Numbers that differ by less are the same."""


@dataclass(frozen=True)
class Sizes:
    """Of what is measured."""

    layers: int = 12
    heads: int = 12
    prompts: int = 16
    lengths: tuple[int, ...] = tuple(attention.LENGTHS)
    steps: Mapping[str, tuple[dict[str, Any], int, int]] = field(default_factory=lambda: step.SHAPES)


# ------------------------------------------------------------------------------------------------- patching every head

HEAD_PATCHING = """
A dense GPT-2 of {layers} layers x {heads} heads with GPT-2's vocabulary and random weights, {prompts} pairs of 16
tokens. The output of each head, at all positions, is put from the clean run into the corrupt one; what comes out is
the mean logit difference after each of these patches. The time includes recording the clean run. Memory is the peak
above what the process, one for each measurement, held with the model loaded and run once.

TransformerLens: `run_with_cache` and `get_act_patch_attn_head_out_all_pos`. nnsight: one trace a head, which replaces
the head's part of what enters `c_proj`. Both compute the whole model and all logits for each head. edgewise computes
only what a patch can reach, and gains when the texts of a pair begin alike; it runs all heads of a layer as one
batch, within a limit of {limit:.0f} GiB, which costs memory. Rivals run once; edgewise before, between and after
them, of which the medians are given. *Same* is the largest difference from edgewise's numbers, with "yes" below
{same:.0e}.
"""


def head_patching(sizes: Sizes, rivals: Environment) -> Section:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        random_model(sizes.layers, sizes.heads).save_pretrained(folder)
        for differ, first in FIRST.items():
            torch.save(pairs(sizes.prompts, 16, first)._asdict(), Path(folder) / "pairs.pt")
            mine, theirs = [_ours(folder)], {}
            for rival in RIVALS:
                theirs[rivals.name(rival)] = rivals.ask(rival, f"peer_{rival.module}.py", folder)
                mine.append(_ours(folder))
            seconds, megabytes = (
                statistics.median(run[what] for run in mine) for what in ("seconds", "megabytes")
            )
            rows.append(["edgewise", differ, f"{seconds:.1f} s", f"{megabytes:,.0f} MB"])
            for name, results in theirs.items():
                if isinstance(results, str):
                    rows.append([name, differ, results])
                    continue
                gap = (torch.tensor(results["scores"]) - torch.tensor(mine[0]["scores"])).abs().max().item()
                rows.append([
                    name,
                    differ,
                    f"{results['seconds']:.1f} s",
                    f"{results['megabytes']:,.0f} MB",
                    f"{results['seconds'] / seconds:.1f}x",
                    f"{results['megabytes'] / max(megabytes, 1):.1f}x",
                    f"{'yes' if gap < SAME else 'no'}, {gap:.0e}",
                ])  # fmt: skip
    header = ["", "pairs differ", "time", "memory", "time / edgewise's", "memory / edgewise's", "same"]
    text = HEAD_PATCHING.format(
        layers=sizes.layers, heads=sizes.heads, prompts=sizes.prompts, limit=MEMORY / 2**30, same=SAME
    )
    return Section("Patching every head", text, header, rows)


def _ours(folder: str) -> dict[str, Any]:
    say("edgewise: peer_edgewise.py")
    return ask(sys.executable, "peer_edgewise.py", folder)


# ------------------------------------------------------------------------------------------------- attention, training

ATTENTION = """
One layer, B={batch}, {heads} heads, d={width}, float32. *Naive* is the gate written down in plain PyTorch, *dense* is
torch's `scaled_dot_product_attention` without any gate. The three take turns, and the best time of each counts;
memory is the peak above the inputs.
"""


def gated_attention(sizes: Sizes) -> Section:
    rows = []
    for length in sizes.lengths:
        say(f"attention, T={length}")
        milliseconds, megabytes = attention.compare(length)
        rows.append([
            f"{length:,}",
            *(f"{milliseconds[name]:,.1f} ms" for name in attention.IMPLEMENTATIONS),
            f"{milliseconds['naive'] / milliseconds['ours']:.1f}x",
            f"{milliseconds['ours'] / milliseconds['dense']:.2f}x",
            *(f"{megabytes[name]:,.0f} MB" for name in attention.IMPLEMENTATIONS),
        ])  # fmt: skip
    ways = ["naive", "edgewise", "dense"]
    header = ["T", *ways, "naive / edgewise", "edgewise / dense", *(f"memory, {way}" for way in ways)]
    text = ATTENTION.format(batch=attention.BATCH, heads=attention.HEADS, width=attention.WIDTH)
    return Section("Attention, forward and backward", text, header, rows)


TRAINING = """
Forward, backward and AdamW's update; medians of steps that take turns, and of the ratios of neighbouring steps (which
are not the ratios of the medians). *Dense* is the model as transformers trains
it, with torch's `scaled_dot_product_attention`. *Gated* has gates and the gradient of the density. *Distilled* adds
the forward pass of the dense model, from which the default recipe takes its targets.
"""


def training_step(sizes: Sizes) -> Section:
    rows = []
    for name, shape in sizes.steps.items():
        say(f"training step, {name}")
        seconds, ratio = step.compare(*shape)
        rows.append([
            name,
            *(f"{1000 * seconds[kind]:,.0f} ms" for kind in ("dense", "gated", "distilled")),
            *(f"{ratio[kind]:.2f}x" for kind in ("gated", "distilled")),
        ])  # fmt: skip
    header = ["shape", "dense", "gated", "distilled", "gated / dense", "distilled / dense"]
    return Section("A step of training", TRAINING, header, rows)


# ------------------------------------------------------------------------------------------ a twin in other libraries

TWIN = """
`pocket` with a gate that cuts attention weights below 10 % is handed as a loaded model to each library, which runs
one prompt: plain transformers, `TransformerBridge.boot_transformers(folder, hf_model=twin)` and `NNsight(twin)`.
Given are the largest differences of the logits, and how many calls the attention function got that the twin has
registered with transformers (one a layer is right). None of the libraries that are listed with figures raised an
error.
"""


def twin_elsewhere(rivals: Environment) -> Section:
    say("transformers: peer_twin.py")
    results: dict[str, dict[str, Any] | str] = {
        "transformers": ask(sys.executable, "peer_twin.py", "transformers")
    }
    for rival in RIVALS:
        results[rivals.name(rival)] = rivals.ask(rival, "peer_twin.py", rival.module)
    rows = [
        [name, *([result] if isinstance(result, str) else _what_ran(result))]
        for name, result in results.items()
    ]
    header = ["opened by", "what ran", "from the twin", "from the dense model", "calls / layers"]
    return Section("A sparse twin opened elsewhere", TWIN, header, rows)


def _what_ran(result: dict[str, Any]) -> list[str]:
    twin, dense = result["from_twin"] < SAME, result["from_dense"] < SAME
    ran = "the twin" if twin else "the dense model" if dense else "neither"
    gaps = [f"{result[key]:.1e}" for key in ("from_twin", "from_dense")]
    return [ran, *gaps, f"{result['calls']} / {result['layers']}"]
