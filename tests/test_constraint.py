"""The constraint on loss and KL divergence: what is measured, and that learning the text cannot pay for closed attention."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hosts import HOSTS
from runs import save_host, save_text, settings
from transformers.models.granite import GraniteConfig, GraniteForCausalLM

import edgewise
from edgewise.data import IGNORE, Batch
from edgewise.gating.config import GateConfig
from edgewise.gating.install import install
from edgewise.measure.dense_comparison import DenseComparison, comparison_sums, dense_comparison
from edgewise.measure.distillation import DistillationTerms
from edgewise.measure.forward import run_model
from edgewise.measure.loss import measure
from edgewise.measure.reference import Reference
from edgewise.training.sparsify.multiplier import Multiplier
from edgewise.training.sparsify.penalty import penalty_weights
from edgewise.training.sparsify.recipe import RECIPES
from edgewise.training.sparsify.verdict import judge

HOSTS_WITH_SCALED_LOGITS = {
    **{kind: HOSTS[kind] for kind in ("gpt2", "qwen3")},
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2, logits_scaling=3.0, pad_token_id=0,
        )
    ).eval(),
}  # fmt: skip


def dense_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = HOSTS_WITH_SCALED_LOGITS[kind]().eval()
    install(model)
    return model


def some_text(n: int = 6, context: int = 40) -> Batch:
    ids = torch.randint(1, 97, (n, context + 1), generator=torch.Generator().manual_seed(2))
    targets = ids[:, 1:].clone()
    targets[0, :7] = targets[2, 30] = IGNORE
    return Batch(ids[:, :-1], targets, None)


@pytest.mark.parametrize("kind", HOSTS_WITH_SCALED_LOGITS)
def test_kl_and_its_error_are_those_of_the_plain_formulas_over_the_whole_vocabulary(kind):
    dense, text = dense_model(kind), some_text()
    twin = edgewise.gate(dense_model(kind), GateConfig("relative", b=1.5))
    reference = Reference(dense)
    actual = [measure(twin, text, batch_size=size, reference=reference).against_dense for size in (6, 1, 4)]
    with torch.no_grad():
        log_q, log_p = (run_model(model, text).double().log_softmax(-1) for model in (twin, dense))
    has_target = text.targets != IGNORE
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)[has_target].mean().item()
    own = (log_p - log_q).gather(-1, text.targets.clamp(min=0)[..., None])[..., 0] * has_target
    for against_dense in actual:  # the first runs the dense model, the others read what was kept of it
        assert against_dense is not None and against_dense.tokens == has_target.sum()
        assert against_dense.kl == pytest.approx(kl, rel=1e-4) and kl > 0.01
        assert against_dense.delta_ce == pytest.approx(
            (own.sum() / has_target.sum()).item(), rel=1e-3, abs=1e-5
        )
    blocks = torch.stack([own[:, :32].sum(1), own[:, 32:].sum(1)], 1).flatten()
    counts = torch.stack([has_target[:, :32].sum(1), has_target[:, 32:].sum(1)], 1).flatten().double()
    residuals = blocks - counts * own.sum() / counts.sum()
    error = (residuals.square().sum() * 12 / 11).sqrt() / counts.sum()
    assert actual[0] is not None and actual[0].delta_ce_error == pytest.approx(error.item(), rel=1e-3)


@pytest.mark.parametrize("kind", HOSTS_WITH_SCALED_LOGITS)
def test_the_dense_models_layers_read_each_sequence_once(kind):
    dense, text, passes = dense_model(kind), some_text(), []
    reference = Reference(dense)
    base: Any = dense.base_model
    base.register_forward_hook(lambda *call: passes.append(len(call[2][0])))
    with reference.recording():
        measure(dense, text, batch_size=4)
    expected = run_model(dense, text.select(slice(2, 5)))
    passes.clear()
    for _ in range(3):
        kept = reference.logits(2, text.select(slice(2, 5)))
        torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-5)
    assert (
        sum(n for n in passes if n > 1) == 9 and passes.count(1) <= 2
    )  # replays, and one try on one sequence


def test_what_is_kept_of_the_dense_model_is_bounded():
    dense, text = dense_model("gpt2"), some_text()
    reference = Reference(dense, max_bytes=2 * 40 * 32 * 4)  # two sequences
    twin = edgewise.gate(dense_model("gpt2"), GateConfig("relative", b=1.5))
    values = [measure(twin, text, reference=reference).against_dense for _ in range(2)]
    assert values[0] == values[1] and len(reference) == 2


def test_the_standard_error_is_that_of_the_mean():
    """Of independent differences, over many texts."""
    generator, means, errors = torch.Generator().manual_seed(0), [], []
    targets = torch.ones(20, 64, dtype=torch.long)
    for _ in range(200):
        ce = torch.randn(20, 64, generator=generator) * 0.3
        actual = dense_comparison(comparison_sums(DistillationTerms(ce, ce, torch.zeros_like(ce)), targets))
        means.append(actual.delta_ce)
        errors.append(actual.delta_ce_error)
    assert torch.tensor(errors).mean().item() == pytest.approx(torch.tensor(means).std().item(), rel=0.15)


def test_how_many_tokens_a_tolerance_needs():
    actual = DenseComparison(delta_ce=0.001, kl=0.002, delta_ce_error=0.01, tokens=400)
    assert actual.tokens_needed(0.01) == 1600  # half the error with four times the text
    (warning,) = judge(actual, 0.01, constrains_kl=True).warnings
    assert "400 held-out tokens are too few" in warning and "at least 1,600 tokens" in warning
    assert judge(actual, 0.02, constrains_kl=True) == (True, ())


# ------------------------------------------------------------------------------------------------- what counts as kept


def test_learning_the_text_does_not_pay_for_closed_attention(tmp_path, capsys):
    """A model to which the text is foreign gains more by learning it than closing its attention costs: held to the loss
    alone, the twin closes nearly everything, is far from the dense model, and its loss is lower. That is not "kept"."""
    model, text = save_host(tmp_path / "host"), save_text(tmp_path / "text.txt")
    learning = replace(RECIPES["small"], distillation=False)
    loss_only = settings(tmp_path / "loss", steps=30, lr=3e-3, b=1.0, constraint="loss")
    summary = edgewise.sparsify(model, text, loss_only, recipe=learning).summary
    assert summary["delta_ce"] < -summary["tolerance"] and summary["kl"] > 10 * summary["tolerance"]
    assert not summary["kept"]
    err = " ".join(capsys.readouterr().err.split())
    assert "NOT kept" in err and "foreign to the dense model" in err
    both = settings(tmp_path / "both", steps=30, lr=3e-3, b=1.0)
    result = edgewise.sparsify(model, text, both, recipe=learning)
    assert not result.summary["kept"] and result.summary["constraint"] == "loss-and-kl"
    betas = [line["beta"] for line in result.log if "held_out_kl" in line]
    lowest = RECIPES["small"].multiplier.hold_minimum * 0.01
    assert min(betas) == pytest.approx(lowest, rel=0.5) and max(line["gap"] for line in result.log) < 0.01
    assert json.loads((tmp_path / "both" / "summary.json").read_text())["kl"] == result.summary["kl"]


def test_the_multiplier_follows_the_larger_gap():
    for gap, kl, rises in ((-1.0, 0.5, False), (0.5, 0.0, False), (-1.0, 0.001, True)):
        multiplier = Multiplier(beta=1.0, step_size=0.1, minimum=0.01, maximum=10.0)
        multiplier.update(gap, tolerance=0.01, kl=kl)
        assert (multiplier.beta > 1.0) is rises and (multiplier.beta < 1.0) is not rises
        assert multiplier.expected == max(gap, kl)
    loss_only = Multiplier(beta=1.0, step_size=0.1, minimum=0.01, maximum=10.0)
    loss_only.update(-1.0, tolerance=0.01)
    assert loss_only.beta > 1.0 and loss_only.expected == -1.0


def test_the_papers_recipe_is_held_to_the_loss_alone():
    assert not RECIPES["paper"].kl_constraint
    assert RECIPES["small"].kl_constraint and RECIPES["pretrained"].kl_constraint


# --------------------------------------------------------------------------------------------------------- penalty


@pytest.mark.parametrize(
    ("recipe", "penalty"),
    [
        (replace(RECIPES["small"], log_density=False, head_offset=None), lambda d: d.mean()),
        (replace(RECIPES["small"], head_offset=None), lambda d: d.mean().log()),
        (
            replace(RECIPES["small"], head_offset=0.3),
            lambda d: (d + 0.3 * d.mean().detach()).log().mean(),
        ),
    ],
)
def test_penalty_weights_are_the_gradient_of_the_penalty(recipe, penalty):
    """Against autograd in float64."""
    densities = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    densities[1, 2] = 0.0
    leaf = densities.clone().requires_grad_()
    (0.7 * penalty(leaf)).backward()
    other = densities.clone().requires_grad_()
    (penalty_weights(recipe, 0.7, densities) * other).mean().backward()
    assert leaf.grad is not None and other.grad is not None
    torch.testing.assert_close(other.grad, leaf.grad, rtol=1e-12, atol=0)


def test_a_closed_model_has_finite_penalties():
    for recipe in RECIPES.values():
        weights = penalty_weights(replace(recipe, head_offset=0.3), 1.0, torch.zeros(2, 4))
        assert weights.isfinite().all() and math.isfinite(
            penalty_weights(recipe, 1.0, torch.zeros(2, 4)).max()
        )
