"""Tiny random host models of many architectures, with weights large enough for attention to be far from uniform."""

import torch
from transformers import PreTrainedModel
from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM
from transformers.models.gemma3 import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt_neox import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.mistral import MistralConfig, MistralForCausalLM
from transformers.models.olmo2 import Olmo2Config, Olmo2ForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from edgewise.gating.edge_gate import gates_of

VOCABULARY, CONTEXT, WINDOW = 97, 64, 7
_COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip
_GROUPED = {**_COMMON, "num_key_value_heads": 2}

HOSTS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_COMMON)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_COMMON)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, head_dim=16)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**_GROUPED)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_GROUPED, head_dim=8, sliding_window=WINDOW)),
}


def host(kind: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return HOSTS[kind]().eval()


def with_null_value(twin: PreTrainedModel) -> PreTrainedModel:
    """Fill the null values with random numbers."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for gate in gates_of(twin):
            assert gate.null_value is not None
            gate.null_value.copy_(torch.randn(gate.null_value.shape, generator=generator))
    return twin


def soft_capped() -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**_GROUPED, head_dim=8, sliding_window=WINDOW)).eval()


def text(batch: int = 2, length: int = 24, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side: str, batch: int = 2, length: int = 24, pads: int = 6) -> torch.Tensor:
    """[batch, length], 1 for real tokens; the first text is `pads` tokens shorter."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if side == "left":
        mask[0, :pads] = 0
    if side == "right":
        mask[0, -pads:] = 0
    return mask
