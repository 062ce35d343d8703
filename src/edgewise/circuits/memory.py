"""How much of a model's work fits into a given amount of memory."""

import torch
from torch import Tensor

from edgewise.circuits.edges import Wiring
from edgewise.circuits.replay import Replay
from edgewise.measure.evaluation import numbers_of_row, width_inside_mlps
from edgewise.measure.memory import most_with


def bytes_per_row(replay: Replay) -> int:
    """What one prompt needs while it passes a layer, with its copies of earlier keys and values: an estimate."""
    hidden = replay.clean.hidden[0]
    t, width, size = hidden.shape[1], hidden.shape[2], hidden.element_size()
    inner = width_inside_mlps(replay.model)
    heads = replay.clean.outputs[0].shape[1]
    before = sum(x[0].numel() for pair in replay.prefix for x in pair)
    return size * (numbers_of_row(t, width, inner, heads, replay.first) + before)


def rows_at_once(replay: Replay, max_memory: int) -> int:
    """Patched prompts that fit into so many bytes; at least one is run whatever it takes."""
    return max(1, max_memory // bytes_per_row(replay))


def in_parts(replay: Replay, max_memory: int) -> list[tuple[Tensor, Replay]]:
    """The prompts in parts of which one copy fits, each with the numbers of its prompts."""
    size = rows_at_once(replay, max_memory)
    if size >= replay.n:
        return [(torch.arange(replay.n), replay)]
    return [(chunk, replay.of_prompts(chunk)) for chunk in torch.arange(replay.n).split(size)]


def token_edges_at_once(replay: Replay, max_memory: int) -> int:
    """Prompts of which all attention maps fit, some times over."""
    heads, t = replay.clean.outputs[0].shape[1:3]
    maps = len(replay.clean.outputs) * heads * (t + replay.first) ** 2
    return max(1, max_memory // (10 * 4 * maps + bytes_per_row(replay)))


def prompts_at_once(replay: Replay, wiring: Wiring, max_memory: int) -> int:
    """Prompts of which all edges fit."""
    return max(1, max_memory // bytes_per_prompt(replay, wiring))


def bytes_per_prompt(replay: Replay, wiring: Wiring) -> int:
    """All that is there of one prompt while its edges are attributed."""
    hidden = replay.clean.hidden[0]
    inputs = max(place.inputs for place in wiring.places)
    passed = hidden.element_size() * numbers_of_edges(hidden[0].numel(), len(wiring.sources), inputs)
    return passed + 16 * wiring.exists.numel() + bytes_per_row(replay)


def numbers_of_edges(stream: int, sources: int, inputs: int) -> int:
    """What every source writes, and what every input of a layer reads, some times over; `stream` is the size of one."""
    return stream * (3 * sources + 6 * inputs)


def bytes_of_scores(prompts: int, grid: int, edges: int) -> int:
    """Scores and ranks of all edges, which are kept for all prompts."""
    return prompts * (8 * grid + 20 * edges)


def peak(replay: Replay, wiring: Wiring | None, max_memory: int) -> int:
    """The most that a search will take, with what the process holds already: of heads or, with their wiring, of
    edges."""
    heads = replay.clean.outputs[0].shape[1] * replay.n
    most = min(rows_at_once(replay, max_memory), heads) * bytes_per_row(replay)
    if wiring is not None:
        at_once = min(prompts_at_once(replay, wiring, max_memory), replay.n)
        scores = bytes_of_scores(replay.n, wiring.exists.numel(), wiring.count)
        most = max(most, at_once * bytes_per_prompt(replay, wiring) + scores)
    return most_with(most)
