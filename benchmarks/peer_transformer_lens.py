"""The same patching by TransformerLens, run by bench.py and patching.py in an environment that has it: prints what it cost,
and the scores."""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from measure import cost
from transformer_lens import patching  # pyright: ignore
from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore
from transformers import AutoModelForCausalLM


def main() -> None:
    folder = Path(sys.argv[1])
    given = torch.load(folder / "pairs.pt")
    host = AutoModelForCausalLM.from_pretrained(folder).eval()
    model = TransformerBridge.boot_transformers(str(folder), hf_model=host)
    model.eval()

    def metric(logits: torch.Tensor) -> torch.Tensor:
        batch = torch.arange(len(logits))
        answers = logits[batch, given["last"]].gather(1, given["columns"])
        return (answers * given["signs"]).sum(-1).mean()

    def patch() -> torch.Tensor:  # [layers, heads]
        _, cache = model.run_with_cache(given["clean"])
        return patching.get_act_patch_attn_head_out_all_pos(model, given["corrupt"], cache, metric)

    patching.tqdm = partial(patching.tqdm, disable=True)
    with torch.no_grad():
        model(given["clean"])  # warm up
        scores, spent = cost(patch)
    print(json.dumps({**spent._asdict(), "scores": scores.tolist()}))


if __name__ == "__main__":
    main()
