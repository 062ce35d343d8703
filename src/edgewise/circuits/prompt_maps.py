"""Attention maps of a task's first prompts, of all heads, in eight bits: what a reader leafs through beside a circuit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.tap import tap
from edgewise.tasks import Task

STEM = "prompt-maps"
PROMPTS = 16
LONGEST = 256
"""Tokens: a longer map cannot be read."""


@dataclass(frozen=True, eq=False)
class PromptMaps:
    """All heads of one or two models on the same prompts."""

    tokens: list[list[str]]
    maps: list[list[np.ndarray]]
    """Of each model and prompt, uint8 [L, heads, t (t + 1) / 2]: the lower triangle row by row, 255 for a weight of 1. An
    open edge is never 0, however small its weight."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write prompt-maps.json and prompt-maps.safetensors."""
        paths = [Path(folder) / f"{STEM}.{ending}" for ending in ("json", "safetensors")]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(json.dumps({"tokens": self.tokens}) + "\n")
        arrays = {f"{m}.{p}": each for m, of_model in enumerate(self.maps) for p, each in enumerate(of_model)}
        save_file(arrays, paths[1])
        return paths

    @classmethod
    def load(cls, folder: str | Path) -> "PromptMaps":
        """Read what `save` wrote."""
        path = Path(folder) / f"{STEM}.json"
        try:
            tokens = json.loads(path.read_text())["tokens"]
            arrays = load_file(path.with_suffix(".safetensors"))
            models = len(arrays) // len(tokens)
            return cls(tokens, [[arrays[f"{m}.{p}"] for p in range(len(tokens))] for m in range(models)])
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, SafetensorError) as error:
            raise EdgewiseError(f"{folder} holds no maps of prompts: {first_line(error)}") from error


@torch.no_grad()
def read_maps(model: PreTrainedModel, task: Task) -> list[np.ndarray]:
    """Of the task's first prompts."""
    found = []
    for pair in _shown(task):
        ids = torch.tensor([pair.clean_ids], device=model.device)
        with tap(model, read=["weights"]) as seen:
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
        weights = torch.stack([seen.last["weights"][i][0] for i in sorted(seen.last["weights"])])
        found.append(in_eight_bits(weights.float().cpu().numpy()))
    return found


def prompt_tokens(task: Task, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """The tokens of the prompts whose maps are read, as text."""
    decoder: Any = tokenizer
    return [[decoder.decode([i]) for i in pair.clean_ids] for pair in _shown(task)]


def in_eight_bits(weights: np.ndarray) -> np.ndarray:  # [..., t, t] -> uint8 [..., t (t + 1) / 2]
    rows, columns = np.tril_indices(weights.shape[-1])
    lower = weights[..., rows, columns]
    eight = np.where(lower > 0, np.clip(np.rint(255 * lower), 1, 255), 0).astype(np.uint8)
    # picking cells turns the order in memory, which safetensors does not notice
    return np.ascontiguousarray(eight)


def _shown(task: Task) -> Sequence[Any]:
    return [pair for pair in task.pairs[:PROMPTS] if len(pair.clean_ids) <= LONGEST]
