"""The value of attending to nothing: what it adds, what it leaves alone, where it starts, that it travels with a twin."""

import json

import pytest
import torch
from accelerate import Accelerator
from hosts import HOSTS, host, padding, text, with_null_value
from runs import save_host, save_text, settings
from torch import Tensor

import edgewise
from edgewise.core.console import Display
from edgewise.data import Batch, open_data
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import EdgeGate, HeadShape, gates_of
from edgewise.kernels.equations import GateSpec, reference
from edgewise.models.twin_format import FORMAT
from edgewise.training.sparsify.control_store import control_folder, load_control
from edgewise.training.sparsify.controls import train_masked
from edgewise.training.sparsify.masks import TOP_K, measure_masked, threshold_mask
from edgewise.training.sparsify.null_value import mean_closed_values
from edgewise.training.sparsify.parameters import parameter_groups
from edgewise.training.sparsify.recipe import RECIPES, SMALL_PARAMETERS, choose_recipe
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.summary import summarize
from edgewise.training.trainer import take_step

HEADS, KV_HEADS, WIDTH, T = 4, 2, 6, 9
SHAPE = HeadShape(HEADS, KV_HEADS, WIDTH)


def a_gate(b: float = 2.0) -> EdgeGate:
    gate = EdgeGate(0, SHAPE, GateConfig(b=b, null_value=True), torch.device("cpu")).double().eval()
    assert gate.null_value is not None
    torch.nn.init.normal_(gate.null_value)
    return gate


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(3, HEADS, T, WIDTH), (3, KV_HEADS, T, WIDTH), (3, KV_HEADS, T, WIDTH)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def by_hand(gate: EdgeGate, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_j w_ij v_j + (1 - sum_j w_ij) r, with the weights of a gate that knows nothing of r."""
    assert gate.null_value is not None
    weights = reference(q, k, v, gate.b, GateSpec(1.0, "deterministic", 0.5)).weights
    assert weights is not None
    groups = HEADS // KV_HEADS
    values, r = v.repeat_interleave(groups, 1), gate.null_value.repeat_interleave(groups, 0)[:, None]
    return weights @ values + (1 - weights.sum(-1, keepdim=True)) * r


@pytest.mark.parametrize("return_weights", [False, True])
def test_it_is_what_the_missing_attention_brings(return_weights):
    gate, (q, k, v) = a_gate(), inputs()
    assert gate.null_value is not None
    tensors = [q, k, v, gate.b, gate.null_value]
    y = gate(q, k, v, 0.5, None, return_weights).y
    expected = by_hand(gate, q, k, v)
    torch.testing.assert_close(y, expected)
    cotangent = torch.randn_like(y)
    actual, wanted = (torch.autograd.grad(x, tensors, cotangent) for x in (y, expected))
    for ours, autograd in zip(actual, wanted, strict=True):
        torch.testing.assert_close(ours, autograd)


def test_a_head_that_attends_to_nothing_writes_it():
    gate, (q, k, v) = a_gate(b=-1.0), inputs()
    assert gate.null_value is not None
    y = gate(q, k, v, 0.5, None, False).y
    torch.testing.assert_close(y, gate.null_value.repeat_interleave(2, 0)[:, None].expand_as(y))


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_with_all_gates_open_it_changes_nothing(kind, side):
    ids, real = text(), padding(side)
    with torch.no_grad():
        own = host(kind)(input_ids=ids, attention_mask=real).logits
        twin = with_null_value(edgewise.gate(host(kind), GateConfig(b=50.0, null_value=True)))
        opened = twin(input_ids=ids, attention_mask=real).logits
        with edgewise.mode(twin, "dense"):
            dense = twin(input_ids=ids, attention_mask=real).logits
    for actual in (opened, dense):
        torch.testing.assert_close(actual[real.bool()], own[real.bool()], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", HOSTS)
def test_writing_word_by_word_is_reading_all_at_once(kind):
    twin = with_null_value(edgewise.gate(host(kind), GateConfig(b=1.5, null_value=True)))
    ids = text(1, 12)
    with torch.no_grad():
        whole = twin(input_ids=ids).logits
        cache, last = None, []
        for position in range(12):
            out = twin(input_ids=ids[:, position : position + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            last.append(out.logits)
    torch.testing.assert_close(torch.cat(last, 1), whole, atol=1e-4, rtol=1e-4)


# ----------------------------------------------------------------------------------------------------------- twins


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_it_travels_with_the_twin(kind, tmp_path):
    twin = with_null_value(edgewise.gate(host(kind), GateConfig(b=1.5, null_value=True)))
    loaded = edgewise.load(edgewise.save(twin, tmp_path / "twin"))
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=text()).logits, twin(input_ids=text()).logits)
    assert edgewise.gate_config(loaded) == GateConfig(b=1.5, null_value=True)
    told = edgewise.info(tmp_path / "twin")
    assert told.parameters == sum(p.numel() for p in twin.parameters())
    assert "null value" in str(told)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(dtype):
    """It is kept in single precision where the rest of the model is not, or cast with it."""
    twin, ids = with_null_value(edgewise.gate(host("llama"), GateConfig(b=1.5, null_value=True))), text()
    with torch.no_grad():
        expected = twin(input_ids=ids).logits
        gated_later = edgewise.gate(host("llama").to(dtype), GateConfig(b=1.5, null_value=True))
        for each in (twin.to(dtype), with_null_value(gated_later)):
            for how in ("dense", "deterministic"):
                with edgewise.mode(each, how):
                    logits = each(input_ids=ids).logits
                    with edgewise.tap(each, read=["weights"]):
                        assert torch.isfinite(each(input_ids=ids).logits).all()
                assert logits.dtype == dtype and torch.isfinite(logits).all()
            assert (logits.argmax(-1) == expected.argmax(-1)).float().mean() > 0.6


@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("null_value", [True, False])
def test_every_gate_is_written_in_one_format_and_read_back(sinks, null_value, tmp_path):
    gate = GateConfig(sinks=sinks, null_value=null_value)
    folder = edgewise.save(edgewise.gate(host("gpt2"), gate), tmp_path / "twin")
    assert json.loads((folder / "config.json").read_text())["edgewise"]["format"] == FORMAT
    assert edgewise.gate_config(edgewise.load(folder)) == gate


# -------------------------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("workspace")
    save_host(workspace / "llama", "llama")
    save_text(workspace / "text.txt")
    return workspace


def a_run(workspace, recipe: str | None = None, **others) -> SparsifyRun:
    data = open_data(workspace / "text.txt", edgewise.load_tokenizer(workspace / "llama"), 32, seed=0)
    config = settings(workspace / "unused", recipe=recipe, **others)
    run = SparsifyRun(edgewise.load(workspace / "llama"), data, config, Accelerator(cpu=True))
    run.state.planned_steps = 6
    return run


def test_of_long_rows_the_beginning_is_read():
    model, ids = edgewise.install(host("llama")), text(3, 20)
    positions = torch.arange(20).expand(3, -1)
    batches = Batch(ids, ids, positions), Batch(ids[:, :6], ids[:, :6], None)
    actual, expected = (mean_closed_values(model, batch, threshold_mask(0.02), 6) for batch in batches)
    for ours, plain in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sinks", [True, False])
def test_it_starts_as_the_mean_of_what_is_hardly_attended_to(sinks):
    model, ids = edgewise.install(host("llama")), text(5, 20)
    actual = mean_closed_values(model, Batch(ids, ids, None), threshold_mask(0.05, sinks))
    with torch.no_grad(), edgewise.tap(model, read=["weights", "values"]) as activations:
        model(input_ids=ids)
    for layer, mean in enumerate(actual):
        weights, values = activations.last["weights"][layer], activations.last["values"][layer]
        for kv_head in range(2):
            total, mass = torch.zeros(values.shape[-1]), 0.0
            for row in range(5):
                for head in (2 * kv_head, 2 * kv_head + 1):
                    for i in range(20):
                        for j in range(i + 1):
                            w = weights[row, head, i, j].item()
                            if w <= 0.05 or (not sinks and j == 0 and i > 0):
                                total, mass = total + w * values[row, kv_head, j], mass + w
            torch.testing.assert_close(mean[kv_head], total / mass, atol=1e-5, rtol=1e-4)


def test_small_models_and_the_papers_recipe_go_without(workspace):
    assert not a_run(workspace).twin.gate.null_value and not a_run(workspace, "paper").twin.gate.null_value
    assert a_run(workspace, "pretrained").twin.gate.null_value
    large = SMALL_PARAMETERS + 1
    assert choose_recipe(None, large) == RECIPES["pretrained"]
    assert not choose_recipe("paper", large).gate.null_value


@pytest.mark.parametrize(
    "others", [{}, {"attention_only": True}, {"lora": 2}, {"lora": 2, "attention_only": True}]
)
def test_it_is_trained_with_the_weights_and_at_their_rate(workspace, others):
    run = a_run(workspace, "pretrained", **others)
    before = [gate.null_value.clone() for gate in run.twin.gates if gate.null_value is not None]
    assert len(before) == 2 and all(each.any() for each in before)
    weights, thresholds = parameter_groups(run.twin.model)
    assert {id(gate.null_value) for gate in run.twin.gates} <= {id(p) for p in weights}
    assert {id(gate.b) for gate in run.twin.gates} == {id(p) for p in thresholds}
    for _ in range(2):
        take_step(run)
    measured = run.validator.measure_twin()
    twin = run.twin.finish().model
    told = summarize(run, "llama", measured, measured, twin.state_dict(), "all steps done")
    assert torch.tensor(told["b_per_head"]).shape == (2, 4)
    for gate, old in zip(gates_of(twin), before, strict=True):
        assert gate.null_value is not None and (gate.null_value != old).any()
        assert (gate.null_value - old).abs().max() < 20 * run.learning_rates[
            0
        ]  # a threshold's would be many times larger


def test_a_run_that_was_begun_without_one_goes_on_without(workspace, tmp_path):
    edgewise.sparsify(workspace / "llama", workspace / "text.txt", settings(tmp_path / "run", steps=2))
    config = settings(tmp_path / "run", steps=4, resume=True)
    recipe = RECIPES["pretrained"]
    twin = edgewise.sparsify(workspace / "llama", workspace / "text.txt", config, recipe=recipe).twin
    assert all(gate.null_value is None for gate in gates_of(twin))
    assert (
        edgewise.gate_config(edgewise.load(tmp_path / "run"))
        == edgewise.gate_config(twin)
        == GateConfig(b=7.0)
    )


def test_controls_have_one_too(workspace):
    """Or they would be worse for another reason than their mask."""
    run = a_run(workspace, "pretrained")
    take_step(run)

    def nothing(layer: int, weights: Tensor) -> Tensor:
        return torch.zeros_like(weights)

    model = train_masked(run, nothing, Display(quiet=True), run.initial_null_values(nothing))
    assert all(gate.null_value is not None and gate.null_value.any() for gate in gates_of(model))
    held_out = run.data.held_out
    with_it = measure_masked(model, nothing, held_out)["ce"]
    for gate in gates_of(model):
        gate.null_value = None
    assert measure_masked(model, nothing, held_out)["ce"] != with_it


def test_saved_controls_keep_theirs(workspace, tmp_path):
    config = settings(tmp_path / "run", steps=2, controls=True, recipe="pretrained")
    result = edgewise.sparsify(workspace / "llama", workspace / "text.txt", config)
    held_out = a_run(workspace).data.held_out
    for name in ("random", *TOP_K):
        model = edgewise.load(workspace / "llama")
        mask = load_control(control_folder(tmp_path / "run", name), model)
        assert all(gate.null_value is not None and gate.null_value.any() for gate in gates_of(model))
        actual = measure_masked(model, mask, held_out)["ce"]
        assert actual == pytest.approx(result.summary["controls"][f"{name}, trained"]["ce"], rel=1e-5)
