"""Per-layer transcoders: cross-layer ones whose decoders to later layers are zero, with fewer weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hosts import host, text
from runs import CONTEXT, ROWS, save_host, save_text
from torch import Tensor
from traced import LENGTH, random_transcoder

import edgewise
from edgewise.models.linearise import linearise
from edgewise.tracing.ablations import Ablation, average_embedding, changes, run_ablated
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.graph_predictions import predicted_effects
from edgewise.tracing.target_logits import target_logits
from edgewise.tracing.total_effects import integrated_effects
from edgewise.training.transcoder.activations import replaced_mlps
from edgewise.training.transcoder.config import TranscoderConfig
from edgewise.training.transcoder.objective import TranscoderObjective
from edgewise.training.transcoder.store import load_transcoder, save_transcoder
from edgewise.training.transcoder.train import train_transcoder
from edgewise.training.transcoder.transcoder import Transcoder


def both(layers: int, width: int) -> tuple[Transcoder, Transcoder]:
    """A per-layer transcoder, and the cross-layer one that computes the same."""
    own = random_transcoder(layers, width, decoders="per-layer")
    cross = random_transcoder(layers, width)
    with torch.no_grad():
        for layer in range(layers):
            cross.decoders[layer].zero_()
            cross.decoders[layer][:, :width] = own.decoders[layer]
    return own, cross


def graphs_of_both(kind: str) -> tuple[object, Graph, Graph]:
    model = edgewise.gate(edgewise.install(host(kind)), edgewise.GateConfig("relative", b=2.0))
    with torch.no_grad():
        linear = linearise(model, text(1, LENGTH)[0])
        logits = target_logits(model, linear.logits, linear.logits.topk(3).indices)
        own, cross = both(len(linear.layers), linear.width)
        return model, build_graph(linear, own, logits), build_graph(linear, cross, logits)


def test_weights_and_outputs():
    own, cross = both(3, 32)
    assert own.config.n_decoders == 3 and cross.config.n_decoders == 6
    assert [list(own.outputs_of(layer)) for layer in range(3)] == [[0], [1], [2]]
    assert all(own.writes(layer).shape == (12, 1, 32) for layer in range(3))
    x, y = torch.randn(3, 5, 32), torch.randn(3, 5, 32)
    torch.testing.assert_close(own.decode(own.encode(x)), cross.decode(cross.encode(x)))
    losses = [
        TranscoderObjective(t, torch.tensor([0.0, 0.5, 1.0]))(x, y, 0.1).total.item() for t in (own, cross)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@torch.no_grad()
def test_replaced_mlps():
    model = edgewise.install(host("llama")).eval()
    linear, ids = linearise(model, text(1, LENGTH)[0]), text(2)
    logits: list[Tensor] = []
    for transcoder in both(len(linear.layers), linear.width):
        with replaced_mlps(model, transcoder):
            logits.append(model(ids).logits)
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_traces(kind: str):
    """Links, predictions, interventions and their parts."""
    model, own, cross = graphs_of_both(kind)
    torch.testing.assert_close(own.adjacency, cross.adjacency)
    torch.testing.assert_close(predicted_effects(own), predicted_effects(cross))
    features = [Ablation(features=(feature,)) for feature in (0, 3, len(own.features) - 1)]
    ablations = [*features, Ablation(heads=((1, 0),)), Ablation(tokens=(2,))]
    parts, measured = [], []
    for graph in (own, cross):
        effects = integrated_effects(model, graph, ablations, 1)
        torch.testing.assert_close(effects.total, effects.measured, rtol=0, atol=1e-4)
        parts.append((effects.values, effects.attention, effects.norms, effects.errors))
        change = changes(graph, ablations, average_embedding(model, graph))
        measured.append(graph.logits.log_odds(run_ablated(model, graph, change)))
    torch.testing.assert_close(*parts, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(*measured)


def test_files_keep_the_kind(tmp_path: Path):
    own, cross = both(2, 16)
    for name, transcoder in (("own", own), ("cross", cross)):
        loaded = load_transcoder(save_transcoder(transcoder, tmp_path / name))
        assert loaded.config == transcoder.config
    sizes = [(tmp_path / name / "transcoder.safetensors").stat().st_size for name in ("own", "cross")]
    assert sizes[0] < sizes[1]


def test_training(tmp_path: Path):
    """Trained from the command's settings; a run that starts from one is of the same kind."""
    model, data = str(save_host(tmp_path / "model")), str(save_text(tmp_path / "text.txt"))
    config = TranscoderConfig(
        out=tmp_path / "first",
        decoders="per-layer",
        features=32,
        batch_size=ROWS,
        tokens=str(40 * ROWS * CONTEXT),
    )
    first = train_transcoder(model, data, config)
    assert first.transcoder.config.decoders == "per-layer"
    assert first.evaluation.mean_explained_variance > 0.15
    config = replace(config, out=tmp_path / "second", decoders="cross-layer", start_from=first.folder)
    assert train_transcoder(model, data, config).transcoder.config.decoders == "per-layer"


def test_default_sizes():
    """Weights bound the default number of features; a per-layer transcoder has far fewer."""
    assert TranscoderConfig().features_for(30, 576) == 2 * 576
    assert TranscoderConfig(decoders="per-layer").features_for(30, 576) == 4 * 576
