"""Text in a model's own words: sampled from it, at temperature 1, as a JSONL file that `edgewise sparsify --data` reads.

    python benchmarks/sample.py MODEL runs/stories.jsonl --tokens 2M

For a model whose training text is not at hand, its own samples are the text it knows best. Each sample begins with the token
that begins a text and ends where the model ends it, or at the model's context. The file grows as samples are made; asked for
more, it goes on where it stopped, with other random numbers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
import tyro
from rich.progress import track
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, StaticCache

from edgewise.core.quantities import token_count
from edgewise.training.sparsify.sampled_softmax import Candidates, restricted_to

GROUP = 128
FEW = 64
"""Samples that tell which words are likely."""
CHUNK = 32
"""Tokens after which the cache is extended, and texts that have ended are left out."""


@dataclass(frozen=True)
class Sample:
    """Sample text from a model."""

    model: Annotated[str, tyro.conf.Positional]
    out: Annotated[Path, tyro.conf.Positional]
    tokens: str = "2M"
    rows: int = 512
    """Samples made together."""
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bf16` is faster on processors that have it. The text is then a rounded model's: near enough to train on."""
    words: int | None = None
    """Draw only from so many tokens, those that the model gives most probability to in a few first samples. A model whose
    text is made of few words is faster so: 6144 of stories15M's 32,000 have 99.98 % of it."""


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    first: int,
    rows: int,
    length: int,
    ends: set[int],
    words: Tensor | None = None,  # [W]
    draw: Callable[[Tensor], Tensor] | None = None,
    chunk: int = CHUNK,
) -> list[list[int]]:
    """Texts of at most `length` tokens with the first, up to the token that ends them; in no particular order.

    `draw`: chooses tokens from logits [rows, vocabulary], None for `draw_tokens`.
    """
    draw = draw or draw_tokens
    ids, cache, texts = torch.full((rows, 1), first), None, []
    unembedding = cast(nn.Module, model.get_output_embeddings())
    candidates = Candidates(words, torch.zeros(len(words))) if words is not None else None
    while len(ids):
        end = min(length, ids.shape[1] + chunk)
        cache = _with_room(model, cache, end, torch.arange(len(ids)))
        while ids.shape[1] < end:
            with restricted_to(unembedding, candidates):
                logits = model(input_ids=ids[:, -1:], past_key_values=cache).logits[:, -1]
            drawn = draw(logits)
            ids = torch.cat([ids, drawn if words is None else words[drawn]], -1)
        ended = torch.isin(ids[:, 1:], torch.tensor(sorted(ends))).any(-1) | (ids.shape[1] == length)
        for row in ids[ended, 1:].tolist():
            texts.append(row[: next((i for i, token in enumerate(row) if token in ends), len(row))])
        cache, ids = _with_room(model, cache, end, (~ended).nonzero()[:, 0]), ids[~ended]
    return texts


def _with_room(model: PreTrainedModel, cache: StaticCache | None, length: int, kept: Tensor) -> StaticCache:
    """A cache for so many tokens, with what another has of some rows. One that grows by a token is copied at every token,
    and one that is long from the beginning is read to its end at every token."""
    results = StaticCache(config=model.config, max_cache_len=length)
    for number, layer in enumerate(cache.layers if cache is not None and len(kept) else ()):
        known = int(layer.get_seq_length())  # pyright: ignore
        results.update(layer.keys[kept, :, :known], layer.values[kept, :, :known], number)  # pyright: ignore
    return results


@torch.no_grad()
def likeliest(
    model: PreTrainedModel, texts: list[list[int]], first: int, words: int, ends: set[int]
) -> Tensor:  # -> [words]
    """The tokens that have most probability in these texts, and those that end one."""
    total = torch.zeros(model.config.vocab_size)
    for text in texts:
        total += model(input_ids=torch.tensor([[first, *text]])).logits[0].float().softmax(-1).sum(0)
    total[sorted(ends)] = torch.inf
    return total.topk(min(words, len(total))).indices.sort().values


def draw_tokens(logits: Tensor) -> Tensor:  # [rows, vocabulary] -> [rows, 1]
    """By inverting cumulated probabilities, first of groups and then within one: on a large vocabulary that is ten times as
    fast as torch.multinomial, which takes longer than the model."""
    rows, vocabulary = logits.shape
    weights = (logits - logits.amax(-1, keepdim=True)).float().exp_()
    if vocabulary % GROUP:
        weights = F.pad(weights, (0, -vocabulary % GROUP))
    weights = weights.unflatten(-1, (-1, GROUP))
    group = _place(weights.sum(-1))
    return group * GROUP + _place(weights[torch.arange(rows), group[:, 0]])


def _place(weights: Tensor) -> Tensor:  # [rows, n] -> [rows, 1]
    upto = weights.double().cumsum(-1)
    return torch.searchsorted(upto, torch.rand(len(upto), 1, dtype=upto.dtype) * upto[:, -1:])


@torch.no_grad()
def main(options: Sample) -> None:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    # for one query at a time, plain products are faster than torch's attention
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=dtype, attn_implementation="eager"
    ).eval()
    context = model.config.max_position_embeddings
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id} - {None}
    words = None
    if options.words is not None:
        torch.manual_seed(0)  # whatever the seed: files that are put together have the same words
        words = likeliest(model, sample(model, first, FEW, context, ends), first, options.words, ends)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = sum(1 for _ in options.out.open()) if options.out.exists() else 0
    batches = range(known // options.rows, -(-token_count(options.tokens) // (options.rows * context)))
    with options.out.open("a") as file:
        for batch in track(batches, "sampling"):
            torch.manual_seed(options.seed + batch)
            for text in sample(model, first, options.rows, context, ends, words):
                file.write(json.dumps({"text": tokenizer.decode(text)}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(tyro.cli(Sample))
