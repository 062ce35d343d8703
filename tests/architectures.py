"""A tiny random model of every causal architecture that the installed transformers has, from its config class alone."""

import dataclasses
import warnings
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY, CONTEXT, WINDOW, LAYERS = 97, 64, 9, 4
_PLACEHOLDERS = {
    name: VOCABULARY + number
    for number, name in enumerate(
        ("image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "boa_token_id")
    )
}
"""Tokens in the place of what is no text: beyond those of the tests' texts."""

SMALL: dict[str, Any] = {
    **_PLACEHOLDERS,
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), VOCABULARY + len(_PLACEHOLDERS)),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "d_inner"), 48),
    **dict.fromkeys(("ffn_hidden_size", "dim_ff", "feed_forward_size", "inner_size", "dff"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_decoder_layers", "num_encoder_layers", "max_window_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "kv_channels", "v_head_dim", "qk_nope_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), CONTEXT),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "forced_eos_token_id"), 0),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_expert"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "topk_group", "n_group"), 1),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("initializer_range", "init_std", "initializer_factor"), 0.2),
    "is_decoder": True, "num_experts_per_tok": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "rotary_dim": 8,
    "index_topk": 6, "index_n_heads": 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8,
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "state_size": 8, "mamba_dt_rank": 4, "mamba_d_ssm": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
"""Small values of config fields; a type's config takes those that it has."""

_MLA = {"num_key_value_heads": 4}
_INDEXER = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2,
}  # fmt: skip
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"), _MLA
    ),
    **dict.fromkeys(("minicpm3", "kimi_linear", "youtu", "mistral_large4", "hy_v4"), _MLA),
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_block_size": 4,
        "index_topk_blocks": 2,
        "index_n_heads": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "zaya": {"num_experts_per_tok": 1},
    "blt": {"encoder_hash_byte_group_vocab": 97, "patch_in_forward": False},
    "blt_local_encoder": {"hidden_size_global": 32},
    "blt_local_decoder": {"hidden_size_global": 32},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 24, "moe_num_experts": 4},
    },
    "gemma4_unified_vision": {
        "patch_size": 2,
        "pooling_kernel_size": 1,
        "mm_embed_dim": 16,
        "mm_posemb_size": 8,
        "output_proj_dims": 16,
    },
    "gemma4_unified_audio": {"audio_embed_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"num_layers": 2, "num_hidden_layers": None, "num_key_value_heads": None, "head_dim": 4},
    "moshi": {"audio_vocab_size": 32, "audio_encoder_config": None},
    "qwen4_exp": _INDEXER,
    "qwen4_exp_text": _INDEXER,
    "reformer": {
        "attn_layers": ["local", "local"],
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "gemma4_text": {
        "global_head_dim": 16,
        "layer_types": _ALTERNATING,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    },
}
"""What a type needs beside `SMALL`."""
MAX_PARAMETERS = 14_000_000


def config_of(kind: str, **changes: Any) -> PretrainedConfig:
    """A small config of a model type; configs that it holds (text, vision) are small too."""
    return _small(CONFIG_MAPPING[kind], OVERRIDES.get(kind, {}) | changes)


def _small(cls: Any, changes: dict[str, Any]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    other_names: dict[str, str] = getattr(cls, "attribute_map", {})
    given = {name: value for name, value in SMALL.items() if name in fields or name in other_names}
    held = (getattr(cls, "sub_configs", None) or {}) | (getattr(cls, "sub_configs_defaults", None) or {})
    for name, sub in held.items():
        kind = getattr(sub, "model_type", None)
        if name in fields and name not in changes and kind in CONFIG_MAPPING:
            given[name] = config_of(kind).to_dict()
        elif name in fields and name not in changes and isinstance(sub, type):
            given[name] = _small(sub, OVERRIDES.get(kind, {})).to_dict()
    given = {name: value for name, value in (given | changes).items() if value is not None}
    return cls(**given)


def build(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random model in eval mode whose norms and biases are not trivial."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config: Any = config_of(kind)
        config.get_text_config(decoder=True).use_cache = True
        with torch.device("meta"):
            size = AutoModelForCausalLM.from_config(config).num_parameters()
        if size > MAX_PARAMETERS:
            raise ValueError(f"the smallest config found has {size:,} parameters")
        model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "norm" in name and parameter.ndim == 1:
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    return model.eval()


ARCHITECTURES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
