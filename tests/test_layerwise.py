"""Each layer by itself, and the loss over the words that matter: both against the plain thing that they stand for."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from runs import CONTEXT, ROWS, STEPS, farthest, interrupt_at, save_host, save_text, settings, weights

import edgewise
from edgewise.core.console import Display
from edgewise.data import IGNORE, Batch, open_data
from edgewise.gating.edge_gate import attention_modules, mode
from edgewise.measure.distillation import distillation_terms
from edgewise.measure.forward import run_model
from edgewise.models.architecture import vocabulary_size
from edgewise.training.callbacks import Callback
from edgewise.training.config import TrainerConfig
from edgewise.training.sparsify import layerwise
from edgewise.training.sparsify.controls import train_masked
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.sampled_softmax import (
    CandidateSampler,
    draw_candidates,
    likely_tokens,
    restricted_to,
)
from edgewise.training.trainer import take_step

TOKENS = ROWS * CONTEXT
KINDS = ("gpt2", "llama")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("workspace")
    for kind in KINDS:
        save_host(workspace / kind, kind)
    save_text(workspace / "text.txt")
    return workspace


def rows_of(workspace, kind: str, n: int) -> Batch:
    return open_data(
        workspace / "text.txt", edgewise.load_tokenizer(workspace / kind), CONTEXT, seed=0
    ).train.take(n)


def a_run(workspace, kind: str = "gpt2", **others) -> SparsifyRun:
    data = open_data(workspace / "text.txt", edgewise.load_tokenizer(workspace / kind), CONTEXT, seed=0)
    run = SparsifyRun(
        edgewise.load(workspace / kind), data, settings(workspace / "unused", **others), Accelerator(cpu=True)
    )
    run.state.planned_steps, run.state.dense_ce = STEPS, 0.0
    return run


def gradient_terms(run: SparsifyRun, batch: Batch, is_layerwise: bool) -> torch.Tensor:  # -> terms
    return run.gradients.compute(batch, run.state.step, run.penalty, is_layerwise)


# -------------------------------------------------------------------------------------------------- layers alone


@pytest.mark.parametrize("kind", KINDS)
def test_the_metric_tells_what_a_small_error_costs(workspace, kind):
    """Disturb one layer's attention output a little, and compare with the divergence that comes of it."""
    model = edgewise.load(workspace / kind).double()
    batch = rows_of(workspace, kind, 64)
    metrics = layerwise.fisher_metrics(model, batch, micro_batch_size=16, seed=0)
    n_targets = (batch.targets != IGNORE).sum()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        own = run_model(model, batch)
        for layer, module in enumerate(attention_modules(model)):
            error = 1e-3 * torch.randn(64, CONTEXT, 32, generator=generator, dtype=torch.float64)
            hook = module.register_forward_hook(lambda m, a, out, e=error: (out[0] + e, *out[1:]))
            disturbed = run_model(model, batch)
            hook.remove()
            real = (distillation_terms(disturbed.double(), own.double(), batch.targets).kl / n_targets).item()
            estimated = (0.5 * ((error @ metrics[layer].double()) * error).sum() / n_targets).item()
            assert estimated == pytest.approx(real, rel=0.15), layer


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_each_layers_own_loss(workspace, kind):
    run = a_run(workspace, kind, b=2.0)
    batch = run.data.train.take(ROWS)
    run.state.density_per_head = [[0.5, 0.3, 0.2, 0.1], [0.4, 0.1, 0.6, 0.2]]
    found_metrics = run.metrics_of(gradient_terms(run, batch, is_layerwise=True))
    actual = {name: p.grad.clone() for name, p in run.twin.inner.named_parameters() if p.grad is not None}
    assert actual and all("attn" in name or "attention" in name for name in actual)  # and nothing else
    run.twin.optimizer.zero_grad()
    with torch.no_grad(), layerwise.recording(run.dense) as calls:
        run_model(run.dense, batch)
    n_targets = (batch.targets != IGNORE).sum()
    total = torch.zeros(())
    with mode(run.twin.inner, "deterministic"), edgewise.tap(run.twin.inner) as tap:
        for module, call, metric in zip(
            attention_modules(run.twin.inner), calls, run.gradients.layerwise.metrics or [], strict=True
        ):
            error = module(*call.args, **call.kwargs)[0] - call.output
            total = total + torch.einsum("btd,de,bte->", error, metric, error) / 2 / n_targets
    (total + (run.penalty * tap.expected_density).mean()).backward()
    assert found_metrics.ce == found_metrics.kl == pytest.approx(total.item(), rel=1e-4)
    torch.testing.assert_close(found_metrics.density_per_head, tap.expected_density.detach())
    for name, parameter in run.twin.inner.named_parameters():
        if name in actual:
            torch.testing.assert_close(actual[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_open_gates_cost_nothing(workspace):
    run = a_run(workspace, b=30.0)
    gradient_terms(run, run.data.train.take(ROWS), is_layerwise=True)
    assert gradient_terms(run, run.data.train.take(ROWS), is_layerwise=True)[0].item() < 1e-8


class Kinds(Callback):
    """Which steps were layer-wise: their metrics have no loss of the dense model."""

    def __init__(self):
        self.of_steps: list[str] = []

    def on_step_end(self, trainer, metrics):
        self.of_steps.append("together" if metrics.dense_ce else "alone")


def test_a_run_begins_alone_and_goes_on_together(workspace, tmp_path):
    kinds = Kinds()
    result = edgewise.sparsify(
        workspace / "gpt2",
        workspace / "text.txt",
        settings(tmp_path, layerwise_warmup=str(2 * TOKENS), b=3.0),
        trainer=TrainerConfig(seconds_per_step=0.1),
        callbacks=[kinds],
    )
    assert kinds.of_steps == ["alone"] * 2 + ["together"] * (STEPS - 2)
    assert result.summary["steps"] == STEPS


def test_together_begins_afresh(workspace):
    """Most weights get their first gradient then, the others one of another size: rates warm up again, from no moments."""
    run = a_run(workspace, layerwise_warmup=str(20 * TOKENS), b=3.0)
    run.state.planned_steps = 1000
    rates = []
    for _ in range(22):
        take_step(run)
        rates.append(run.twin.optimizer.param_groups[0]["lr"])
    assert rates[20] == rates[0] < rates[1] == rates[21] < rates[19]
    assert {int(state["step"]) for state in run.twin.optimizer.state.values()} == {2}
    assert (
        run.state.multiplier.beta >= run.recipe.multiplier.initial * run.config.loss_tolerance
    )  # held from here on


def test_layers_alone_may_yield(workspace):
    """The estimate means nothing far beyond the tolerance, so no pressure is held against it, no offset is forced."""
    run = a_run(workspace, layerwise_warmup=str(40 * TOKENS), b=1.0)
    run.state.planned_steps = 2000
    for _ in range(40):
        metrics, _ = take_step(run)
        if metrics.ce < run.config.loss_tolerance:
            break
        assert run.state.multiplier.beta < run.recipe.multiplier.initial * run.config.loss_tolerance
    assert run.state.step > 3
    assert max(gate.b.max().item() for gate in run.twin.gates) > 0.99


def test_the_dense_model_reads_each_row_once(workspace):
    """While layers alone go over the same rows several times; layers together do not."""
    run, read = a_run(workspace, layerwise_warmup=str((layerwise.STEPS_PER_BATCH + 1) * TOKENS)), []
    run.dense.base_model.register_forward_hook(lambda module, arguments, out: read.append(run.state.step))
    take_step(run)
    read.clear()  # and of what the metric was made from
    taken = [run.data.train.state_dict()]
    for _ in range(layerwise.STEPS_PER_BATCH + 1):
        take_step(run)
        taken.append(run.data.train.state_dict())
    assert read == [layerwise.STEPS_PER_BATCH, layerwise.STEPS_PER_BATCH + 1]
    assert [a == b for a, b in itertools.pairwise(taken)] == [True] * (layerwise.STEPS_PER_BATCH - 1) + [
        False
    ] * 2


@pytest.mark.parametrize("at", [0, 2, 4])
def test_resuming_is_exact(workspace, tmp_path, at):
    """In the middle of going over the same rows, too."""
    options = {"layerwise_warmup": str(5 * TOKENS), "lora": None}
    edgewise.sparsify(workspace / "gpt2", workspace / "text.txt", settings(tmp_path / "whole", **options))
    with pytest.raises(KeyboardInterrupt):
        half = settings(tmp_path / "half", **options)
        edgewise.sparsify(workspace / "gpt2", workspace / "text.txt", half, callbacks=[interrupt_at(at)])
    edgewise.sparsify(
        workspace / "gpt2", workspace / "text.txt", settings(tmp_path / "half", **options, resume=True)
    )
    assert farthest(weights(tmp_path / "whole"), weights(tmp_path / "half")) == 0.0


def test_alone_with_lora(workspace, tmp_path):
    pytest.importorskip("peft")
    options = settings(tmp_path, layerwise_warmup=str(2 * TOKENS), lora=2)
    result = edgewise.sparsify(workspace / "llama", workspace / "text.txt", options)
    assert result.summary["steps"] == STEPS


def test_a_run_is_more_than_its_beginning(workspace, tmp_path):
    options = settings(tmp_path, layerwise_warmup=str(STEPS * TOKENS))
    with pytest.raises(edgewise.EdgewiseError, match="leaves no time for joint training"):
        edgewise.sparsify(workspace / "gpt2", workspace / "text.txt", options)
    with pytest.raises(edgewise.EdgewiseError, match="`layerwise_warmup` must be at least 1"):
        settings(tmp_path, layerwise_warmup="0")


# -------------------------------------------------------------------------------------------------- sampled softmax

FEW = {"n_likely": 40, "n_sampled": 8}
"""As if the tiny vocabulary were a large one."""


def drawn_with(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class RecordingSampler(CandidateSampler):
    """Keeps the candidates that it drew."""

    def __init__(self, run: SparsifyRun):
        super().__init__(run.dense, run.batches, run.config.seed, **FEW)
        self.drawn: list[torch.Tensor] = []

    def draw(self, micro_batch, step):
        candidates, counted = super().draw(micro_batch, step)
        assert candidates is not None
        self.drawn.append(candidates.tokens)
        return candidates, counted


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_candidates_are_columns_of_all(workspace, kind):
    model, batch = edgewise.load(workspace / kind), rows_of(workspace, kind, 1)
    vocabulary = vocabulary_size(model)
    likely = likely_tokens(model, batch, 2, FEW["n_likely"])
    candidates, counted = draw_candidates(batch, likely, vocabulary, drawn_with(0), FEW["n_sampled"])
    certain = sorted({*likely.tolist(), *batch.targets.flatten().tolist()} - {IGNORE})
    sampled = candidates.tokens[len(certain) :].tolist()
    assert len(likely) == 40 and candidates.tokens[: len(certain)].tolist() == certain
    assert len(set(sampled)) == 8 and not set(sampled) & set(certain)
    has_target = batch.targets != IGNORE
    assert torch.equal(candidates.tokens[counted.targets[has_target]], batch.targets[has_target])
    assert torch.equal(counted.targets == IGNORE, ~has_target)
    log_weight = math.log((vocabulary - len(certain)) / 8)
    with torch.no_grad():
        whole = model(input_ids=batch.ids).logits
        with restricted_to(model.get_output_embeddings(), candidates):
            some = model(input_ids=batch.ids).logits
        expected = whole[..., candidates.tokens]
        expected[..., len(certain) :] += log_weight
        torch.testing.assert_close(some, expected)
        assert torch.equal(model(input_ids=batch.ids).logits, whole)  # as it was
    mean = whole.softmax(-1).mean((0, 1))
    assert mean[likely].min() >= mean.topk(41).values[-1]


@torch.no_grad()
def test_a_sample_stands_for_all_other_tokens(workspace):
    """On average over samples, the sum of exponentials is that over the whole vocabulary: no probability goes unseen."""
    model, batch = edgewise.load(workspace / "llama"), rows_of(workspace, "llama", 1)
    whole = model(input_ids=batch.ids).logits.double().exp().sum(-1)
    likely, sums = likely_tokens(model, batch, 2, FEW["n_likely"]), []
    for seed in range(300):
        candidates, _ = draw_candidates(
            batch, likely, vocabulary_size(model), drawn_with(seed), FEW["n_sampled"]
        )
        with restricted_to(model.get_output_embeddings(), candidates):
            sums.append(model(input_ids=batch.ids).logits.double().exp().sum(-1))
    ratio = torch.stack(sums) / whole
    assert abs(ratio.mean().item() - 1) < 0.01 and (ratio.mean(0) - 1).abs().max() < 0.15
    assert (ratio[0] - 1).abs().max() > 0.02  # one sample is not all


@pytest.mark.parametrize("others", [{}, {"lora": 2}])
def test_a_step_over_candidates(workspace, others):
    if others:
        pytest.importorskip("peft")
    run = a_run(workspace, "llama", b=2.0, **others)
    run.gradients.sampler = CandidateSampler(run.dense, run.batches, run.config.seed, **FEW)
    batch = run.data.train.take(ROWS)
    ce, dense_ce, kl, _ = run.metrics_of(gradient_terms(run, batch, is_layerwise=False))
    candidates, counted = run.gradients.candidates(batch, 0)
    assert candidates is not None
    with torch.no_grad():
        logits = run_model(run.dense, batch)[..., candidates.tokens] + candidates.log_weights
    expected = F.cross_entropy(logits.flatten(0, 1), counted.targets.flatten(), ignore_index=IGNORE)
    assert dense_ce == pytest.approx(expected.item(), rel=1e-5) and ce != dense_ce and kl > 0
    assert any(p.grad is not None for p in run.twin.inner.parameters())
    again, _ = run.gradients.candidates(batch, 0)
    later, _ = run.gradients.candidates(batch, 1)
    assert again is not None and later is not None
    assert torch.equal(again.tokens, candidates.tokens) and not torch.equal(later.tokens, candidates.tokens)


def test_a_small_vocabulary_is_taken_whole(workspace):
    run = a_run(workspace)
    batch = run.data.train.take(ROWS)
    assert run.gradients.candidates(batch, 0) == (None, batch)


@pytest.mark.parametrize("others", [{}, {"lora": 2}])
def test_controls_are_fitted_to_the_same_candidates(workspace, others):
    """A mask's training costs no more than the twin's, and is held to the same distribution."""
    if others:
        pytest.importorskip("peft")
    run = a_run(workspace, "llama", b=2.0, **others)
    run.gradients.sampler = sampler = RecordingSampler(run)
    began = run.data.train.state_dict()
    for _ in range(2):
        take_step(run)
    of_twin = list(sampler.drawn)
    widths: list[
        int
    ] = []  # of the logits of the dense model, and of the control: a copy of it, with its hooks
    unembedding: Any = run.dense.get_output_embeddings()
    unembedding.register_forward_hook(lambda module, args, out: widths.append(out.shape[-1]))
    # behind a mask, fitted to the dense model's logits; without one, to the text alone
    for mask, models in ((lambda layer, weights: torch.ones_like(weights), 2), (None, 1)):
        sampler.drawn.clear()
        widths.clear()
        run.data.train.load_state_dict(began)
        train_masked(run, mask, Display(quiet=True), None)
        assert all(torch.equal(a, b) for a, b in zip(of_twin, sampler.drawn, strict=True))
        assert widths == [len(tokens) for tokens in of_twin for _ in range(models)]
    assert max(widths) < vocabulary_size(run.dense)
