"""What works for one architecture, each claim against an oracle: dense logits against the host's own eager attention, with
padding and without, cached generation against uncached, patched heads against plain hooks, edges and traces by their sums.

A claim holds, or is refused in one sentence; anything else raises an error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from architectures import VOCABULARY, build
from torch import Tensor
from traced import random_transcoder

import edgewise
from edgewise import EdgewiseError, GateConfig
from edgewise.circuits.edge_patching import scores_with_edges
from edgewise.circuits.heads import patch_heads
from edgewise.circuits.replay import record
from edgewise.circuits.streams import record_edges
from edgewise.models.architecture import decoder_layers
from edgewise.models.linearise import check_traceable, linearise
from edgewise.tasks.pairs import Prompts, score
from edgewise.tracing.graph import build_graph
from edgewise.tracing.target_logits import target_logits

LENGTH, PADDING = 40, 6
CLAIMS = ("loads", "dense", "cache", "heads", "edges", "trace")


@dataclass
class Row:
    """Of each claim: "exact", or the sentence by which it is refused."""

    kind: str
    claims: dict[str, str]
    skipped: str = ""


def row(kind: str, folder: Path) -> Row:
    """Check one architecture."""
    try:
        model: Any = build(kind)
    except Exception as error:
        return Row(kind, {}, skipped=f"transformers cannot build it: {_line(error)}")
    text = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation("eager") if model._can_set_attn_implementation() else None
    claims: dict[str, str] = {}
    try:
        expected = _logits(model, text)
        padded = _padded_logits(model, text)
        hosts_cache = _cache_problem(model, text)
        model.save_pretrained(folder)
    except Exception as error:
        return Row(kind, {}, skipped=f"does not run by itself: {_line(error)}")
    loaded: list[Any] = []
    if not _claim(claims, "loads", lambda: loaded.append(edgewise.load(folder))):
        return Row(kind, claims)
    model = loaded[0]
    _claim(claims, "dense", lambda: _same(model, text, expected, padded))
    twin = edgewise.gate(model, GateConfig("relative", 2.0))
    if hosts_cache:
        claims["cache"] = hosts_cache
    else:
        _claim(claims, "cache", lambda: _cached(twin, text))
    _claim(claims, "heads", lambda: _heads(twin, text[:, :12]))
    _claim(claims, "edges", lambda: _edges(twin, text[:, :12]))
    _claim(claims, "trace", lambda: _trace(twin, text[0, :8]))
    return Row(kind, claims)


def _claim(claims: dict[str, str], name: str, check: Callable[[], None]) -> bool:
    try:
        check()
        claims[name] = "exact"
    except EdgewiseError as error:
        claims[name] = re.sub(r"/\S*/", "", str(error))
        assert "\n" not in claims[name]
    return claims[name] == "exact"


def _logits(model: Any, ids: Tensor, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **kwargs).logits


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _padded_logits(model: Any, text: Tensor) -> Tensor | None:
    """Logits of a batch in which the first text is padded on the left, at real tokens; None if the host takes no padding."""
    mask = torch.ones_like(text)
    mask[0, :PADDING] = 0
    try:
        return _logits(model, text, attention_mask=mask)[mask.bool()]
    except Exception:  # of the host itself
        return None


def _same(model: Any, text: Tensor, expected: Tensor, padded: Tensor | None) -> None:
    _close(_logits(model, text), expected)
    if padded is not None:
        actual = _padded_logits(model, text)
        assert actual is not None
        _close(actual, padded)


def _close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * max(1.0, expected.abs().max().item()))


def _cache_problem(model: Any, text: Tensor) -> str:
    """Why a host is no oracle of cached generation: its own is wrong, or it has none."""
    try:
        _cached(model, text)
    except AssertionError:
        return "cached generation of the host itself is not its uncached one"
    except Exception as error:
        return f"the host itself does not generate with a cache: {_line(error)}"
    return ""


def _cached(twin: Any, text: Tensor) -> None:
    with torch.no_grad():
        first = twin(input_ids=text[:, :20], use_cache=True)
        second = twin(input_ids=text[:, 20:21], past_key_values=first.past_key_values, use_cache=True)
        third = twin(input_ids=text[:, 21:22], past_key_values=second.past_key_values, use_cache=True)
    cached = torch.cat([first.logits, second.logits, third.logits], 1)
    _close(cached, _logits(twin, text[:, :22]))


def _prompts(text: Tensor) -> Prompts:
    corrupt = text.clone()
    corrupt[:, 3:] = text.flip(0)[:, 3:]
    corrupt[:, -1] = text[:, -1]
    last = torch.full((len(text),), text.shape[1] - 1)
    return Prompts(text, corrupt, last, torch.tensor([[5, 7], [8, 2]]), torch.tensor([[1.0, -1.0]] * 2))


def _heads(twin: Any, text: Tensor) -> None:
    prompts = _prompts(text)
    replay = record(twin, prompts, "logit difference")
    patched = patch_heads(replay, replay.clean, replay.corrupt, 2**28)  # [layers, heads, n]
    with edgewise.tap(twin, read=["outputs"]) as taps:
        _logits(twin, prompts.corrupt)
    corrupt = taps.last["outputs"]
    for layer, head in ((0, 1), (len(corrupt) - 1, corrupt[0].shape[1] - 1)):

        def edit(at: int, y: Tensor, layer: int = layer, head: int = head) -> Tensor | None:
            if at != layer:
                return None
            y = y.clone()
            y[:, head] = corrupt[layer][:, head]
            return y

        with edgewise.tap(twin, edit={"outputs": edit}):
            expected = score(_logits(twin, text)[:, -1], prompts, "logit difference")
        _close(patched[layer, head], expected)


def _edges(twin: Any, text: Tensor) -> None:
    replay = record(twin, _prompts(text), "logit difference")
    runs = record_edges(replay)
    all_edges = runs.wiring.exists.expand(replay.n, -1, -1)
    _close(scores_with_edges(runs, all_edges), replay.clean.scores)
    _close(scores_with_edges(runs, ~all_edges & False), replay.corrupt.scores)


@torch.no_grad()
def _trace(twin: Any, ids: Tensor) -> None:
    check_traceable(twin)
    linear = linearise(twin, ids)
    transcoder = random_transcoder(len(decoder_layers(twin)), linear.width)
    logits = target_logits(twin, linear.logits, linear.logits.topk(3).indices, linear.logit_scale)
    assert build_graph(linear, transcoder, logits).closure < 1e-4
