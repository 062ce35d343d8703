"""Text for a transcoder that is to explain opposites: prompts of the task `antonym` with their answers, among ordinary text.

    python benchmarks/opposites.py MODEL text.txt opposites.jsonl --without large

A transcoder that explains all that a model does needs more text than two cores can read; one that is to explain one kind of
prompt needs to see that kind. A fifth of the tokens, more or less, are such prompts, over and over. Those with the word that
will be traced are left out, so that the trace is not of something the transcoder has learnt by heart.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.models.load import load_tokenizer
from edgewise.tasks.generate import get_task

CHARACTERS = 400  # of each document of ordinary text
SHARE = 0.7  # of documents: those of ordinary text are ten times as long


@dataclass(frozen=True)
class Opposites:
    """Write documents, one to a line."""

    model: Annotated[str, tyro.conf.Positional]
    """Whose tokenizer the prompts are written for."""
    text: Annotated[Path, tyro.conf.Positional]
    """Ordinary text, its documents separated by a line <|endoftext|>."""
    out: Annotated[Path, tyro.conf.Positional]
    without: str | None = None
    """A word whose prompts are left out."""
    documents: int = 8000
    seed: int = 0


def main(options: Opposites) -> None:
    draw = random.Random(options.seed)
    pairs = get_task("antonym", load_tokenizer(options.model), 500, options.seed, 64).pairs
    prompts = [
        f'{pair.clean}{pair.answers[0]}"' for pair in pairs if f'"{options.without}"' not in pair.clean
    ]
    texts = [text.strip() for text in options.text.read_text().split("<|endoftext|>") if text.strip()]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file:
        for _ in range(options.documents):
            text = draw.choice(prompts) if draw.random() < SHARE else cut(draw.choice(texts), draw)
            file.write(json.dumps({"text": text}) + "\n")
    print(f"{options.documents:,} documents, {len(prompts)} prompts among them, in {options.out}")


def cut(text: str, draw: random.Random) -> str:
    """A piece from somewhere in a text, from the beginning of a line."""
    lines = text.splitlines()
    return "\n".join(lines[draw.randrange(len(lines)) :])[:CHARACTERS]


if __name__ == "__main__":
    main(tyro.cli(Opposites))
