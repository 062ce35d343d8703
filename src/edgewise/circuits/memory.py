"""Memory of a search: how many patched prompts fit at once, and the projected peak."""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.wiring import Wiring
from edgewise.measure.memory import activation_elements, projected_peak
from edgewise.models.architecture import mlp_width


def bytes_per_copy(replay: Replay) -> int:
    """Estimated bytes of one patched prompt while it passes a layer, with its copy of the prefix's keys and values."""
    hidden = replay.clean.hidden[0]
    t, width, size = hidden.shape[1], hidden.shape[2], hidden.element_size()
    heads = replay.clean.outputs[0].shape[1]
    prefix = sum(x[0].numel() for keys_values in replay.prefix for x in keys_values)
    return size * (activation_elements(t, width, mlp_width(replay.model), heads, replay.first) + prefix)


def copies_at_once(replay: Replay, max_memory: int) -> int:
    """Patched prompts that fit into `max_memory` bytes, at least one."""
    return max(1, max_memory // bytes_per_copy(replay))


def in_chunks(replay: Replay, size: int) -> list[tuple[Tensor, Replay]]:
    """The recorded runs in chunks of at most `size` prompts, each with the numbers of its prompts."""
    if size >= replay.n:
        return [(torch.arange(replay.n), replay)]
    return [(chunk, replay.select(chunk)) for chunk in torch.arange(replay.n).split(size)]


def token_edges_at_once(replay: Replay, max_memory: int) -> int:
    """Prompts whose attention maps fit, in the copies that attribution and patching make of them."""
    heads, t = replay.clean.outputs[0].shape[1:3]
    maps = len(replay.clean.outputs) * heads * (t + replay.first) ** 2
    return max(1, max_memory // (10 * 4 * maps + bytes_per_copy(replay)))


class EdgeChunks(NamedTuple):
    """How the prompts of a search for edges are split."""

    size: int
    """Prompts of a chunk."""
    keeps_streams: bool
    """Whether the corrupt streams of all chunks fit; else they are recorded again for every pass over the prompts."""


def edge_chunks(replay: Replay, wiring: Wiring, max_memory: int) -> EdgeChunks:
    """The largest chunks that fit into `max_memory` bytes; streams are kept unless that takes more than half of it."""
    per_prompt = bytes_per_prompt(replay, wiring)
    size = max(1, max_memory // per_prompt)
    if size >= replay.n:
        return EdgeChunks(replay.n, True)
    streams = replay.n * stream_bytes(replay, wiring)
    if streams <= max_memory // 2:
        return EdgeChunks(max(1, (max_memory - streams) // per_prompt), True)
    return EdgeChunks(size, False)


def bytes_per_prompt(replay: Replay, wiring: Wiring) -> int:
    """Bytes of one prompt while its edges are attributed or patched."""
    hidden = replay.clean.hidden[0]
    inputs = max(layer.inputs for layer in wiring.layers)
    activations = hidden.element_size() * edge_elements(hidden[0].numel(), len(wiring.sources), inputs)
    return activations + 16 * wiring.exists.numel() + bytes_per_copy(replay)


def stream_bytes(replay: Replay, wiring: Wiring) -> int:
    """Bytes of one prompt's corrupt stream: what sources write, and what attention, MLPs and logits read."""
    hidden = replay.clean.hidden[0]
    return hidden.element_size() * hidden[0].numel() * (len(wiring.sources) + 2 * len(wiring.layers) + 1)


def edge_elements(stream: int, sources: int, inputs: int) -> int:
    """Activation elements per prompt: three copies of what every source writes, six of what a layer's inputs read, each of
    `stream` elements."""
    return stream * (3 * sources + 6 * inputs)


def edge_score_bytes(prompts: int, grid: int, edges: int) -> int:
    """Bytes of the scores, [sources, targets] = `grid` elements, and ranks of all edges, held for all prompts."""
    return prompts * (8 * grid + 20 * edges)


def peak_memory(replay: Replay, wiring: Wiring | None, max_memory: int) -> int:
    """Projected peak memory of the process, in bytes, while it searches for heads and, given their wiring, edges."""
    heads = replay.clean.outputs[0].shape[1] * replay.n
    needed = min(copies_at_once(replay, max_memory), heads) * bytes_per_copy(replay)
    if wiring is not None:
        size, keeps_streams = edge_chunks(replay, wiring, max_memory)
        kept = (replay.n - size) * stream_bytes(replay, wiring) if keeps_streams else 0
        scores = edge_score_bytes(replay.n, wiring.exists.numel(), wiring.count)
        chunk = min(size, replay.n) * bytes_per_prompt(replay, wiring)
        needed = max(needed, chunk + kept + scores)
    return projected_peak(needed)
