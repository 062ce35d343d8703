"""Training a pocket model: reproducible, and interruptible without loss."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

from edgewise.pocket.recipe import RECIPES
from edgewise.pocket.train import Config, Training, check_plateau, schedule, train


def _training(steps: int) -> Training:
    torch.manual_seed(0)
    recipe = RECIPES["pocket-addition"]
    return Training(recipe, GPT2LMHeadModel(recipe.config), steps, rate=1e-3)


def test_schedule_warms_up_and_ends_near_zero():
    steps = 1000
    rates = [schedule(step, steps) for step in range(steps)]
    assert 0 < rates[0] < 0.02 and max(rates) == 1.0 and 0 < rates[-1] < 0.01
    assert rates[200] == rates[450] == 1.0


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path):
    whole, half = _training(6), _training(6)
    for _ in range(6):
        whole.step(0)
    for _ in range(3):
        half.step(0)
    half.save(tmp_path / "state.pt")
    again = _training(6)
    again.resume(tmp_path / "state.pt")
    for _ in range(3):
        again.step(0)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_miniature_writes_a_folder_that_transformers_reads(tmp_path):
    unseen = replace(RECIPES["pocket-addition"], glance=lambda model: {})  # ten glances would take longest
    out = tmp_path / "model"
    train(Config("pocket-addition", out=out, tokens=20 * 256 * 11, state=tmp_path / "state"), unseen)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert AutoTokenizer.from_pretrained(out).decode([5, 3, 10]) == "5 3 +"
    assert sum(p.numel() for p in model.parameters()) * 4 <= 2**20
    made = json.loads((out / "made.json").read_text())
    assert made["steps"] == 20 and made["held out"]["loss"] < 2.5
    assert not list((tmp_path / "state").glob("*")), "a finished training leaves no state behind"

    check_plateau(Config("pocket-addition", out=out, tokens=5 * 256 * 11), unseen)
    made = json.loads((out / "made.json").read_text())
    assert made["plateau"]["gain in nats"] > 0, "20 steps are no plateau"


def test_less_than_a_step_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        Config("pocket", tokens=10)
