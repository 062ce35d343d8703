"""Contexts of the kept features: where in other text they are most active, and which tokens they promote."""

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.tracing.schema import Node
from edgewise.training.transcoder.features import Context, feature_text, promoted_tokens, top_contexts
from edgewise.training.transcoder.transcoder import Transcoder

N_CONTEXTS = 4
"""Contexts, raised and lowered tokens of each feature."""
CONTEXT_TOKENS = 32_768
"""Tokens of text to search."""


def feature_contexts(
    model: PreTrainedModel,
    name: str,
    transcoder: Transcoder,
    nodes: list[Node],
    tokenizer: PreTrainedTokenizerBase,
    data: tuple[str, ...] | None,
) -> dict[str, dict[str, Any]]:
    """Contexts and promoted tokens of each feature among the nodes, by layer_number; empty without text."""
    with torch.device("cpu"):  # text is read there; a trace makes new tensors where its model is
        text = feature_text(name, data, CONTEXT_TOKENS, tokenizer)
    features = sorted({(node.layer, node.number) for node in nodes if node.kind == "feature"})
    if text is None or not features:
        return {}
    contexts = top_contexts(model, transcoder, text, features, N_CONTEXTS, tokenizer=tokenizer)
    described = {}
    for layer, number in features:
        promoted = promoted_tokens(model, transcoder, layer, number, N_CONTEXTS)
        described[f"{layer}_{number}"] = {
            "contexts": [_context(context) for context in contexts[layer, number]],
            "raised": [(tokenizer.decode([i]), value) for i, value in promoted.raised],
            "lowered": [(tokenizer.decode([i]), value) for i, value in promoted.lowered],
        }
    return described


def _context(context: Context) -> dict[str, Any]:
    return {
        "tokens": context.tokens,
        "activations": [round(a, 3) for a in context.activations],
        "peak": context.peak,
    }
