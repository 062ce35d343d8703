"""The layout in which the paper's authors publish sparse models: a nanoGPT state dict, `final.pth`, and nothing else.

It is evaluated as softmax(s) * (s > 0), the `score` gate with b = 0. nanoGPT is GPT-2 with two differences that matter here:
linear weights are stored the other way round, and the vocabulary is padded to 50,304 for speed.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.weights import check_finite

PADDED_VOCABULARY, GPT2_VOCABULARY = 50_304, 50_257
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_HEAD_WIDTH = 64  # of every published GPT-2; a state dict does not say how many heads it has


def load_nanogpt(path: Path) -> GPT2LMHeadModel:
    """Read `final.pth` as a GPT-2 of transformers. Executes no code from the file."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # truncated, not a pickle, a pickle with code in it
        raise EdgewiseError(f"{path} is damaged or is not a plain state dict: {first_line(error)}") from error
    try:
        return _convert(path, content)
    except EdgewiseError:
        raise
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
        raise EdgewiseError(f"{path} is not in the nanoGPT layout: {first_line(error)}") from error


def _convert(path: Path, content: Any) -> GPT2LMHeadModel:
    arguments = content.get("model_args") or {}
    state = content.get("model", content)
    state = {
        str(key).removeprefix("_orig_mod."): value
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    if "transformer.wte.weight" not in state or "transformer.wpe.weight" not in state:
        raise EdgewiseError(f"{path} is not in the nanoGPT layout: it has no transformer.wte.weight")
    vocabulary, width = state["transformer.wte.weight"].shape
    heads = arguments.get("n_head") or (width // _HEAD_WIDTH if width % _HEAD_WIDTH == 0 else 0)
    if not heads:
        raise EdgewiseError(
            f"{path}: width {width} is not a multiple of {_HEAD_WIDTH} and no model_args say how many heads there are"
        )
    config = GPT2Config(
        vocab_size=GPT2_VOCABULARY if vocabulary == PADDED_VOCABULARY else vocabulary,
        n_positions=state["transformer.wpe.weight"].shape[0],
        n_embd=width,
        n_layer=1 + max(int(key.split(".")[2]) for key in state if key.startswith("transformer.h.")),
        n_head=heads,
        activation_function="gelu",  # nanoGPT's nn.GELU; GPT-2 itself uses the tanh approximation
        bos_token_id=None if vocabulary < GPT2_VOCABULARY else 50_256,
        eos_token_id=None if vocabulary < GPT2_VOCABULARY else 50_256,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    wanted = model.state_dict()
    check_finite(str(path), state)
    converted = {}
    for key, like in wanted.items():
        if key == "lm_head.weight":
            value = state.get(key, state["transformer.wte.weight"])[: config.vocab_size]
        elif key == "transformer.wte.weight":
            value = state[key][: config.vocab_size]
        elif key in state:
            value = state[key].t() if key.endswith(_TRANSPOSED) else state[key]
        elif key.endswith(".bias"):  # nanoGPT can be trained without biases
            value = torch.zeros_like(like)
        else:
            raise EdgewiseError(f"{path} lacks {key}; is the file complete?")
        if value.shape != like.shape:
            raise EdgewiseError(f"{path}: {key} has shape {list(value.shape)}, expected {list(like.shape)}")
        converted[key] = value.to(like.dtype)
    model.load_state_dict(converted)
    return model.eval()
