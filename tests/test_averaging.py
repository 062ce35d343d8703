"""The twin of a pretrained model: an average of many steps, held to what it loses on held-out text."""

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from runs import CONTEXT, ROWS, STEPS, interrupt_at, save_llama_and_text, settings, weights
from torch import nn

import edgewise
from edgewise.data import IGNORE
from edgewise.measure.loss import measure
from edgewise.training.averaging import Average
from edgewise.training.callbacks import Callback
from edgewise.training.config import TrainerConfig
from edgewise.training.data import training_data
from edgewise.training.sparsify.multiplier import Multiplier
from edgewise.training.sparsify.recipe import RECIPES, Recipe
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.trainer import take_step


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    return save_llama_and_text(tmp_path_factory.mktemp("place"))


def averaging(fraction: float) -> Recipe:
    """The recipe of pretrained models, with the average of a fraction of the run."""
    recipe = RECIPES["pretrained"]
    return replace(recipe, optimizer=replace(recipe.optimizer, averaged_fraction=fraction))


AVERAGE_OF_ALL = averaging(1.0)


def sparsify(
    workspace: Path,
    out: Path,
    *callbacks: Callback,
    recipe: Recipe | None = AVERAGE_OF_ALL,
    trainer=None,
    **others,
) -> edgewise.SparsifyResult:
    return edgewise.sparsify(
        workspace / "llama",
        workspace / "text.txt",
        settings(out, **others),
        recipe=recipe,
        trainer=trainer,
        callbacks=callbacks,
    )


def a_run(workspace: Path, out: Path, steps: int, recipe: Recipe = AVERAGE_OF_ALL, **others) -> SparsifyRun:
    """The parts of a run, before its first step."""
    dense, tokenizer = edgewise.load(workspace / "llama"), edgewise.load_tokenizer(workspace / "llama")
    options = settings(out, steps, **others)
    data = training_data("", workspace / "text.txt", options, dense, tokenizer)
    run = SparsifyRun(dense, data, options, Accelerator(cpu=True), recipe)
    run.state.planned_steps, run.state.dense_ce = steps, 0.0
    return run


class WeightsOfSteps(Callback):
    """The trained weights after each step."""

    def __init__(self):
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, trainer: Any, metrics: Any) -> None:
        parameters = trainer.run.twin.inner.named_parameters()
        self.weights.append({name: parameter.detach().clone() for name, parameter in parameters})


# ------------------------------------------------------------------------------------------------------ the average


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.5, 30))
def test_the_first_count_alike_and_later_ones_push_out_the_oldest(values, over):
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    average, expected = Average([weight]), 0.0
    for number, value in enumerate(values, start=1):
        weight.data.fill_(value)
        average.update(over)
        share = max(1 / number, 1 / max(1.0, over))
        expected = (1 - share) * expected + share * value
    with average.applied():
        assert weight.item() == pytest.approx(expected, abs=1e-9)
        if over >= len(values):
            assert weight.item() == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert weight.item() == values[-1]


def test_weights_come_back_whatever_happens_while_the_average_is_in_their_place():
    weight = nn.Parameter(torch.tensor([1.0]))
    average = Average([weight])
    for value in (1.0, 3.0):
        weight.data.fill_(value)
        average.update(10)
    with pytest.raises(ZeroDivisionError), average.applied():
        assert weight.item() == 2.0
        raise ZeroDivisionError
    assert weight.item() == 3.0
    with average.applied():
        assert weight.item() == 2.0


def test_an_average_of_nothing_leaves_weights_alone(tmp_path):
    weight = nn.Parameter(torch.tensor([1.0]))
    average = Average([weight])
    average.save(tmp_path / "average")
    average.load(tmp_path / "average")
    with average.applied():
        assert weight.item() == 1.0


def test_an_average_goes_on_from_its_file(tmp_path):
    weight = nn.Parameter(torch.tensor([1.0]))
    first, second = Average([weight]), Average([weight])
    first.update(10)
    first.save(tmp_path / "average")
    second.load(tmp_path / "average")
    weight.data.fill_(2.0)
    second.update(10)
    with second.applied():
        assert weight.item() == 1.5


# -------------------------------------------------------------------------------------------------- the multiplier


def test_pressure_goes_by_what_held_out_text_says_of_the_twin():
    for gap, rises in ((0.03, False), (0.001, True)):
        multiplier = Multiplier(beta=1.0, step_size=0.1, minimum=0.01, maximum=10.0)
        multiplier.update(0.01, tolerance=0.01)  # neither room nor excess
        assert multiplier.beta == 1.0
        multiplier.loss.correct(gap)
        assert multiplier.expected == pytest.approx(gap)
        multiplier.update(0.01, tolerance=0.01)
        assert (multiplier.beta > 1.0) is rises and (multiplier.beta < 1.0) is not rises


def test_between_validations_the_batches_tell_how_the_loss_changes():
    multiplier = Multiplier(beta=1.0, step_size=0.1, minimum=0.01, maximum=10.0)
    multiplier.update(0.01, tolerance=0.01)
    for gap in (0.02, 0.04):
        multiplier.loss.correct(gap)
        assert multiplier.expected == pytest.approx(gap)
    multiplier.update(0.03, tolerance=0.01)  # 0.02 above the moving average
    assert multiplier.expected == pytest.approx(0.04 + (1 - multiplier.decay) * 0.02)


@pytest.mark.parametrize(("fraction", "over"), [(1.0, 100), (0.11, 11), (0.05, 10)])
def test_what_batches_lose_is_averaged_over_the_steps_of_the_twin_and_no_fewer_than_ten(
    workspace, tmp_path, fraction, over
):
    run, expected = a_run(workspace, tmp_path, 100, averaging(fraction)), 0.0
    for n in range(1, 15):
        metrics, _ = take_step(run)
        share = max(1 / n, 1 / over)
        expected = (1 - share) * expected + share * (metrics.ce - metrics.dense_ce)
        assert run.state.multiplier.loss.average == pytest.approx(expected, abs=1e-9)


def test_pressure_moves_as_slowly_as_the_run_is_long(workspace, tmp_path):
    """Whose steps are few has large ones, but never larger than the recipe's."""
    recipe = AVERAGE_OF_ALL.multiplier
    for steps in (STEPS, 1_000):
        run = a_run(workspace, tmp_path, steps)
        run.state.multiplier.loss.correction = run.state.multiplier.kl.correction = -9.0  # both are kept
        before = run.state.multiplier.integral
        take_step(run)
        assert recipe.max_change is not None
        expected = min(recipe.step_size, recipe.max_change / steps)
        assert run.state.multiplier.integral == pytest.approx(before * math.exp(expected))


# ---------------------------------------------------------------------------------------------------------- a run


@pytest.mark.parametrize("attention_only", (False, True))
def test_the_twin_is_the_average_of_the_steps_and_measured_as_such(workspace, tmp_path, attention_only):
    steps = WeightsOfSteps()
    result = sparsify(workspace, tmp_path / "run", steps, attention_only=attention_only)
    saved = edgewise.load(tmp_path / "run")
    for name, parameter in saved.named_parameters():
        mean = torch.stack([weights[name] for weights in steps.weights]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=0, atol=1e-6)
    assert len(steps.weights) == STEPS
    assert not all(torch.equal(p, steps.weights[-1][name]) for name, p in saved.named_parameters())
    tokenizer = edgewise.load_tokenizer(workspace / "llama")
    data = training_data("", workspace / "text.txt", settings(tmp_path), saved, tokenizer)
    assert measure(saved, data.held_out).ce == pytest.approx(result.summary["sparse_ce"], abs=1e-5)


def test_a_small_models_twin_is_its_last_step(workspace, tmp_path):
    steps = WeightsOfSteps()
    sparsify(workspace, tmp_path / "run", steps, recipe=None)
    for name, parameter in edgewise.load(tmp_path / "run").named_parameters():
        assert torch.equal(parameter.detach(), steps.weights[-1][name])


def test_an_interrupted_run_ends_with_the_same_average(workspace, tmp_path):
    sparsify(workspace, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        sparsify(workspace, tmp_path / "half", interrupt_at(2))
    sparsify(workspace, tmp_path / "half", resume=True)
    whole, half = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(torch.equal(whole[name], half[name]) for name in whole)
    said = [
        json.loads((tmp_path / name / "summary.json").read_text())["sparse_ce"] for name in ("whole", "half")
    ]
    assert said[0] == said[1]


def test_what_a_validation_finds_while_layers_are_alone_is_not_held_against_all_together(workspace, tmp_path):
    """Neither before the first step of all layers, nor after."""
    run = a_run(workspace, tmp_path, 8, layerwise_warmup=str(4 * ROWS * CONTEXT))
    assert run.layerwise_steps == 4
    while run.state.step < 4:
        take_step(run)
        run.correct_multiplier(run.validator.measure_twin())
    multiplier = run.state.multiplier
    assert multiplier.loss.correction is None and multiplier.kl.correction is None
    multiplier.loss.correct(9.0)
    take_step(run)
    assert multiplier.loss.correction is None
    checked = run.validator.measure_twin()
    run.correct_multiplier(checked)
    actual = checked.against_dense
    assert actual is not None
    assert multiplier.loss.expected == pytest.approx(actual.delta_ce)
    assert multiplier.kl.expected == pytest.approx(actual.kl)


@pytest.mark.parametrize(("share", "rows"), [(0.0, 2), (0.25, STEPS * ROWS // 4), (1.0, None)])
def test_a_validation_that_steers_reads_a_share_of_the_runs_tokens(workspace, tmp_path, share, rows):
    trainer = TrainerConfig(validation_tokens=2 * CONTEXT, validation_share=share)
    result = sparsify(workspace, tmp_path / "out", trainer=trainer)
    n_tokens = [line["held_out_tokens"] for line in result.log if "held_out_tokens" in line]
    held_out = a_run(workspace, tmp_path, STEPS).data.held_out
    n_held_out = int((held_out.targets != IGNORE).sum())
    if rows is not None:  # each predicts all its tokens but the first of a text
        assert all((rows - 1) * CONTEXT < n <= rows * CONTEXT < n_held_out for n in n_tokens)
    else:
        assert set(n_tokens) == {n_held_out}


def test_a_run_without_an_end_does_not_stand_still(workspace, tmp_path):
    """A density alone allows for a day of steps, over which nothing is to be spread."""
    run = a_run(workspace, tmp_path, 1_000_000)
    take_step(run)
    assert run.schedule.at(run.state.step, run.state.planned_steps).multiplier_step_size >= 0.004
    assert run.schedule.averaging_window(run.state.planned_steps) <= 4000


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_adapters_are_averaged_before_they_are_merged(workspace, tmp_path):
    result = sparsify(workspace, tmp_path / "run", lora=2)
    saved = edgewise.load(tmp_path / "run")
    tokenizer = edgewise.load_tokenizer(workspace / "llama")
    data = training_data("", workspace / "text.txt", settings(tmp_path), saved, tokenizer)
    assert measure(saved, data.held_out).ce == pytest.approx(result.summary["sparse_ce"], abs=1e-5)


def test_a_run_that_was_begun_without_an_average_begins_one(workspace, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        sparsify(workspace, tmp_path / "run", interrupt_at(2), recipe=RECIPES["small"], lr=1e-4)
    steps = WeightsOfSteps()
    sparsify(workspace, tmp_path / "run", steps, resume=True)
    assert "the recipe is another now" in capsys.readouterr().err
    for name, parameter in edgewise.load(tmp_path / "run").named_parameters():
        mean = torch.stack([weights[name] for weights in steps.weights]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=0, atol=1e-6)


def test_weights_in_another_order_of_memory_are_saved(tmp_path):
    weight = nn.Parameter(torch.arange(6.0).view(2, 3).T)
    average = Average([weight])
    average.update(1)
    average.save(tmp_path / "average")
    average.load(tmp_path / "average")
    with average.applied():
        assert torch.equal(weight, torch.arange(6.0).view(2, 3).T)
