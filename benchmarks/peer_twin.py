"""A sparse twin opened in another library: does it run its gates? Run by bench.py in an environment that has the library.

    python benchmarks/peer_twin.py transformers|transformer_lens|nnsight

Prints how far the logits that come out are from the twin's and from the dense model's, how often the attention function that
the twin registered with transformers was called in that one run, and how many layers there are to call it.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import edgewise
from edgewise.gating.attention_interface import NAME

GATE = edgewise.GateConfig("relative", b=2.3)  # cuts attention weights below exp(-2.3) = 10 %
PROMPT = 'The opposite of " large " is "'


def plain(twin: PreTrainedModel, ids: Tensor, folder: str) -> Tensor:
    return twin(input_ids=ids).logits


def transformer_lens(twin: PreTrainedModel, ids: Tensor, folder: str) -> Tensor:
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore

    return TransformerBridge.boot_transformers(folder, hf_model=twin).eval()(ids)


def nnsight(twin: PreTrainedModel, ids: Tensor, folder: str) -> Tensor:
    from nnsight import NNsight  # pyright: ignore

    model: Any = NNsight(twin)
    with model.trace(input_ids=ids):
        logits = model.lm_head.output.save()
    return logits  # noqa: RET504 (it has a value only once the trace is over)


WAYS: dict[str, Callable[[PreTrainedModel, Tensor, str], Tensor]] = {
    "transformers": plain,
    "transformer_lens": transformer_lens,
    "nnsight": nnsight,
}


def count_calls(name: str) -> list[None]:
    """Grows by one with every call of an attention function that is registered with transformers."""
    calls: list[None] = []
    own = ALL_ATTENTION_FUNCTIONS[name]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return own(*args, **kwargs)

    AttentionInterface.register(name, counted)
    return calls


def main() -> None:
    tokenizer = edgewise.load_tokenizer("pocket")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids  # [1, t]
    dense, twin = edgewise.load("pocket"), edgewise.gate(edgewise.load("pocket"), GATE)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        of_dense, of_twin = dense(input_ids=ids).logits, twin(input_ids=ids).logits
        edgewise.save(dense, folder, tokenizer)  # TransformerLens looks the architecture up in it
        calls = count_calls(NAME)
        logits = WAYS[sys.argv[1]](twin, ids, folder)

    def gap(other: Tensor) -> float:
        return (logits - other).abs().max().item()

    gaps = {"from_twin": gap(of_twin), "from_dense": gap(of_dense)}
    print(json.dumps({**gaps, "calls": len(calls), "layers": twin.config.num_hidden_layers}))


if __name__ == "__main__":
    main()
