"""The same patching by edgewise, in a process of its own like its rivals: prints what it cost, and the scores."""

import json
import sys
from pathlib import Path

import torch
from measure import cost
from patching import ours
from transformers import AutoModelForCausalLM

import edgewise
from edgewise.tasks.pairs import Prompts


def main() -> None:
    folder = Path(sys.argv[1])
    given = Prompts(**torch.load(folder / "pairs.pt"))
    model = edgewise.install(AutoModelForCausalLM.from_pretrained(folder).eval())
    with torch.no_grad():
        model(given.clean)  # warm up
    (_, scores), spent = cost(lambda: ours(model, given))
    print(json.dumps({**spent._asdict(), "scores": scores.tolist()}))


if __name__ == "__main__":
    main()
