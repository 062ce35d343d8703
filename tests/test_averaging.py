"""The twin of a pretrained model: an average of many steps, held to what it loses on held-out text."""

import json
import math
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from runs import CONTEXT, ROWS, STEPS, before_step, save_llama_and_text, settings, weights
from torch import nn

import edgewise
from edgewise.measure.evaluation import measure
from edgewise.training.averaging import Average
from edgewise.training.sparsify import loop
from edgewise.training.sparsify.objective import Multiplier
from edgewise.training.sparsify.recipe import RECIPES, Recipe
from edgewise.training.sparsify.run import Run


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return save_llama_and_text(tmp_path_factory.mktemp("place"))


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    monkeypatch.setattr(loop, "draw_run", lambda folder: None)


def averaging(fraction: float) -> Recipe:
    """The recipe of pretrained models, with the average of a fraction of the run."""
    recipe = RECIPES["pretrained"]
    return replace(recipe, optimizer=replace(recipe.optimizer, averaged_fraction=fraction))


AVERAGE_OF_ALL = averaging(1.0)


def sparsify(
    place: Path, out: Path, recipe: Recipe | None = AVERAGE_OF_ALL, **others
) -> edgewise.SparsifyResult:
    return edgewise.sparsify(place / "llama", place / "text.txt", settings(out, **others), recipe=recipe)


def a_run(place: Path, out: Path, steps: int, recipe: Recipe = AVERAGE_OF_ALL, **others) -> Run:
    """The parts of a run, before its first step."""
    dense, tokenizer = edgewise.load(place / "llama"), edgewise.load_tokenizer(place / "llama")
    asked = settings(out, steps, **others)
    data = loop.training_data("", place / "text.txt", asked, dense, tokenizer)
    run = Run(dense, data, asked, Accelerator(cpu=True), recipe)
    run.steps, run.target = steps, 0.0
    return run


def every_step(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The trained weights after each step, as they come."""
    seen, step = [], Run.step

    def stepped(run, *args):
        told = step(run, *args)
        seen.append({name: p.detach().clone() for name, p in run.inner.named_parameters()})
        return told

    monkeypatch.setattr(Run, "step", stepped)
    return seen


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
    for found, rises in ((0.03, False), (0.001, True)):
        multiplier = Multiplier(beta=1.0, speed=0.1, floor=0.01, ceiling=10.0)
        multiplier.update(0.01, tolerance=0.01)  # neither room nor excess
        assert multiplier.beta == 1.0
        multiplier.correct(found)
        assert multiplier.expected == pytest.approx(found)
        multiplier.update(0.01, tolerance=0.01)
        assert (multiplier.beta > 1.0) is rises and (multiplier.beta < 1.0) is not rises


def test_between_validations_the_batches_tell_how_the_loss_changes():
    multiplier = Multiplier(beta=1.0, speed=0.1, floor=0.01, ceiling=10.0)
    multiplier.update(0.01, tolerance=0.01)
    for found in (0.02, 0.04):
        multiplier.correct(found)
        assert multiplier.expected == pytest.approx(found)
    multiplier.update(0.03, tolerance=0.01)  # 0.02 above the moving average
    assert multiplier.expected == pytest.approx(0.04 + (1 - multiplier.memory) * 0.02)


@pytest.mark.parametrize(("fraction", "over"), [(1.0, 100), (0.11, 11), (0.05, 10)])
def test_what_batches_lose_is_averaged_over_the_steps_of_the_twin_and_no_fewer_than_ten(
    place, tmp_path, fraction, over
):
    run, expected = a_run(place, tmp_path, 100, averaging(fraction)), 0.0
    for n in range(1, 15):
        seen = run.step()
        share = max(1 / n, 1 / over)
        expected = (1 - share) * expected + share * (seen.ce - seen.dense_ce)
        assert run.multiplier.gap == pytest.approx(expected, abs=1e-9)


def test_pressure_moves_as_slowly_as_the_run_is_long(place, tmp_path, monkeypatch):
    """Whose steps are few has large ones, but never larger than the recipe's."""
    recipe, loss_is_kept, update = AVERAGE_OF_ALL.multiplier, -1.0, Multiplier.update
    monkeypatch.setattr(Multiplier, "update", lambda self, gap, *limits: update(self, loss_is_kept, *limits))
    for steps in (STEPS, 1_000):
        run = a_run(place, tmp_path, steps)
        before = run.multiplier.level
        run.step()
        assert recipe.max_change is not None
        expected = min(recipe.step_size, recipe.max_change / steps)
        assert run.multiplier.level == pytest.approx(before * math.exp(expected))


# ---------------------------------------------------------------------------------------------------------- a run


@pytest.mark.parametrize("attention_only", (False, True))
def test_the_twin_is_the_average_of_the_steps_and_measured_as_such(
    place, tmp_path, monkeypatch, attention_only
):
    seen = every_step(monkeypatch)
    result = sparsify(place, tmp_path / "run", attention_only=attention_only)
    saved = edgewise.load(tmp_path / "run")
    for name, parameter in saved.named_parameters():
        mean = torch.stack([each[name] for each in seen]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=0, atol=1e-6)
    assert len(seen) == STEPS and not all(torch.equal(p, seen[-1][n]) for n, p in saved.named_parameters())
    tokenizer = edgewise.load_tokenizer(place / "llama")
    data = loop.training_data("", place / "text.txt", settings(tmp_path), saved, tokenizer)
    assert measure(saved, data.held_out).ce == pytest.approx(result.summary["sparse_ce"], abs=1e-5)


def test_a_small_models_twin_is_its_last_step(place, tmp_path, monkeypatch):
    seen = every_step(monkeypatch)
    sparsify(place, tmp_path / "run", recipe=None)
    for name, parameter in edgewise.load(tmp_path / "run").named_parameters():
        assert torch.equal(parameter.detach(), seen[-1][name])


def test_an_interrupted_run_ends_with_the_same_average(place, tmp_path):
    sparsify(place, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_step(patch, 2, lambda run: signal.raise_signal(signal.SIGINT))
        sparsify(place, tmp_path / "half")
    sparsify(place, tmp_path / "half", resume=True)
    whole, half = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(torch.equal(whole[name], half[name]) for name in whole)
    said = [
        json.loads((tmp_path / name / "summary.json").read_text())["sparse_ce"] for name in ("whole", "half")
    ]
    assert said[0] == said[1]


def test_what_a_validation_finds_while_layers_are_alone_is_not_held_against_all_together(place, tmp_path):
    """Neither before the first step of all layers, nor after."""
    run = a_run(place, tmp_path, 8, layerwise_warmup=str(4 * ROWS * CONTEXT))
    assert run.layerwise_steps == 4
    while run.step_number < 4:
        run.step()
        run.take_notice(run.validate(), dense_ce=-1.0)
    assert run.multiplier.correction is None
    run.multiplier.correct(9.0)
    run.step()
    assert run.multiplier.correction is None
    checked = run.validate()
    run.take_notice(checked, dense_ce=0.0)
    assert run.multiplier.expected == pytest.approx(checked.ce)


@pytest.mark.parametrize(("share", "rows"), [(0.0, 2), (0.25, STEPS * ROWS // 4), (1.0, None)])
def test_a_validation_that_steers_reads_a_share_of_the_runs_tokens(place, tmp_path, monkeypatch, share, rows):
    monkeypatch.setattr(loop, "_CHECK_TOKENS", 2 * CONTEXT)
    monkeypatch.setattr(loop, "_CHECKED_SHARE", share)
    asked, validate = [], Run.validate

    def noting(run: Run, rows: int | None = None):
        measured = validate(run, rows)
        asked.append(measured.tokens)
        return measured

    monkeypatch.setattr(Run, "validate", noting)
    sparsify(place, tmp_path / "out")
    *on_the_way, last = asked
    if rows is not None:  # each predicts all its tokens but the first of a text
        assert all((rows - 1) * CONTEXT < tokens <= rows * CONTEXT < last for tokens in on_the_way)
    else:
        assert set(on_the_way) == {last}


def test_a_run_without_an_end_does_not_stand_still(place, tmp_path):
    """A density alone allows for a day of steps, over which nothing is to be spread."""
    run = a_run(place, tmp_path, 1_000_000)
    run.step()
    assert run.multiplier.speed >= 0.004 and run.recipe.optimizer.averaged_fraction * run.horizon <= 4000


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_adapters_are_averaged_before_they_are_merged(place, tmp_path):
    result = sparsify(place, tmp_path / "run", lora=2)
    saved = edgewise.load(tmp_path / "run")
    tokenizer = edgewise.load_tokenizer(place / "llama")
    data = loop.training_data("", place / "text.txt", settings(tmp_path), saved, tokenizer)
    assert measure(saved, data.held_out).ce == pytest.approx(result.summary["sparse_ce"], abs=1e-5)


def test_a_run_that_was_begun_without_an_average_begins_one(place, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_step(patch, 2, lambda run: signal.raise_signal(signal.SIGINT))
        sparsify(place, tmp_path / "run", recipe=RECIPES["small"], lr=1e-4)
    seen = every_step(monkeypatch)
    sparsify(place, tmp_path / "run", resume=True)
    assert "the recipe is another now" in capsys.readouterr().err
    for name, parameter in edgewise.load(tmp_path / "run").named_parameters():
        mean = torch.stack([each[name] for each in seen]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=0, atol=1e-6)


def test_weights_in_another_order_of_memory_are_saved(tmp_path):
    weight = nn.Parameter(torch.arange(6.0).view(2, 3).T)
    average = Average([weight])
    average.update(1)
    average.save(tmp_path / "average")
    average.load(tmp_path / "average")
    with average.applied():
        assert torch.equal(weight, torch.arange(6.0).view(2, 3).T)
