"""The same patching by nnsight, run by bench.py in an environment that has it: prints what it cost, and the scores.

One trace a head: its part of what enters the attention's output projection is replaced by that of the clean run.
"""

import json
import sys
from pathlib import Path
from typing import Any

import nnsight  # pyright: ignore
import torch
from measure import cost
from torch import Tensor
from transformers import AutoModelForCausalLM


def main() -> None:
    folder = Path(sys.argv[1])
    given = torch.load(folder / "pairs.pt")
    host = AutoModelForCausalLM.from_pretrained(folder).eval()
    model: Any = nnsight.NNsight(host)
    layers, heads, width = host.config.n_layer, host.config.n_head, host.config.n_embd // host.config.n_head

    def metric(logits: Tensor) -> Tensor:  # [n, t, vocabulary] -> []
        answers = logits[torch.arange(len(logits)), given["last"]].gather(1, given["columns"])
        return (answers * given["signs"]).sum(-1).mean()

    def patch() -> list[list[float]]:
        with model.trace(input_ids=given["clean"]):
            clean = nnsight.save([block.attn.c_proj.input for block in model.transformer.h])
        scores = torch.zeros(layers, heads)
        for layer in range(layers):
            for head in range(heads):
                columns = slice(head * width, (head + 1) * width)
                with model.trace(input_ids=given["corrupt"]):
                    outputs = model.transformer.h[layer].attn.c_proj.input  # [n, t, heads * d]
                    outputs[..., columns] = clean[layer][..., columns]
                    score = nnsight.save(metric(model.lm_head.output))
                scores[layer, head] = score
        return scores.tolist()

    with torch.no_grad():
        host(given["clean"])  # warm up
        scores, spent = cost(patch)
    print(json.dumps({**spent._asdict(), "scores": scores}))


if __name__ == "__main__":
    main()
