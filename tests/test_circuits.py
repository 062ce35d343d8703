"""Circuits: every fast path against the plainest implementation of the same thing."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hosts import VOCABULARY, host, text, with_null_value
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import command
from torch import Tensor, nn

import edgewise
from edgewise.circuits import heads
from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.curve import grid, ranks, refine
from edgewise.circuits.eap import edge_attribution
from edgewise.circuits.edge_chunks import EdgePatching
from edgewise.circuits.edge_patching import scores_with_edges
from edgewise.circuits.find import find_circuit, find_circuits
from edgewise.circuits.memory import bytes_per_prompt, stream_bytes
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import CircuitResult
from edgewise.circuits.streams import record_edges, wiring_of
from edgewise.circuits.token_edges import token_edges
from edgewise.circuits.wiring import Wiring
from edgewise.core.errors import EdgewiseError, UnsupportedArchitecture
from edgewise.models.architecture import architecture_of
from edgewise.pocket import folder
from edgewise.tasks import make_task
from edgewise.tasks.pairs import Pair, Prompts, Task, score
from edgewise.training.sparsify.masks import TOP_K, masked, random_mask

HOSTS = ["gpt2", "llama", "gpt_neox"]
OUT = {"gpt2": "c_proj", "llama": "o_proj", "gpt_neox": "dense"}
GIGABYTE = 2**30


def prompts(n: int = 5, length: int = 10, first: int = 3, seed: int = 1) -> Prompts:
    """Random pairs of unequal lengths that agree before `first` and at their last token."""
    generator = torch.Generator().manual_seed(seed)
    clean = text(n, length, seed)
    last = torch.randint(length - 3, length, (n,), generator=generator)
    corrupt = clean.clone()
    corrupt[:, first:] = text(n, length, seed + 1)[:, first:]
    corrupt[:, first] = (clean[:, first] + 1) % VOCABULARY
    corrupt[torch.arange(n), last] = clean[torch.arange(n), last]
    columns = torch.randint(0, VOCABULARY, (n, 3), generator=generator)
    signs = torch.tensor([[1.0, -0.5, -0.5]]).repeat(n, 1)
    return Prompts(clean, corrupt, last, columns, signs)


def model_of(kind: str, sparse: bool = False, seed: int = 0, sinks: bool = True) -> Any:
    model, has_null_value = host(kind, seed), kind in ("gpt2", "llama", "qwen3", "mistral")
    if not sparse:
        return edgewise.install(model)
    twin = edgewise.gate(
        model, edgewise.GateConfig("relative", b=1.5, sinks=sinks, null_value=has_null_value)
    )
    return with_null_value(twin) if has_null_value else twin


def pocket_pair(sparse: bool) -> tuple[Any, Task]:
    model = edgewise.load("pocket-sparse" if sparse else "pocket")
    return model, make_task("ioi", edgewise.load_tokenizer("pocket"), 6)


def score_of(model: nn.Module, ids: Tensor, given: Prompts, metric: Any = "logit difference") -> Tensor:
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    return score(logits[torch.arange(len(ids)), given.last], given, metric)


# ------------------------------------------------------------------------------------------------------------- heads


def plain_head_loop(model: Any, kind: str, given: Prompts, base: Tensor, other: Tensor) -> Tensor:
    """One forward pass for each head, with one hook on the output projection."""
    outs = [
        module
        for name, module in model.named_modules()
        if name.endswith(f".{OUT[kind]}") and "mlp" not in name
    ]
    kept: list[Tensor] = []
    handles = [out.register_forward_pre_hook(lambda _, args: kept.append(args[0])) for out in outs]
    score_of(model, other, given)
    for handle in handles:
        handle.remove()
    n_heads = model.config.num_attention_heads
    scores = torch.empty(len(outs), n_heads, len(base))
    for layer, out in enumerate(outs):
        d = kept[layer].shape[-1] // n_heads
        for head in range(n_heads):
            columns = slice(head * d, head * d + d)

            def patch(_: nn.Module, args: tuple, layer=layer, columns=columns) -> tuple:
                changed = args[0].clone()
                changed[..., columns] = kept[layer][..., columns]
                return (changed,)

            handle = out.register_forward_pre_hook(patch)
            scores[layer, head] = score_of(model, base, given)
            handle.remove()
    return scores


def assert_same(shares: Tensor, differences: Tensor, replay: Replay) -> None:
    """[n, layers, heads] against [layers, heads, n], in the metric's own unit."""
    torch.testing.assert_close(shares.permute(1, 2, 0) * replay.effect, differences, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("sparse", "sinks"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("kind", HOSTS)
def test_patching_heads_equals_one_hook_for_each_head(kind, sparse, sinks):
    model, given = model_of(kind, sparse, sinks=sinks), prompts()
    replay = record(model, given, "logit difference")
    assert replay.first == 3
    effects = heads.head_effects(replay, GIGABYTE)
    lost = plain_head_loop(model, kind, given, given.clean, given.corrupt)
    restored = plain_head_loop(model, kind, given, given.corrupt, given.clean)
    assert_same(effects.lost, replay.clean.scores - lost, replay)
    assert_same(effects.restored, restored - replay.corrupt.scores, replay)


@pytest.mark.parametrize("sparse", [False, True])
def test_patching_heads_of_the_pocket_twins_equals_one_hook_for_each_head(sparse):
    model, task = pocket_pair(sparse)
    given = task.prompts()
    replay = record(model, given, task.metric)
    effects = heads.head_effects(replay, GIGABYTE)
    lost = plain_head_loop(model, "gpt2", given, given.clean, given.corrupt)
    assert_same(effects.lost, replay.clean.scores - lost, replay)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "olmo2", "mistral", "gemma3"])
def test_heads_of_other_architectures_equal_a_run_of_the_whole_model(kind):
    model, given = model_of(kind), prompts()
    replay = record(model, given, "probability difference")
    effects = heads.head_effects(replay, GIGABYTE)
    with edgewise.tap(model, read=["outputs"]) as attention:
        score_of(model, given.corrupt, given)
    corrupt = attention.last["outputs"]
    for layer, head in [(0, 1), (1, 3), (2, 0)]:

        def edit(at: int, y: Tensor, layer=layer, head=head) -> Tensor:
            y = y.clone()
            if at == layer:
                y[:, head] = corrupt[layer][:, head]
            return y

        with edgewise.tap(model, edit={"outputs": edit}):
            expected = score_of(model, given.clean, given, "probability difference")
        torch.testing.assert_close(
            effects.lost[:, layer, head], 1 - replay.explained(expected), atol=1e-4, rtol=1e-4
        )


def test_little_memory_and_no_shared_prefix_change_nothing():
    model, given = model_of("llama"), prompts()
    expected = heads.head_effects(record(model, given, "logit difference"), GIGABYTE)
    effects = heads.head_effects(record(model, given, "logit difference", reuse_prefix=False), 1)
    torch.testing.assert_close(effects.lost, expected.lost, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(effects.restored, expected.restored, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", HOSTS)
def test_all_heads_explain_the_whole_effect_and_none_nothing(kind, sparse):
    replay = record(model_of(kind, sparse), prompts(), "logit difference")
    keep = torch.zeros(2, replay.n, 3, 4, dtype=torch.bool)
    keep[1] = True
    shares = replay.explained(heads.scores_with_heads(replay, keep, GIGABYTE))
    torch.testing.assert_close(shares, torch.tensor([[0.0], [1.0]]).expand(2, replay.n), atol=1e-4, rtol=0)


def test_a_search_leaves_no_hook_and_no_gradient_on_the_model():
    model, given = model_of("gpt2"), prompts()
    before = score_of(model, given.clean, given)
    replay = record(model, given, "logit difference")
    heads.head_effects(replay, GIGABYTE)
    edge_attribution(record_edges(replay), 2)
    assert torch.equal(score_of(model, given.clean, given), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


# ------------------------------------------------------------------------------------------------------------- edges


def plain_edge(model: Any, kind: str, given: Prompts, source: str, target: str) -> Tensor:
    """Path patching by hand: the target reads the clean residual stream, with one source as in the corrupt run."""
    parts = architecture_of(model)

    def written(ids: Tensor) -> Tensor:
        kept: list[Tensor] = []
        number = int(source.split("H")[0][1:]) if source.startswith("L") else 0
        if source == "embedding":
            module = parts.layers[0].module
            handle = module.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        elif source.startswith("MLP"):
            module = parts.layers[int(source[4:])].mlp_writer
            handle = module.register_forward_hook(lambda _, args, out: kept.append(out))
        else:
            module = parts.layers[number].out
            handle = module.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        score_of(model, ids, given)
        handle.remove()
        if source.startswith("L"):
            head, n_heads = int(source.split("H")[1]), model.config.num_attention_heads
            d = kept[0].shape[-1] // n_heads
            alone = torch.zeros_like(kept[0])
            alone[..., head * d : head * d + d] = kept[0][..., head * d : head * d + d]
            layer = parts.layers[number]
            with torch.no_grad():
                write = layer.out(alone) - layer.out(torch.zeros_like(alone))
                if layer.post_attention is None:
                    return write
                rms = (layer.out(kept[0]).square().mean(-1, keepdim=True) + 1e-6).sqrt()
                weight: Any = layer.post_attention.weight
                return write / rms * (1 + weight)  # Gemma's
        return kept[0]

    change = written(given.corrupt) - written(given.clean)
    handles = []
    if target == "logits":
        handles.append(parts.final_norm.register_forward_pre_hook(lambda _, args: (args[0] + change,)))
    elif target.startswith("MLP"):
        norm = parts.layers[int(target[4:])].norm_2
        handles.append(norm.register_forward_pre_hook(lambda _, args: (args[0] + change,)))
    else:
        head, kind_of_input = target.split(".")
        layer = parts.layers[int(head[1])]
        which, columns = layer.columns[kind_of_input]
        read: list[Tensor] = []
        handles.append(layer.norm_1.register_forward_pre_hook(lambda _, args: read.append(args[0])))
        busy: list[bool] = []

        def project(module: nn.Module, args: tuple, out: Tensor) -> Tensor | None:
            if busy:
                return None
            busy.append(True)
            norm = layer.norm_1
            other = module(norm.forward(read[0] + change))
            out = out.clone()
            own = columns[int(head[3:])]
            out[..., own] = other[..., own]
            return out

        handles.append(layer.projections[which].register_forward_hook(project))
    scores = score_of(model, given.clean, given)
    for handle in handles:
        handle.remove()
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", [*HOSTS, "gemma3"])
def test_dropping_one_edge_equals_path_patching_for_every_edge(kind, sparse):
    model, given = model_of(kind, sparse), prompts(3, 7, 2)
    replay = record(model, given, "logit difference")
    runs = record_edges(replay)
    wiring = runs.wiring
    assert wiring.parallel == (kind == "gpt_neox")
    for source, target in wiring.exists.nonzero().tolist():
        keep = wiring.exists.clone()
        keep[source, target] = False
        scores = scores_with_edges(runs, keep.expand(replay.n, -1, -1))
        expected = plain_edge(model, kind, given, wiring.sources[source], wiring.targets[target])
        name = f"{wiring.sources[source]} -> {wiring.targets[target]}"
        torch.testing.assert_close(scores, expected, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", [*HOSTS, "qwen3", "mistral", "olmo2", "gemma3"])
def test_all_edges_explain_the_whole_effect_and_none_nothing(kind, sparse):
    model, given = model_of(kind, sparse), prompts()
    replay = record(model, given, "probability difference")
    runs = record_edges(replay)
    wiring = runs.wiring
    for kept, expected in ((0, replay.corrupt.scores), (1, replay.clean.scores)):
        keep = (wiring.exists & bool(kept)).expand(replay.n, -1, -1)
        torch.testing.assert_close(scores_with_edges(runs, keep), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", HOSTS)
def test_all_edges_of_a_twin_without_sinks_explain_the_whole_effect(kind):
    model, given = model_of(kind, sparse=True, sinks=False), prompts()
    replay = record(model, given, "logit difference")
    runs = record_edges(replay)
    wiring = runs.wiring
    shares = replay.explained(scores_with_edges(runs, wiring.exists.expand(replay.n, -1, -1)))
    torch.testing.assert_close(shares, torch.ones(replay.n), atol=2e-3, rtol=0)


def test_gpt2_small_has_the_usual_number_of_edges():
    layer = SimpleNamespace(heads=12, kv_heads=12)
    wiring = Wiring(SimpleNamespace(layers=[layer] * 12), parallel=False)
    assert (wiring.count, len(wiring.sources), len(wiring.targets)) == (32_491, 157, 445)
    assert wiring.head_pairs[1] == 9_504


def test_where_edges_cannot_be_told_apart_heads_are_found_with_a_notice():
    model, tokenizer = edgewise.load("pocket"), edgewise.load_tokenizer("pocket")
    for block in cast(Any, model).transformer.h:  # a write that no head or MLP makes
        block.register_forward_hook(lambda _, args, out: out + 0.02 * args[0].roll(1, -1))
    task = make_task("ioi", tokenizer, 6)
    circuit = find_circuit(model, task, CircuitConfig(task="ioi", prompts=6))
    assert circuit.heads is not None and circuit.edges is None and circuit.token_edges is not None
    assert any("edges cannot be told apart" in warning for warning in circuit.warnings)
    with pytest.raises(UnsupportedArchitecture, match="`edges=False`"):
        wiring_of(record(model, task.prompts(), task.metric))


def linear_model() -> Any:
    """Norms and activations are taken out; what is left to hold still is attention."""
    model = model_of("gpt2")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm) or name == "act":
                setattr(module, name, nn.Identity())
    return model.double()


@pytest.mark.parametrize("steps", [1, 4])
def test_attribution_of_a_linear_model_is_exact(steps):
    model, given = linear_model(), prompts(3, 7, 2)
    with edgewise.tap(model, read=["weights"]) as attention:
        score_of(model, given.clean, given)
    clean_weights = dict(attention.last["weights"])

    def freeze(
        layer: int, weights: Tensor
    ) -> Tensor:  # of all prompts or the first; queries after the shared prefix
        return clean_weights[layer][: len(weights), :, -weights.shape[2] :]

    with edgewise.tap(model, edit={"weights": freeze}):
        replay = record(model, given, "logit difference")
        runs = record_edges(replay)
        wiring, attribution = runs.wiring, edge_attribution(runs, steps)
        for source, target in wiring.exists.nonzero().tolist():
            keep = wiring.exists.clone()
            keep[source, target] = False
            without = scores_with_edges(runs, keep.expand(replay.n, -1, -1))
            torch.testing.assert_close(attribution[:, source, target], replay.clean.scores - without)
    assert (attribution != 0).float().mean() > 0.1


@pytest.mark.parametrize("kind", HOSTS)
def test_attribution_equals_a_small_change_along_each_edge(kind):
    """The gradient of one edge equals the central difference of patching a small part of it, in double precision."""
    model = model_of(kind).double()
    given = prompts(2, 6, 2)
    replay = record(model, given, "logit difference")
    runs = record_edges(replay)
    wiring, attribution = runs.wiring, edge_attribution(runs, 1)
    small = 1e-3
    for source, target in wiring.exists.nonzero().tolist()[::7]:
        both = []
        for sign in (1, -1):
            keep = wiring.exists.double().clone()
            keep[source, target] = 1 + sign * small
            both.append(scores_with_edges(runs, keep.expand(replay.n, -1, -1)))
        slope = (both[0] - both[1]) / (2 * small)
        # some norms compute in single precision whatever the model does
        torch.testing.assert_close(attribution[:, source, target], slope, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("chunk_size", [2, 5])
def test_a_search_records_each_corrupt_stream_once(chunk_size):
    replay = record(model_of("llama"), prompts(), "logit difference")
    wiring = wiring_of(replay.select(slice(0, 1)))
    memory = chunk_size * bytes_per_prompt(replay, wiring) + replay.n * stream_bytes(replay, wiring)
    patching = EdgePatching(replay, wiring, memory)
    first, second = (list(patching.runs()) for _ in range(2))
    assert len(first) == (3 if chunk_size == 2 else 1)
    assert all(a is b for (_, a), (_, b) in zip(first, second, strict=True))
    again = EdgePatching(replay, wiring, max_memory=1)
    assert not again.keeps_streams and len(list(again.runs())) == replay.n
    torch.testing.assert_close(again.attribution(2), patching.attribution(2), atol=1e-5, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------- token edges


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", HOSTS)
def test_token_edges_are_counted_as_in_a_forward_pass(kind, sparse):
    model, given = model_of(kind, sparse), prompts()
    replay = record(model, given, "logit difference", reuse_prefix=False)
    replay = replay.select(replay.effect.abs() > 0.05)
    counts = token_edges(replay, 0.9)
    with edgewise.tap(model, read=["weights"]) as attention:
        score_of(model, replay.prompts.clean, replay.prompts)
    for prompt, last in enumerate(replay.prompts.last.tolist()):
        counted = sum(int((w[prompt, :, : last + 1] > 0).sum()) for w in attention.last["weights"].values())
        assert counts.open[prompt] == counted <= counts.possible[prompt] == 12 * (last + 1) * (last + 2) // 2
        assert 1 <= counts.used[prompt] <= 12 * given.clean.shape[1] ** 2
    if not sparse:
        assert counts.open == counts.possible


@pytest.mark.parametrize("sparse", [False, True])
def test_token_edges_of_a_model_in_half_precision(sparse):
    model = model_of("llama", sparse).to(torch.bfloat16)
    replay = record(model, prompts(), "logit difference", reuse_prefix=False)
    replay = replay.select(replay.effect.abs() > 0.05)
    counts = token_edges(replay, 0.9)
    assert all(
        used > 0 and opened <= possible
        for used, opened, possible in zip(counts.used, counts.open, counts.possible, strict=True)
    )


def test_logits_of_a_model_in_half_precision_are_computed_in_single_precision():
    model: Any = model_of("llama").to(torch.bfloat16)
    given = prompts()
    replay = record(model, given, "logit difference")
    with torch.no_grad():
        hidden = model.model(input_ids=given.clean, use_cache=False).last_hidden_state.float()
    logits = hidden[torch.arange(len(hidden)), given.last] @ model.lm_head.weight.float().T
    torch.testing.assert_close(
        replay.clean.scores, score(logits, given, "logit difference"), atol=1e-4, rtol=1e-4
    )
    again = replay.scores(0, replay.clean.hidden[0][None])[0]
    assert again.dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------ curves


@given(
    total=st.integers(1, 5000),
    crossings=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    threshold=st.sampled_from([0.5, 0.9]),
)
@settings(max_examples=60, deadline=None)
def test_refine_finds_the_smallest_count_of_a_rising_curve(total, crossings, threshold):
    at = torch.tensor([min(total, c) for c in crossings])

    def explained(counts: Tensor) -> Tensor:
        return (counts >= at).double() * 0.5 + counts / total * 0.4 + (counts >= total).double() * 0.1

    counts, shares, smallest = refine(explained, total, len(at), 0.5 if threshold == 0.5 else 0.9)
    exact = torch.tensor(
        [
            next(k for k in range(total + 1) if explained(torch.tensor([[k] * len(at)]))[0, i] >= threshold)
            for i in range(len(at))
        ]
    )
    assert torch.equal(smallest, exact)
    assert (counts.diff(dim=0) >= 0).all() and counts[0].eq(0).all() and counts[-1].eq(total).all()
    torch.testing.assert_close(shares, explained(counts))


def test_grid_and_ranks():
    assert grid(5) == [0, 1, 2, 3, 4, 5] and grid(32_491)[-1] == 32_491 and len(grid(32_491)) < 45
    assert ranks(torch.tensor([0.1, 0.9, 0.5])).tolist() == [2, 0, 1]


# ----------------------------------------------------------------------------------------------------------- results


def test_circuits_of_pocket_and_its_twin_reach_the_threshold_and_are_saved(tmp_path):
    config = CircuitConfig(task="antonym", out=tmp_path, prompts=6, minimal=False)
    result = find_circuits(["pocket", "pocket-sparse"], config)
    dense, sparse = (cast(Any, model) for model in result.models)
    assert (dense.kind, sparse.kind) == ("dense", "sparse")
    assert dense.accuracy == sparse.accuracy == 1.0
    for model in (dense, sparse):
        assert model.heads is not None and model.edges is not None and model.token_edges is not None
        for circuit in (model.heads.prefix, model.edges.prefix):
            assert circuit.curve.explained[0] == pytest.approx(0, abs=1e-3)
            assert circuit.curve.explained[-1] == pytest.approx(1, abs=1e-3)
            assert circuit.explained.fit >= 0.9
            point = circuit.curve.counts.index(circuit.needed)
            assert max(circuit.curve.explained[:point]) < 0.9
    assert sparse.token_edges.open < dense.token_edges.open
    saved = json.loads((tmp_path / "circuit.json").read_text())
    assert saved["models"][0]["heads_at_90"] == dense.heads.prefix.needed
    assert saved["models"][1]["edges_at_90"] == sparse.edges.prefix.needed
    assert saved["models"][1]["head_head_edges_at_90"] == sparse.head_head_edges[0]
    assert saved["ratios"]["edges"] == pytest.approx(dense.edges.prefix.needed / sparse.edges.prefix.needed)
    assert CircuitResult.load(tmp_path) == result
    assert result.table()[0] == ["", "pocket (dense)", "pocket-sparse (sparse)", "times fewer"]
    assert repr(result).startswith("CircuitResult") and f"{dense.edges.prefix.needed:,} of" in repr(result)
    assert "<th>pocket (dense)</th>" in result._repr_html_()


def test_a_circuit_has_no_closed_heads():
    """In docstring one head of the twin seems to do harm when patched alone, and is needed: it comes before closed ones."""
    config = CircuitConfig(task="docstring", prompts=4, edges=False, minimal=False)
    circuit = find_circuits("pocket-sparse", config).models[0].heads
    assert circuit is not None
    edges = json.loads((folder("pocket-sparse") / "made.json").read_text())["edges_per_query_per_head"]
    is_open = {f"L{i}H{j}" for i, heads in enumerate(edges) for j, count in enumerate(heads) if count}
    assert {*circuit.prefix.components} <= is_open
    assert max(circuit.prefix.needed_per_prompt) <= len(is_open)


@pytest.mark.slow
def test_little_memory_finds_the_same_circuit():
    task = make_task("antonym", edgewise.load_tokenizer("pocket"), 5)
    model = edgewise.load("pocket-sparse")
    much, little = (find_circuit(model, task, CircuitConfig(max_memory=m)) for m in ("1G", "1K"))
    assert much.counts() == little.counts() and much.token_edges == little.token_edges


def hand_made(given: Prompts) -> Task:
    pairs = []
    for prompt, last in enumerate(given.last.tolist()):
        clean, corrupt = (tuple(x[prompt, : last + 1].tolist()) for x in (given.clean, given.corrupt))
        ids = given.columns[prompt].tolist()
        pairs.append(
            Pair(
                "clean",
                "corrupt",
                ("a",),
                ("b", "c"),
                clean,
                corrupt,
                (ids[0],),
                tuple(ids[1:]),
                {"end": last},
            )
        )
    return Task("by hand", "logit difference", tuple(pairs), {})


def test_a_model_that_cannot_do_a_task_gets_a_warning_and_no_curve():
    model, task = model_of("gpt2"), hand_made(prompts())
    for parameter in model.parameters():
        parameter.data.mul_(0.2)
    circuit = find_circuit(model, task, CircuitConfig())
    assert "does not show" in circuit.warnings[0]
    assert circuit.heads is None and circuit.edges is None


def test_prompts_that_end_differently_get_a_warning():
    given = prompts()
    given.corrupt[torch.arange(5), given.last] = (given.clean[torch.arange(5), given.last] + 1) % VOCABULARY
    given = given._replace(signs=given.signs * 1.0)
    model = model_of("gpt2")
    effect = record(model, given, "logit difference").effect
    given = given._replace(signs=given.signs * effect.sign()[:, None] * 10)
    task = hand_made(given)
    replaced = [
        Pair(p.clean, p.corrupt, p.answers, p.wrong, p.clean_ids, p.corrupt_ids, *(
            (p.answer_ids, p.wrong_ids) if effect[i] > 0 else (p.wrong_ids, p.answer_ids)
        ), p.positions) for i, p in enumerate(task.pairs)
    ]  # fmt: skip
    model.lm_head.weight = nn.Parameter(model.lm_head.weight * 20)
    circuit = find_circuit(
        model, Task("x", "logit difference", tuple(replaced), {}), CircuitConfig(edges=False)
    )
    assert "last token differs" in circuit.warnings[0]


def test_wrong_input_is_refused():
    given = prompts()
    with pytest.raises(EdgewiseError, match="the same"):
        record(model_of("gpt2"), given._replace(corrupt=given.clean), "logit difference")
    broken = model_of("gpt2")
    broken.transformer.h[1].mlp.c_fc.weight.data.fill_(float("nan"))
    with pytest.raises(EdgewiseError, match="not a number"):
        record(broken, given, "logit difference")
    with pytest.raises(EdgewiseError, match="different tokens"):
        find_circuits(["pocket", "pocket-addition"])
    other = hand_made(given._replace(columns=given.columns + VOCABULARY))
    with pytest.raises(EdgewiseError, match="do not belong together"):
        find_circuit(model_of("gpt2"), other, CircuitConfig())
    with pytest.raises(EdgewiseError, match="one model, or a dense model and its twin, not 0"):
        find_circuits([])
    with pytest.raises(EdgewiseError, match="no circuits"):
        CircuitResult.load("nowhere")
    for wrong in ({"threshold": 1.5}, {"prompts": 0}, {"ig_steps": 0}, {"max_memory": "much"}):
        with pytest.raises(EdgewiseError):
            CircuitConfig(**wrong)


def test_the_command_prints_its_plan_and_the_circuit(tmp_path):
    out = tmp_path / "antonym"
    arguments = ["circuit", "pocket", "--task", "antonym", "--prompts", "5", "--no-edges", "--out", str(out)]
    code, out_text, err = command(*arguments)
    assert code == 0
    assert "5 pairs of up to" in err and "patched prompts at once" in err and "circuit.json is in" in err
    assert "of 48" in out_text and "token edges used" in out_text
    assert CircuitResult.load(out).models[0].edges is None
    for arguments, message in {
        ("circuit", "pocket", "--task", "cooking"): "there is no task 'cooking'",
        ("circuit", "pocket", "--task", str(tmp_path / "none.jsonl")): "none.jsonl",
        ("circuit", "pocket", "--threshold", "2"): "--threshold must be above 0 and below 1",
        ("circuit", "pocket", "--max-memory", "lots"): "no amount of memory",
    }.items():
        code, out_text, err = command(*arguments)
        assert code == 2 and message in " ".join(err.split()), arguments


@pytest.mark.parametrize("kind", ["random", *TOP_K])
def test_patching_a_masked_control_equals_patching_at_all_tokens(kind):
    """Masks follow the positions of the text, also in a replay that begins in its middle."""
    model, given = model_of("gpt2"), prompts()
    mask = (
        random_mask(torch.full((3, 4), 0.3), given.clean.shape[1], 0)
        if kind == "random"
        else TOP_K[kind](torch.full((3, 4), 1.5))
    )
    with masked(model, mask):
        replay = record(model, given, "logit difference")
        all_tokens = record(model, given, "logit difference", reuse_prefix=False)
        assert replay.first == 3 and torch.allclose(replay.clean.scores, all_tokens.clean.scores)
        effects, expected = (heads.head_effects(run, GIGABYTE) for run in (replay, all_tokens))
    torch.testing.assert_close(
        effects.lost * replay.effect[:, None, None], expected.lost * all_tokens.effect[:, None, None]
    )
