"""Text in a model's own words: sampled from it, at temperature 1, as a JSONL file that `edgewise sparsify --data` reads.

    python benchmarks/sample.py MODEL runs/stories.jsonl --tokens 2M

For a model whose training text is not at hand, its own samples are the text it knows best. Each sample begins with the token
that begins a text and ends where the model ends it, or at the model's context. The file grows as samples are made; asked for
more, it goes on where it stopped, with other random numbers.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import tyro
from rich.progress import track
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from edgewise.posttraining.config import count

GROUP = 128


@dataclass(frozen=True)
class Sample:
    """Sample text from a model."""

    model: Annotated[str, tyro.conf.Positional]
    out: Annotated[Path, tyro.conf.Positional]
    tokens: str = "2M"
    rows: int = 128
    """Samples made together."""
    seed: int = 0


@torch.no_grad()
def sample(model: PreTrainedModel, ids: Tensor, length: int) -> Tensor:  # [rows, 1] -> [rows, length]
    cache = DynamicCache(config=model.config)
    for _ in range(length - 1):
        logits = model(input_ids=ids[:, -1:], past_key_values=cache).logits[:, -1]
        ids = torch.cat([ids, draw(logits)], -1)
    return ids


def draw(logits: Tensor) -> Tensor:  # [rows, vocabulary] -> [rows, 1]
    """By inverting cumulated probabilities, first of groups and then within one: on a large vocabulary that is ten times as
    fast as torch.multinomial, which takes longer than the model."""
    rows, vocabulary = logits.shape
    padded = F.pad(logits, (0, -vocabulary % GROUP), value=-torch.inf)
    weights = (padded - padded.amax(-1, keepdim=True)).exp().unflatten(-1, (-1, GROUP))
    group = _place(weights.sum(-1))
    return group * GROUP + _place(weights[torch.arange(rows), group[:, 0]])


def _place(weights: Tensor) -> Tensor:  # [rows, n] -> [rows, 1]
    upto = weights.double().cumsum(-1)
    return torch.searchsorted(upto, torch.rand(len(upto), 1, dtype=upto.dtype) * upto[:, -1:])


@torch.no_grad()
def main(asked: Sample) -> None:
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    model = AutoModelForCausalLM.from_pretrained(asked.model).eval()
    context = model.config.max_position_embeddings
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id} - {None}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    known = sum(1 for _ in asked.out.open()) if asked.out.exists() else 0
    batches = range(known // asked.rows, -(-count(asked.tokens) // (asked.rows * context)))
    with asked.out.open("a") as file:
        for batch in track(batches, "sampling"):
            torch.manual_seed(asked.seed + batch)
            ids = sample(model, torch.full((asked.rows, 1), first), context)
            for row in ids[:, 1:].tolist():
                text = row[: next((i for i, token in enumerate(row) if token in ends), len(row))]
                file.write(json.dumps({"text": tokenizer.decode(text)}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(tyro.cli(Sample))
