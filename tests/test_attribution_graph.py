"""Attribution graphs: links add up to the targets, and are what the linearised model computes; influence and clusters."""

from contextlib import ExitStack

import pytest
import torch
from hosts import VOCABULARY, host
from torch import Tensor
from traced import LENGTH, every_model, model_and_graph
from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.opt import OPTConfig, OPTForCausalLM

import edgewise
from edgewise.core.errors import UnsupportedArchitecture
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.models.linearise import check_traceable
from edgewise.tracing.clusters import attribute_to_tokens
from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import prune, smallest_set


@every_model
def test_links_and_bias_add_up_to_the_target(kind: str, gated: bool):
    _, graph = model_and_graph(kind, gated)
    assert len(graph.features) > 50
    total = graph.adjacency.sum(1) + graph.bias
    torch.testing.assert_close(total, graph.value, rtol=1e-4, atol=1e-4)
    assert graph.closure < 1e-5


# ------------------------------------------------------------------------------------------ against the model's own modules


def linearised_run(
    model, graph: Graph, change: dict[tuple[int, int], Tensor], start: tuple[int, Tensor] | None
):
    """Run the host's own modules with attention weights, denominators and MLP outputs kept; `change` is added to MLP outputs
    at (layer, position), `start` to the embedding. Gives what MLPs read and what the final norm gives."""
    modules, linear = architecture_of(model), graph.linear
    inputs: dict[int, Tensor] = {}
    final: list[Tensor] = []

    def frozen_norm(norm, x_then: Tensor):
        has_mean = "LayerNorm" in type(norm).__name__
        eps = getattr(norm, "eps", None) or norm.variance_epsilon
        centred = x_then - x_then.mean(-1, keepdim=True) if has_mean else x_then
        sigma = (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()

        def forward(x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True) if has_mean else x
            return x / sigma * norm.weight + (norm.bias if has_mean else 0.0)

        return forward

    read: dict[int, Tensor] = {}
    with ExitStack() as stack:  # inputs of the norms in the original pass
        for i, norm in enumerate(_norms(modules)):
            stack.enter_context(replace_input(norm, lambda x, i=i: read.setdefault(i, x)))
        model(input_ids=linear.ids[None], use_cache=False)
    with ExitStack() as stack:
        for i, norm in enumerate(_norms(modules)):
            original = norm.forward
            norm.forward = frozen_norm(norm, read[i])
            stack.callback(setattr, norm, "forward", original)
        for number, layer in enumerate(modules.layers):
            stack.enter_context(replace_input(layer.mlp_in, lambda x, i=number: inputs.setdefault(i, x)))
            output = linear.mlp_outputs[number].clone()
            for (where, position), vector in change.items():
                if where == number:
                    output[position] += vector
            stack.enter_context(replace_output(layer.mlp_out, lambda y, output=output: output[None].to(y)))
        if start is not None:
            moved = linear.embedding.clone()
            moved[start[0]] += start[1]
            stack.enter_context(replace_input(modules.layers[0].module, lambda x: moved[None].to(x)))
        stack.enter_context(replace_output(modules.final_norm, lambda y: final.append(y)))
        weights = [layer.weights for layer in linear.layers]
        stack.enter_context(tap(model, edit={"weights": lambda i, w: weights[i][None].to(w)}))
        model(input_ids=linear.ids[None], use_cache=False)
    return torch.cat([inputs[i] for i in range(len(modules.layers))]), final[0][0]


def _norms(modules):
    return [norm for layer in modules.layers for norm in (layer.norm_1, layer.norm_2)] + [modules.final_norm]


@every_model
@torch.no_grad()
def test_links_are_what_the_linearised_model_computes(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    model.double()
    features, count, length = graph.features, len(graph.features), LENGTH
    before, reached = linearised_run(model, graph, {}, None), 0
    sources = [
        2,
        length + count // 3,
        length + count - 5,
        length + count + 4,
        length + count + 2 * length + 1,
    ]
    for source in sources:
        size = 1.0  # the function is linear: a whole step is as good as a small one
        change: dict[tuple[int, int], Tensor] = {}
        start = None
        if source < length:
            start = source, graph.linear.embedding[source] * size
        for layer in range(len(graph.linear.layers)):
            written = graph.source_write(torch.tensor([source]), layer)
            if written is not None:
                for position in written[0].abs().sum(-1).nonzero()[:, 0].tolist():
                    change[layer, position] = written[0, position] * size
        after = linearised_run(model, graph, change, start)
        moved = (after[0] - before[0]).float()  # [L, T, D]
        expected = torch.zeros(graph.n_targets)
        for i in range(count):
            encoders, _ = graph.transcoder.reads(int(features.layer[i]))
            expected[i] = encoders[features.index[i]] @ moved[features.layer[i], features.position[i]]
        expected[count:] = graph.logits.direction @ (after[1] - before[1])[-1].float()
        torch.testing.assert_close(graph.adjacency[:, source], expected, rtol=1e-3, atol=2e-5)
        reached += int(expected.abs().max() > 1e-3)
    assert reached >= 3


# ------------------------------------------------------------------------------------------------------ influence, clusters


@torch.no_grad()
def test_influence_ends_in_tokens_and_errors():
    _, graph = model_and_graph("llama", True)
    pruned = prune(graph, 0.7, 0.9)
    ends = torch.cat([pruned.influence[:LENGTH], pruned.influence[LENGTH + len(graph.features) :]])
    assert ends.sum().item() == pytest.approx(1.0, abs=1e-4)
    assert 0.4 < pruned.kept < 1.0
    everything = prune(graph, 1.0, 1.0)
    assert len(everything.links) > len(pruned.links)
    # whatever is kept leads from somewhere to a logit
    sources, targets = set(pruned.sources.tolist()), set(pruned.targets.tolist())
    for feature in [t for t in targets if t < len(graph.features)]:
        assert feature + LENGTH in sources


@torch.no_grad()
def test_token_attributions_are_shares():
    _, graph = model_and_graph("gpt2", False)
    features, logits = attribute_to_tokens(graph)
    known = features.sum(1) > 0
    torch.testing.assert_close(features[known].sum(1), torch.ones(int(known.sum())))
    torch.testing.assert_close(logits.sum(1), torch.ones(3))
    # nothing can come from a token that stands later
    for i in range(len(graph.features)):
        assert not features[i, graph.features.position[i] + 1 :].any()


def test_the_smallest_set():
    values = torch.tensor([0.1, 0.5, 0.0, 0.4])
    assert smallest_set(values, 0.5).tolist() == [1]
    assert smallest_set(values, 0.51).tolist() == [1, 3]
    assert smallest_set(values, 1.0).tolist() == [1, 3, 0]
    assert smallest_set(torch.zeros(3), 0.5).tolist() == []


def test_architectures_that_are_not_linearisable_are_refused():
    """Latent attention, whose values are no linear function of the stream; and norms after the sum."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    latent = DeepseekV3Config(
        **sizes, intermediate_size=48, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4,
        v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=2,
    )  # fmt: skip
    after = OPTConfig(**sizes, ffn_dim=48, do_layer_norm_before=False, word_embed_proj_dim=32)
    for model in (DeepseekV3ForCausalLM(latent), OPTForCausalLM(after)):
        edgewise.install(model.eval())
        with pytest.raises(UnsupportedArchitecture):
            check_traceable(model)


def test_capped_logits_are_no_linear_readout():
    model = edgewise.install(host("gemma3"))
    model.config.final_logit_softcapping = 1.0
    with pytest.raises(UnsupportedArchitecture, match="caps its logits"):
        check_traceable(model)
