"""Small models with a random transcoder and their attribution graphs, for tests of tracing."""

from typing import Any

import pytest
import torch
from hosts import host, text, with_null_value

import edgewise
from edgewise.models.linearise import linearise
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.target_logits import target_logits
from edgewise.training.transcoder.config import Decoders
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

KINDS = ("gpt2", "llama", "gpt_neox")
LENGTH = 7


def random_transcoder(
    layers: int, width: int, features: int = 12, decoders: Decoders = "cross-layer"
) -> Transcoder:
    transcoder = Transcoder(TranscoderInfo("random", False, [], layers, features, width, decoders), seed=3)
    with torch.no_grad():
        transcoder.encoder_bias.copy_(
            torch.randn(layers, features, generator=torch.Generator().manual_seed(4)) - 0.5
        )
        transcoder.decoder_bias.normal_(generator=torch.Generator().manual_seed(5))
        transcoder.input_scale.copy_(torch.linspace(0.7, 1.3, layers))
        transcoder.output_scale.copy_(torch.linspace(1.5, 0.5, layers))
    return transcoder


def model_and_graph(kind: str, gated: bool) -> tuple[Any, Graph]:
    """A small model, gated or not, and the attribution graph of a random prompt."""
    model = edgewise.install(host(kind))
    if gated:
        has_null_value = kind != "gpt_neox"
        model = edgewise.gate(model, edgewise.GateConfig("relative", b=2.0, null_value=has_null_value))
        model = with_null_value(model) if has_null_value else model
    ids = text(1, LENGTH)[0]
    with torch.no_grad():
        linear = linearise(model, ids)
        transcoder = random_transcoder(len(linear.layers), linear.width)
        logits = target_logits(model, linear.logits, linear.logits.topk(3).indices)
        return model, build_graph(linear, transcoder, logits)


every_model = pytest.mark.parametrize(
    ("kind", "gated"), [(kind, gated) for kind in KINDS for gated in (False, True)]
)
