"""Attention maps of all heads on a task's first prompts, quantised to eight bits, for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_arrays, write_json
from edgewise.core.schema import read_arrays, read_as
from edgewise.gating.tap import tap
from edgewise.tasks import Pair, Task
from edgewise.tasks.pairs import SEARCHED

STEM = "prompt-maps"
MAX_PROMPTS = 16
MAX_TOKENS = 256
"""Longer prompts are left out: their maps cannot be read."""


@dataclass(frozen=True)
class _Saved:
    tokens: list[list[str]]
    examples: list[int] | None = None


@dataclass(frozen=True, eq=False)
class PromptMaps:
    """Attention maps of one or two models on the same prompts."""

    tokens: list[list[str]]
    """Of each prompt, as text."""
    maps: list[list[np.ndarray]]
    """Of each model and prompt, as `quantise` packs them, uint8 [layers, heads, t (t + 1) / 2]."""
    examples: list[int] | None = None
    """Which of the circuit's examples each prompt is; the first ones if not given."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write prompt-maps.json and prompt-maps.safetensors."""
        path = Path(folder) / f"{STEM}.json"
        arrays = {f"{m}.{p}": x for m, of_model in enumerate(self.maps) for p, x in enumerate(of_model)}
        return [
            write_arrays(path.with_suffix(".safetensors"), arrays),
            write_json(path, {"tokens": self.tokens, "examples": self.numbers}, indent=None),
        ]

    @property
    def numbers(self) -> list[int]:
        """Which of the circuit's examples each prompt is."""
        return list(range(len(self.tokens))) if self.examples is None else self.examples

    @classmethod
    def load(cls, folder: str | Path) -> "PromptMaps":
        """Read the two files from a folder."""
        path = Path(folder) / f"{STEM}.json"
        saved = read_as(_Saved, path, "maps of prompts")
        tokens = saved.tokens
        arrays = read_arrays(path.with_suffix(".safetensors"), "maps of prompts")
        models = len(arrays) // max(1, len(tokens))
        names = [[f"{m}.{p}" for p in range(len(tokens))] for m in range(models)]
        if {name for of_model in names for name in of_model} != arrays.keys():
            raise EdgewiseError(f"{path} and its arrays do not belong together")
        maps = cls(tokens, [[arrays[name] for name in of_model] for of_model in names], saved.examples)
        if len(maps.numbers) != len(tokens) or min(maps.numbers, default=0) < 0:
            raise EdgewiseError(f"{path} does not say which example each prompt is")
        for of_model in maps.maps:
            for prompt, quantised in zip(tokens, of_model, strict=True):
                if quantised.ndim != 3 or quantised.shape[-1] != len(prompt) * (len(prompt) + 1) // 2:
                    raise EdgewiseError(
                        f"{path}: a prompt has {len(prompt)} tokens, and its maps have others"
                    )
        return maps


@torch.no_grad()
def read_maps(model: PreTrainedModel, task: Task) -> list[np.ndarray]:
    """Attention maps on the first clean prompts that are searched on, quantised."""
    maps = []
    for pair in _pairs(task):
        ids = torch.tensor([pair.clean_ids], device=model.device)
        with tap(model, read=["weights"]) as attention:
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
        layers = attention.last["weights"]
        weights = torch.stack([layers[i][0] for i in sorted(layers)])
        maps.append(quantise(weights.float().cpu().numpy()))
    return maps


def prompt_tokens(task: Task, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """The tokens of the prompts whose maps are read, as text."""
    decoder: Any = tokenizer
    return [[decoder.decode([i]) for i in pair.clean_ids] for pair in _pairs(task)]


def quantise(weights: np.ndarray) -> np.ndarray:  # [..., t, t] -> uint8 [..., t (t + 1) / 2]
    """The lower triangle row by row, 255 for a weight of 1. An open edge is at least 1, however small its weight."""
    rows, columns = np.tril_indices(weights.shape[-1])
    lower = weights[..., rows, columns]
    quantised = np.where(lower > 0, np.clip(np.rint(255 * lower), 1, 255), 0).astype(np.uint8)
    # indexing has changed the order in memory, which safetensors ignores
    return np.ascontiguousarray(quantised)


def example_numbers(task: Task) -> list[int]:
    """Which of the examples, in the order of `searched_pairs`, have their maps read."""
    pairs = searched_pairs(task)[:MAX_PROMPTS]
    return [number for number, pair in enumerate(pairs) if len(pair.clean_ids) <= MAX_TOKENS]


def searched_pairs(task: Task) -> list[Pair]:
    """The prompts that are searched on: not those that are held out."""
    return [task.pairs[i] for split, numbers in task.splits.items() if split in SEARCHED for i in numbers]


def _pairs(task: Task) -> Sequence[Pair]:
    pairs = searched_pairs(task)
    return [pairs[number] for number in example_numbers(task)]
