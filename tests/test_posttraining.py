"""Post-training: runs that nothing can lose, figures that are what they say, controls, and one clear line for bad input."""

import itertools
import json
import math
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from runs import (
    CONTEXT,
    ROWS,
    STEPS,
    BeforeStep,
    command,
    farthest,
    interrupt_at,
    outcome,
    said,
    save_host,
    save_text,
    settings,
    snapshot_names,
    weights,
)
from safetensors.torch import load_file
from torch import nn

import edgewise
from edgewise.core.console import Display
from edgewise.data import IGNORE, Batch, embedded_data, open_data
from edgewise.measure.distillation import distillation_terms
from edgewise.measure.forward import sequences_per_pass
from edgewise.measure.loss import cross_entropy, measure
from edgewise.models.registry import embedded_models
from edgewise.pocket import evaluate as pocket_evaluate
from edgewise.training.callbacks import Callback
from edgewise.training.config import TrainerConfig
from edgewise.training.data import training_data
from edgewise.training.snapshot import newest_intact
from edgewise.training.sparsify.console import print_result
from edgewise.training.sparsify.control_store import control_folder, load_control
from edgewise.training.sparsify.masks import TOP_K, measure_masked, random_mask
from edgewise.training.sparsify.multiplier import Multiplier
from edgewise.training.sparsify.recipe import RECIPES
from edgewise.training.sparsify.result import SparsifyResult
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.schedule import multiplier_minimum, relaxed_minimum
from edgewise.training.sparsify.timing import measure_step
from edgewise.training.trainer import take_step


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with models and text."""
    place = tmp_path_factory.mktemp("place")
    for kind in ("gpt2", "llama"):
        save_host(place / kind, kind)
    save_text(place / "text.txt")
    return place


def sparsify(
    place: Path, out: Path, model: str = "gpt2", callbacks=(), trainer=None, **others
) -> edgewise.SparsifyResult:
    config = settings(out, **others)
    return edgewise.sparsify(place / model, place / "text.txt", config, callbacks=callbacks, trainer=trainer)


def sparsify_command(place: Path, out: Path, *others: object) -> tuple[int, str, str]:
    """A run of the same settings on the command line."""
    fixed = {
        "--data": place / "text.txt",
        "--batch-size": ROWS,
        "--tokens": STEPS * ROWS * CONTEXT,
        "--save-minutes": 0,
    }
    flags = [word for flag, value in {**fixed, "--out": out}.items() for word in (flag, value)]
    return command("sparsify", place / "gpt2", *flags, "--no-plot", *others)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> dict[str, edgewise.SparsifyResult]:
    """Uninterrupted runs."""
    out = tmp_path_factory.mktemp("whole")
    return {recipe: sparsify(place, out / recipe, recipe=recipe, plot=True) for recipe in ("small", "paper")}


@pytest.fixture(scope="module")
def stopped(place, tmp_path_factory) -> Path:
    """A run that was interrupted after three of its steps."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, out, callbacks=[interrupt_at(1)])
    assert snapshot_names(out) == ["step-000000002", "step-000000003"]
    return out


@pytest.fixture
def half(stopped, tmp_path) -> Path:
    """A copy of that run, to go on with."""
    return shutil.copytree(stopped, tmp_path / "half")


def a_run(place: Path, model: str = "gpt2", **others) -> SparsifyRun:
    """The parts of a run, before its first step."""
    dense, tokenizer = edgewise.load(place / model), edgewise.load_tokenizer(place / model)
    data = open_data(place / "text.txt", tokenizer, CONTEXT, seed=0)
    run = SparsifyRun(dense, data, settings(Path("unused"), **others), Accelerator(cpu=True))
    run.state.planned_steps, run.state.dense_ce = STEPS, 0.0
    return run


# ------------------------------------------------------------------------------------------------- stop and go on


@pytest.mark.slow
def test_a_run_killed_in_a_step_and_while_saving_ends_where_it_would_have(place, tmp_path):
    steps = 30
    sparsify(place, tmp_path / "whole", steps=steps)
    out, log = tmp_path / "killed", tmp_path / "killed" / "log.jsonl"
    begin = [
        sys.executable, "-m", "edgewise", "sparsify", place / "gpt2", "--data", place / "text.txt", "--out", out,
        "--batch-size", str(ROWS), "--tokens", str(steps * ROWS * CONTEXT), "--save-minutes", "0",
    ]  # fmt: skip

    def logged() -> int:
        return len(log.read_text().splitlines()) if log.exists() else 0

    def kill(process: subprocess.Popen, when) -> None:
        while not when():
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.kill()
        process.wait()

    first = subprocess.Popen(begin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    kill(first, lambda: logged() >= 8)
    assert not (out / "twin.safetensors").exists()
    before = logged()

    second = subprocess.Popen([*begin, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def caught_while_saving() -> bool:
        if logged() < before + 8 or not (out / "snapshots" / ".writing" / "model.safetensors").exists():
            return False
        second.send_signal(signal.SIGSTOP)
        if (out / "snapshots" / ".writing").exists():
            return True
        second.send_signal(signal.SIGCONT)
        return False

    kill(second, caught_while_saving)
    assert ".writing" in snapshot_names(out) and not (out / "twin.safetensors").exists()

    sparsify(place, out, steps=steps, resume=True)
    assert farthest(weights(out), weights(tmp_path / "whole")) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines if "expected_density" in line] == [*range(1, steps + 1)]


@pytest.mark.parametrize(
    ("number", "recipe"),
    [(signal.SIGINT, "small"), (signal.SIGTERM, "small"), (signal.SIGINT, "paper")],
)
def test_interrupted_it_saves_says_how_to_go_on_and_goes_on(place, tmp_path, whole, number, recipe):
    out, handler = tmp_path / "run", signal.getsignal(signal.SIGINT)  # in the background it is ignored
    callbacks = [interrupt_at(3, number)]
    code, _, err = outcome(lambda: sparsify(place, out, recipe=recipe, callbacks=callbacks))
    assert (
        code == 130 and f"stopped at step 5 of {STEPS}" in said(err) and f"--resume --out {out}" in said(err)
    )
    assert signal.getsignal(signal.SIGINT) is handler
    assert snapshot_names(out) == ["step-000000004", "step-000000005"]
    code, printed, err = sparsify_command(place, out, "--recipe", recipe, "--resume")
    assert code == 0 and printed == f"{out}\n" and f"at step 5 of {STEPS}" in err
    assert farthest(weights(out), weights(whole[recipe].folder)) == 0
    assert json.loads((out / "summary.json").read_text())["sparse_ce"] == whole[recipe].summary["sparse_ce"]


def test_a_second_ctrl_c_stops_at_once(place, tmp_path):
    def twice(run):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    code, _, err = outcome(lambda: sparsify(place, tmp_path, callbacks=[BeforeStep(2, twice)]))
    assert code == 130 and "Traceback" not in err
    assert snapshot_names(tmp_path) == ["step-000000001", "step-000000002"]


@pytest.mark.parametrize("room", [100_000, 300_000])
def test_a_full_disk_leaves_the_snapshot_before(place, tmp_path, whole, room):
    """Without room for the weights, and with room for them but not for the optimizer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill_disk = BeforeStep(3, lambda run: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard)))
    try:
        code, _, err = outcome(lambda: sparsify(place, tmp_path, callbacks=[fill_disk]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2 and "the snapshot could not be written" in said(err)
    assert "step-000000003 is intact" in said(err) and "--resume" in said(err)
    assert snapshot_names(tmp_path) == ["step-000000002", "step-000000003"]
    assert sparsify_command(place, tmp_path, "--resume")[0] == 0
    assert farthest(weights(tmp_path), weights(whole["small"].folder)) == 0


def test_a_twin_or_log_that_cannot_be_written_is_one_line_too(place, half, whole):
    def no_room(*args, **named):
        raise OSError(28, "No space left on device")

    def fill_disk(run):
        run.twin.inner.save_pretrained = no_room

    code, _, err = outcome(lambda: sparsify(place, half, resume=True, callbacks=[BeforeStep(5, fill_disk)]))
    line = "the twin could not be written: the disk is full; step-000000006 is intact"
    assert code == 2 and line in said(err)
    assert sparsify_command(place, half, "--resume")[0] == 0
    assert farthest(weights(half), weights(whole["small"].folder)) == 0
    (half / "file").touch()
    assert "cannot be written: Not a directory" in said(sparsify_command(place, half / "file" / "run")[2])


DAMAGES = {
    "truncated": ("model.safetensors", lambda data: data[:1000]),
    "one bit": ("optimizer.bin", lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]),
    "another step": ("state.json", lambda data: data.replace(b'"step": 3', b'"step": 4')),
    "no list": ("files.json", lambda data: b""),
    "gone": ("model.safetensors", None),
    "list gone": ("files.json", None),
}


def damage(path: Path, change) -> None:
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_to_a_snapshot_is_noticed(half, kind):
    file, change = DAMAGES[kind]
    newest = half / "snapshots" / "step-000000003"
    said_of_it: list[str] = []
    assert newest_intact(half / "snapshots", said_of_it.append)[0] == newest and not said_of_it
    damage(newest / file, change)
    found, content = newest_intact(half / "snapshots", said_of_it.append)
    assert found.name == "step-000000002" and content["state"]["step"] == 2
    assert len(said_of_it) == 1 and "step-000000003 is damaged" in said_of_it[0]


def test_a_run_goes_on_from_the_last_whole_snapshot(place, half, whole):
    damage(half / "snapshots" / "step-000000003" / "model.safetensors", lambda data: data[:-1])
    code, _, err = sparsify_command(place, half, "--resume")
    assert code == 0 and "snapshot step-000000003 is damaged (model.safetensors has changed)" in err
    assert f"at step 2 of {STEPS}" in err
    assert farthest(weights(half), weights(whole["small"].folder)) == 0


def test_without_a_whole_snapshot_there_is_one_clear_error(place, half):
    for path in (half / "snapshots").iterdir():
        damage(path / "optimizer.bin", None)
    code, _, err = sparsify_command(place, half, "--resume")
    assert code == 2 and "holds no intact snapshot" in said(err)


def test_a_run_is_resumed_with_its_own_settings(place, half):
    others = (
        ("--seed", 1),
        ("--recipe", "paper"),
        ("--b", 3),
        ("--grad-accum", 2),
        ("--lora", 2),
    )
    for flag, value in others:
        code, _, err = sparsify_command(place, half, "--resume", flag, value)
        assert code == 2 and f"resume it without {flag}" in said(err)
    other_text = save_text(half / "other.txt", rows=40)
    code, _, err = sparsify_command(place, half, "--resume", "--data", other_text)
    assert code == 2 and "begun on text.txt, not on other.txt" in said(err)
    code, _, err = command(
        "sparsify",
        place / "llama",
        "--data",
        place / "text.txt",
        "--out",
        half,
        "--resume",
        "--batch-size",
        ROWS,
    )
    assert code == 2 and "begun with another model" in said(err)


def test_a_run_with_its_own_held_out_text_is_resumed_with_it(place, tmp_path):
    held_out = save_text(tmp_path / "held-out.txt", rows=5)
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, tmp_path / "run", valid=(str(held_out),), callbacks=[interrupt_at(1)])
    assert sparsify_command(place, tmp_path / "run", "--valid", held_out, "--resume")[0] == 0
    code, _, err = sparsify_command(place, tmp_path / "run", "--valid", place / "text.txt", "--resume")
    assert code == 2 and "resume it without --valid" in said(err)


def test_a_run_goes_on_for_more_tokens(place, half):
    twice = 2 * STEPS * ROWS * CONTEXT
    code, _, err = sparsify_command(place, half, "--resume", "--tokens", twice)
    assert code == 0 and f"work     {2 * STEPS - 3:,} steps" in err
    assert json.loads((half / "summary.json").read_text())["tokens"] == twice
    code, _, err = sparsify_command(place, half, "--resume", "--tokens", twice)  # nothing is left to do
    assert code == 0 and f"at step {2 * STEPS} of {2 * STEPS}" in err


def test_a_run_goes_on_with_another_margin(place, half):
    code, _, err = sparsify_command(place, half, "--resume", "--tolerance", 0.5)
    assert code == 0, err
    assert json.loads((half / "summary.json").read_text())["tolerance"] == 0.5


@pytest.mark.parametrize("kept", [True, False])
def test_a_limit_that_was_not_kept_comes_with_a_way_to_keep_it(whole, kept, capsys):
    summary = {**whole["small"].summary, "kept": kept}
    print_result(Display(), SparsifyResult(summary, Path("runs/it")))
    err = capsys.readouterr().err
    assert ("NOT kept" in err) == ("resume the run in runs/it" in " ".join(err.split())) == (not kept)


class ManySteps(Callback):
    """Plans more steps than there is time for."""

    def on_begin(self, trainer: Any) -> None:
        trainer.state.planned_steps = 1_000_000


def test_a_timed_run_is_resumed_with_the_time_that_is_left(place, tmp_path):
    """New minutes are added only when they are asked for; schedule and learning rate go on."""
    fast = TrainerConfig(step_share=0, seconds_per_step=0.5)
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, tmp_path, tokens=None, minutes=5.0, trainer=fast, callbacks=[interrupt_at(1)])
    first = saved_state(tmp_path)
    assert first["time_limit"] == 300 and first["seconds_spent"] > 0
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, tmp_path, tokens=None, resume=True, trainer=fast, callbacks=[interrupt_at(3)])
    then = saved_state(tmp_path)
    assert then["time_limit"] == 300 and then["seconds_spent"] > first["seconds_spent"]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {line["planned_steps"] for line in log[:5]} == {first["planned_steps"]}
    rates = [line["learning_rate"] for line in log if "learning_rate" in line]
    assert rates[:4] == pytest.approx([rates[0] * n for n in (1, 2, 3, 4)])  # warm-up
    with pytest.raises(KeyboardInterrupt):
        asked = {"minutes": 1.0, "resume": True, "trainer": fast}
        sparsify(place, tmp_path, tokens=None, callbacks=[interrupt_at(5)], **asked)
    assert saved_state(tmp_path)["time_limit"] == pytest.approx(then["seconds_spent"] + 60)


def saved_state(out: Path) -> dict[str, Any]:
    """Of the newest snapshot."""
    return json.loads((out / "snapshots" / snapshot_names(out)[-1] / "state.json").read_text())["state"]


def test_minutes_that_are_too_few_are_refused_with_those_that_would_do(place, tmp_path):
    code, _, err = command(
        "sparsify", place / "gpt2", "--data", place / "text.txt", "--minutes", 1e-4, "--out", tmp_path / "out"
    )
    line = said(err)
    assert (
        code == 2 and "--minutes 0.0001 is too little time: set-up took" in line and "give at least" in line
    )
    assert "measuring a step ..." in err  # what is redirected says what is being done


def test_time_up_ends_a_run_with_a_validation(place, tmp_path):
    any_budget = TrainerConfig(step_share=0)
    timed: dict[str, Any] = {"tokens": None, "minutes": 1e-9, "trainer": any_budget}
    assert sparsify(place, tmp_path, **timed).summary["steps"] == 1
    # so much slower than measured that time is up before it would have been checked
    result = sparsify(place, tmp_path / "slow", callbacks=[ManySteps()], **timed)
    assert result.summary["stopped"] == "time is up"
    assert result.save_figure(result.folder)[-1].stat().st_size > 10_000


EVERY_STEP = TrainerConfig(validation_work=1e9)  # a validation after every step, whatever it costs


def test_a_density_ends_a_run(place, tmp_path):
    result = sparsify(place, tmp_path, density=0.999, tolerance=10.0, trainer=EVERY_STEP)
    assert result.summary["steps"] == 1 and result.summary["stopped"] == "density 0.999 reached"


class LossTooHigh(Callback):
    """Every step finds the twin's loss far above the dense model's."""

    def on_step_begin(self, trainer: Any) -> None:
        trainer.state.multiplier.loss.correction = 1.0


def test_with_its_density_reached_a_run_only_mends_the_loss(place, tmp_path):
    """The multiplier, held for most of a run, is let go: by its largest change in every step that the loss is too high."""
    recipe, tolerance = RECIPES["small"], 0.01
    betas = {}
    for density in (None, 0.999):
        out, asked = tmp_path / str(density), {"density": density, "tolerance": tolerance, "b": 1.0}
        sparsify(place, out, callbacks=[LossTooHigh()], trainer=EVERY_STEP, **asked)
        log = [json.loads(line) for line in (tmp_path / str(density) / "log.jsonl").read_text().splitlines()]
        betas[density] = {
            row["step"]: row["beta"] for row in log if row["step"] <= recipe.multiplier.hold_fraction * STEPS
        }
    assert min(betas[None].values()) == pytest.approx(recipe.multiplier.initial * tolerance)
    assert len(betas[0.999]) == len(betas[None]) > 2
    for step, beta in betas[0.999].items():
        assert beta == pytest.approx(
            recipe.multiplier.initial * tolerance * math.exp(-recipe.multiplier.step_size * (step - 1))
        )


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 10), st.floats(0.01, 0.5))
def test_the_multipliers_lower_bound_is_held_and_then_falls(share, hold, held, floor):
    found = multiplier_minimum(share, hold, held, floor)
    assert floor <= found * (1 + 1e-9) and found <= held * (1 + 1e-9)
    if hold and share <= hold:
        assert found == held
    assert multiplier_minimum(1.0, hold, held, floor) == pytest.approx(floor if hold < 1 else held)
    assert multiplier_minimum(share, 0.0, held, floor) == floor


@given(st.floats(0.01, 2.0), st.floats(1.0, 100.0))
def test_the_lower_bound_is_relaxed_below_the_target_density(density, least):
    floor = 0.3
    found = relaxed_minimum(least, floor, density)
    assert found == pytest.approx(least if density >= 1 else floor if density <= 0.9 else found)
    assert floor * 0.999 <= found <= relaxed_minimum(least, floor, density + 0.01) * 1.001


# ------------------------------------------------------------------------------------------------------ bad input


def test_wrong_beginnings_are_refused_in_one_line(place, half, tmp_path, whole):
    (tmp_path / "file").touch()
    twin = whole["small"].folder
    with_data = ("--data", place / "text.txt", "--batch-size", ROWS, "--out", tmp_path / "new")
    host = place / "gpt2"
    wrong = {
        "holds a run already": (host, "--out", half),
        "holds no run to resume": (host, *with_data, "--resume"),
        "is a file; give a folder": (host, "--out", tmp_path / "file"),
        "holds other weights, model.safetensors": (host, *with_data, "--out", place / "gpt2"),
        "is a sparse twin already": (twin, *with_data),
        "brings no text of its own; give --data": (host, "--out", tmp_path / "new"),
        "pocket's own text has sequences of 128": ("pocket", "--context", 64, "--out", tmp_path / "new"),
        "--context 64 is longer than the model's own context, 32": (host, *with_data, "--context", 64),
        f"is less than one step of {ROWS * CONTEXT} tokens": (host, *with_data, "--tokens", 100),
        "'many' is no number of tokens": (host, *with_data, "--tokens", "many"),
        "--tokens must be at least 1": (host, *with_data, "--tokens", 0),
        "--density must be above 0 and below 1": (host, *with_data, "--density", 2),
        "cannot be split evenly": (host, *with_data, "--grad-accum", 3),
        "there is no such file or folder": (host, *with_data, "--data", tmp_path / "nothing.txt"),
        "is empty": (host, *with_data, "--data", tmp_path / "empty.txt"),
        "no model at": (tmp_path / "nothing" / "here", *with_data),
    }
    (tmp_path / "empty.txt").touch()
    for sentence, arguments in wrong.items():
        code, printed, err = command("sparsify", *arguments)
        assert code == 2 and printed == "" and sentence in said(err), sentence
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(find_spec("wandb") is not None, reason="it is there")
def test_a_tracker_that_is_not_installed_is_named(place, tmp_path):
    code, _, err = sparsify_command(place, tmp_path, "--report-to", "wandb")
    assert code == 2 and "pip install wandb" in said(err)


def test_a_model_without_a_name_needs_a_tokenizer(place, tmp_path):
    model = edgewise.load(place / "gpt2")
    model.name_or_path = ""
    with pytest.raises(edgewise.EdgewiseError, match="needs a tokenizer"):
        edgewise.sparsify(model, place / "text.txt", settings(tmp_path))
    with pytest.raises(edgewise.EdgewiseError, match="this model brings no text"):
        edgewise.sparsify(model, config=settings(tmp_path))
    tokenizer = edgewise.load_tokenizer("pocket")
    result = edgewise.sparsify(model, place / "text.txt", settings(tmp_path, steps=1), tokenizer=tokenizer)
    assert edgewise.load_tokenizer(result.folder).get_vocab() == tokenizer.get_vocab()


# ----------------------------------------------------------------------------------------------------- divergence


def test_weights_that_are_not_numbers_stop_a_run_and_never_reach_the_disk(place, tmp_path):
    def poison(run):
        next(run.twin.model.parameters()).data.fill_(math.nan)

    code, _, err = outcome(lambda: sparsify(place, tmp_path, callbacks=[BeforeStep(4, poison)]))
    assert code == 2 and "stopped at step 4" in said(err) and "step-000000004" in said(err)
    assert "--resume --lr 0.0003" in said(err)
    for path in (tmp_path / "snapshots").iterdir():
        assert all(x.isfinite().all() for x in load_file(path / "model.safetensors").values())
    assert sparsify_command(place, tmp_path, "--resume", "--lr", "0.0003")[0] == 0


def test_a_step_far_too_large_is_found_out(place, tmp_path):
    def leap(run):
        run.learning_rates = (1e30, 1e30)

    code, _, err = outcome(lambda: sparsify(place, tmp_path, callbacks=[BeforeStep(1, leap)]))
    assert code == 2 and "not a number" in said(err)
    assert not (tmp_path / "twin.safetensors").exists()


# ---------------------------------------------------------------------------------------------- the same training


def test_a_gradient_in_parts_is_the_same(place, tmp_path):
    for recipe in ("small", "paper"):
        at_once = sparsify(place, tmp_path / f"{recipe}-1", "llama", recipe=recipe, grad_accum=1)
        in_parts = sparsify(place, tmp_path / f"{recipe}-4", "llama", recipe=recipe, grad_accum=4)
        # Adam's first steps are as large as the learning rate, 1e-3, where a gradient is nearly zero: rounding shows there
        assert farthest(weights(at_once.folder), weights(in_parts.folder)) < 1e-4
        assert at_once.summary["sparse_ce"] != pytest.approx(at_once.summary["dense_ce"], abs=1e-6)


def test_measuring_a_step_changes_nothing(place):
    runs = [a_run(place), a_run(place)]
    measure_step(runs[0])
    for _ in range(3):
        measure_step(runs[1])
    for run in runs:
        for _ in range(3):
            take_step(run)
    assert farthest(runs[0].twin.inner.state_dict(), runs[1].twin.inner.state_dict()) == 0
    assert runs[0].data.train.state_dict() == runs[1].data.train.state_dict()


def test_bf16_keeps_weights_in_single_precision(place, tmp_path):
    result = sparsify(place, tmp_path / "run", dtype="bfloat16")
    kept = weights(tmp_path / "run").values()
    assert math.isfinite(result.summary["sparse_ce"]) and {x.dtype for x in kept} == {torch.float32}
    # so does a model that comes in half precision, whose steps would be too small for it
    host = save_host(tmp_path / "host", dtype=torch.bfloat16)
    result = edgewise.sparsify(host, place / "text.txt", settings(tmp_path / "run2"))
    assert {x.dtype for x in weights(tmp_path / "run2").values()} == {torch.float32}
    assert edgewise.load(host).dtype == torch.bfloat16


# ----------------------------------------------------------------------------------------------------------- LoRA


def test_lora_trains_adapters_and_merges_them(place):
    run = a_run(place, lora=4)
    dense = run.dense.state_dict()
    for _ in range(3):
        take_step(run)
    base = {
        k.replace("base_model.model.", "").replace("base_layer.", ""): v
        for k, v in run.twin.inner.state_dict().items()
    }
    assert all(torch.equal(base[key], dense[key]) for key in dense)
    assert any((v != 0).any() for k, v in base.items() if "lora_B" in k)
    assert any((gate.b != run.twin.gate.b).any() for gate in run.twin.gates)
    ids = run.data.held_out.ids[:2]
    with torch.no_grad():
        unmerged = run.twin.inner.eval()(input_ids=ids).logits
        assert not torch.allclose(unmerged, run.dense(input_ids=ids).logits, atol=1e-3)
        twin = run.twin.finish().model
        assert torch.allclose(twin(input_ids=ids).logits, unmerged, atol=1e-5)
    assert not [key for key in twin.state_dict() if "lora" in key]


def test_a_lora_twin_is_saved_whole_and_its_run_can_be_resumed(place, tmp_path):
    whole = sparsify(place, tmp_path / "whole", lora=4)
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, tmp_path / "run", lora=4, callbacks=[interrupt_at(1)])
    resumed = sparsify(place, tmp_path / "run", lora=4, resume=True)
    assert farthest(weights(tmp_path / "run"), weights(tmp_path / "whole")) == 0
    loaded, ids = edgewise.load(tmp_path / "run"), torch.arange(2 * CONTEXT).view(2, -1)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, resumed.twin(input_ids=ids).logits)
    assert whole.summary["settings"]["lora"] == 4


def test_lora_without_peft_is_one_line(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    code, _, err = sparsify_command(place, tmp_path, "--lora", 4)
    assert code == 2 and "--lora needs peft" in said(err)


# ------------------------------------------------------------------------------------------------- only attention


@pytest.mark.parametrize("lora", [None, 4])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_attention_only_leaves_all_other_weights_as_they_were(place, kind, lora):
    run = a_run(place, kind, attention_only=True, lora=lora)
    for _ in range(3):
        take_step(run)
    twin = run.twin.finish().model
    assert all(parameter.requires_grad for parameter in twin.parameters())
    dense, moved = dict(run.dense.named_parameters()), set()
    for name, parameter in twin.named_parameters():
        if "edge_gate" not in name and not torch.equal(parameter, dense[name]):
            moved.add(name)
    assert moved and all("attn" in name for name in moved)
    matrices = {name for name in dense if "attn" in name and name.endswith("weight")}
    assert matrices <= moved  # adapters, too, are on each of them
    assert any((gate.b != run.twin.gate.b).any() for gate in run.twin.gates)


def test_attention_only_goes_on_where_it_stopped(place, tmp_path):
    whole = sparsify(place, tmp_path / "whole", attention_only=True)
    with pytest.raises(KeyboardInterrupt):
        sparsify(place, tmp_path / "run", attention_only=True, callbacks=[interrupt_at(1)])
    sparsify(place, tmp_path / "run", resume=True)
    assert farthest(weights(tmp_path / "run"), weights(tmp_path / "whole")) == 0
    assert whole.summary["settings"]["attention_only"]


# ------------------------------------------------------------------------------------------------ what is reported


def loss_by_hand(model: nn.Module, batch: Batch) -> float:
    """Row by row, token by token."""
    losses = []
    for ids, targets, positions in zip(batch.ids, batch.targets, batch.positions, strict=True):
        with torch.no_grad():
            out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
        losses += [-out[t].log_softmax(-1)[y].item() for t, y in enumerate(targets.tolist()) if y != IGNORE]
    return sum(losses) / len(losses)


def test_a_large_vocabulary_is_measured_in_smaller_pieces(place):
    model, run = edgewise.load(place / "gpt2"), a_run(place)
    whole, pieces = measure(model, run.data.held_out), []
    words = len(model.get_output_embeddings().weight)  # pyright: ignore
    size = sequences_per_pass(run.data.held_out, words, logits=2 * CONTEXT * words)
    small = measure(model, run.data.held_out, batch_size=size, progress=lambda: pieces.append(1))
    assert len(pieces) == math.ceil(len(run.data.held_out.ids) / 2) > 1
    assert small.ce == pytest.approx(whole.ce, abs=1e-6) and small.tokens == whole.tokens


def test_pretrained_models_get_smaller_steps(place):
    def rates(**others) -> tuple[float, float]:
        return a_run(place, **others).learning_rates

    recipe = RECIPES["small"]
    assert rates() == (recipe.optimizer.lr, recipe.optimizer.threshold_lr)
    weights_rate, threshold_rate = rates(recipe="pretrained")
    assert weights_rate == 5e-5
    assert (
        recipe.optimizer.threshold_lr * 0.05 < threshold_rate < recipe.optimizer.threshold_lr
    )  # slowed, but by less
    assert rates(recipe="pretrained", lr=1e-3) == (recipe.optimizer.lr, recipe.optimizer.threshold_lr)
    assert rates(recipe="pretrained", attention_only=True)[0] == 2e-4
    if find_spec("peft"):
        assert rates(recipe="pretrained", lora=2)[0] == 2e-4


def test_the_bound_falls_as_slowly_as_thresholds_move(place):
    """What it closes has to be made up for at the run's own learning rate."""
    recipe = RECIPES["small"]
    assert recipe.gate.b_bound is not None
    for lr, slower in ((recipe.optimizer.lr, 1), (recipe.optimizer.lr / 16, 4)):
        run = a_run(place, lr=lr)
        annealing = slower * recipe.gate.b_bound_steps
        for steps, half_way in ((2 * annealing, True), (annealing, False)):
            for gate in run.twin.gates:
                gate.b.data.fill_(recipe.gate.b)
            bound = run.schedule.at(annealing // 2, steps).threshold_bound
            assert bound is not None
            run.twin.bound_thresholds(bound)
            expected = (recipe.gate.b + recipe.gate.b_bound) / 2 if half_way else recipe.gate.b
            assert all(gate.b.max().item() == pytest.approx(expected) for gate in run.twin.gates)


class ChangingPace(Callback):
    """The number of steps that fit into the time is another one at each step."""

    def on_step_end(self, trainer, metrics):
        trainer.state.planned_steps = 150 + trainer.state.step % 24


def test_validations_come_evenly_while_the_schedule_follows_the_pace(place, tmp_path):
    """A step that happens to divide by something is no reason to validate."""
    few = TrainerConfig(validations=6, validation_work=10)
    sparsify(place, tmp_path / "run", steps=150, callbacks=[ChangingPace()], trainer=few)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    looked = [line["step"] for line in lines if "held_out_ce" in line]
    gaps = [b - a for a, b in itertools.pairwise(looked[:-1])]
    assert len(looked) > 3 and min(gaps) >= 25


def test_a_large_model_on_a_cpu_reads_less_held_out_text(place):
    model, tokenizer = edgewise.load(place / "gpt2"), edgewise.load_tokenizer(place / "gpt2")
    config = edgewise.SparsifyConfig(context=CONTEXT)
    much = training_data("", place / "text.txt", config, model, tokenizer).held_out.ids
    slow = TrainerConfig(slow_parameters=model.num_parameters() - 1, slow_held_out_tokens=3 * CONTEXT)
    little = training_data("", place / "text.txt", config, model, tokenizer, slow).held_out.ids
    assert len(much) > len(little) == 3
    assert torch.equal(much[:3], little)


@pytest.mark.parametrize("recipe", ["small", "paper"])
def test_the_summary_is_what_the_saved_twin_does(place, whole, recipe):
    folder = whole[recipe].folder
    found = json.loads((folder / "summary.json").read_text())
    assert found == whole[recipe].summary
    dense, twin = edgewise.load(place / "gpt2"), edgewise.load(folder)
    held_out = open_data(place / "text.txt", edgewise.load_tokenizer(folder), CONTEXT, seed=0).held_out
    losses = [loss_by_hand(model, held_out) for model in (dense, twin)]
    assert found["dense_ce"] == pytest.approx(losses[0], abs=1e-5)
    assert found["sparse_ce"] == pytest.approx(losses[1], abs=1e-5)
    assert found["delta_ce"] == pytest.approx(losses[1] - losses[0], abs=2e-5)
    with edgewise.tap(twin) as seen, torch.no_grad():
        twin(input_ids=held_out.ids, position_ids=held_out.positions, use_cache=False)
    assert found["density"] == pytest.approx(seen.density, rel=1e-5)
    assert found["edges_per_query"] == pytest.approx(seen.edges_per_query, rel=1e-5)
    assert torch.allclose(torch.tensor(found["density_per_head"]), seen.density_per_head)
    assert torch.allclose(torch.tensor(found["edges_per_query_per_head"]), seen.edges_per_query_per_head)
    assert found["heads_closed"] == (seen.density_per_head == 0).sum() and found["heads"] == 8
    offsets = [x.tolist() for key, x in weights(folder).items() if key.endswith("edge_gate.b")]
    assert found["b_per_head"] == offsets and len(offsets) == 2
    gate = edgewise.gate_config(twin)
    assert gate is not None
    assert (
        found["gate"] == {"kind": gate.kind, "b": gate.b, "sinks": True, "null_value": False}
        and found["seed"] == 0
    )
    assert found["tokens"] == STEPS * ROWS * CONTEXT and found["seconds"] > 0 and found["tasks"] == {}


def test_the_log_has_every_step_once_and_the_picture_is_drawn(whole):
    for result in whole.values():
        lines = [json.loads(line) for line in (result.folder / "log.jsonl").read_text().splitlines()]
        for kind, steps in (("expected_density", [*range(1, STEPS + 1)]), ("held_out_ce", [STEPS])):
            assert [line["step"] for line in lines if kind in line] == steps
        assert (result.folder / "run.png").read_bytes()[:4] == b"\x89PNG"
        assert (result.folder / "run.png").stat().st_size > 10_000


def test_the_dense_model_stays_as_it_is_and_dropout_comes_back(place, tmp_path):
    model = edgewise.load(place / "gpt2").train()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    result = edgewise.sparsify(model, place / "text.txt", settings(tmp_path))
    assert (
        model.training and farthest(before, model.state_dict()) == 0 and edgewise.gate_config(model) is None
    )
    for each in (model, result.twin):
        assert {part.p for part in each.modules() if isinstance(part, nn.Dropout)} == {0.1}
    assert not result.twin.training


@pytest.fixture(scope="module")
def pocket_run(tmp_path_factory) -> edgewise.SparsifyResult:
    """The shipped model, handed over loaded; with little held-out text and few questions, which take the time."""
    out, pocket = tmp_path_factory.mktemp("pocket"), embedded_models()["pocket"]
    quick = replace(
        pocket,
        make_data=lambda seed, held_out: pocket.data(seed, 16),
        skills=lambda model: pocket_evaluate.measure(model, 10),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded_models(), "pocket", quick)
        config = edgewise.SparsifyConfig(out=out / "twin", tokens="512", batch_size=2)
        return edgewise.sparsify(edgewise.load("pocket"), config=config)


def test_a_shipped_model_brings_its_text_and_its_tasks(pocket_run):
    found = pocket_run.summary
    assert found["model"] == "pocket" and found["settings"]["data"] == "pocket's own stream"
    assert found["tasks"]["dense"]["copy"] > 0.9 and found["tasks"].keys() == {"dense", "sparse"}
    assert (
        edgewise.load_tokenizer(pocket_run.folder).get_vocab()
        == edgewise.load_tokenizer("pocket").get_vocab()
    )


# -------------------------------------------------------------------------------------------------- `edgewise eval`


def test_eval_prints_models_side_by_side(pocket_run, tmp_path):
    twin, out = pocket_run.folder, tmp_path / "deep" / "eval.json"
    code, printed, _ = command("eval", "pocket", twin, "--tokens", "2K", "--heads", "--out", out)
    assert code == 0 and "1,905 held-out tokens" in printed and str(twin) in printed and "L5" in printed
    found = json.loads(out.read_text())
    shipped = embedded_data("pocket", 0, held_out=15)
    assert shipped is not None
    for name in ("pocket", str(twin)):
        expected = measure(edgewise.load(name), shipped.held_out)
        assert found[name]["ce"] == pytest.approx(expected.ce, abs=1e-6) and f"{expected.ce:.4f}" in printed
        assert found[name]["perplexity"] == pytest.approx(math.exp(expected.ce))
        assert (
            found[name]["density"] == pytest.approx(expected.density) and f"{expected.density:.2%}" in printed
        )
        assert found[name]["tokens"] == 15 * 127
    assert found["pocket"]["density"] == 1.0 > found[str(twin)]["density"]
    against_dense = found[str(twin)]["against_dense"]
    difference = found[str(twin)]["ce"] - found["pocket"]["ce"]
    assert against_dense["delta_ce"] == pytest.approx(difference, abs=1e-6)
    assert f"({difference:+.4f} ± {against_dense['delta_ce_error']:.4f})" in printed
    assert f"{against_dense['kl']:.4f}" in printed


def test_eval_on_text(place, whole):
    twin = whole["small"].folder
    code, printed, err = command("eval", place / "gpt2", twin, "--data", place / "text.txt")
    assert code == 0 and str(place / "gpt2") in printed and str(twin) in printed
    assert len(re.findall(r"memory about \d+\.\d GB in all", err)) == 2  # before each of them


def test_what_eval_refuses(place, pocket_run):
    text = ("--data", place / "text.txt")
    wrong = {
        "different tokenizers": (place / "gpt2", "pocket-addition", *text),
        "know different texts": (pocket_run.folder, "pocket-addition"),
        "brings no text of its own": ("pocket", place / "gpt2"),
        "--context 64 is longer": (place / "gpt2", *text, "--context", 64),
        "no model at": ("./no/such/folder",),
        "'few' is no number of tokens": ("pocket", "--tokens", "few"),
        "give one model": (),
    }
    for sentence, arguments in wrong.items():
        code, printed, err = command("eval", *arguments)
        assert code == 2 and printed == "" and sentence in said(err), sentence


# ------------------------------------------------------------------------------------------------------- controls


def test_controls_are_as_sparse_as_the_twin(place, tmp_path):
    result = sparsify(place, tmp_path, controls=True, b=2.0)
    found, density = result.summary["controls"], result.summary["density"]
    trained = {f"{mask}, {how}" for mask in ("random", *TOP_K) for how in ("untrained", "trained")}
    assert found.keys() == {"threshold", "dense, trained", *trained}
    assert 0 < density < 0.5
    for name in trained:
        assert found[name]["density"] == pytest.approx(density, rel=0.2), name
    assert found["dense, trained"]["density"] == 1.0
    assert all(math.isfinite(found[name]["ce"]) for name in found if name != "threshold")
    for name in ("dense, trained", *(name for name in trained if name.endswith(", trained"))):
        gained = found[name]["ce"] - result.summary["dense_ce"]
        assert found[name]["delta_ce"] == pytest.approx(gained, abs=1e-4) and found[name]["kl"] > 0
        assert found[name]["delta_ce_error"] > 0
    curve = found["threshold"]
    assert all(a["density"] > b["density"] for a, b in itertools.pairwise(curve))
    assert curve[0]["ce"] == pytest.approx(result.summary["dense_ce"], abs=0.05)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["controls"] == found
    # interrupted before the last two were done, they are made up for, and nothing else is
    kept = {name: "kept" for name in found if not name.startswith(("random", "dense"))}
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "controls": kept}))
    again = sparsify(place, tmp_path, controls=True, b=2.0, resume=True).summary["controls"]
    assert again == {**found, **kept}


def test_controls_train_what_the_twin_trained(place, tmp_path):
    sparsify(place, tmp_path, controls=True, b=2.0, lora=2, attention_only=True, dtype="bfloat16")
    dense = edgewise.load(place / "gpt2")
    for mask in ("random", *TOP_K):
        control = edgewise.load(place / "gpt2")
        load_control(control_folder(tmp_path, mask), control)
        changed = {
            name: (b - a).T
            for (name, a), b in zip(dense.named_parameters(), control.parameters(), strict=True)
            if not torch.equal(a, b)
        }
        assert {name.split(".", 3)[3] for name in changed} == {"attn.c_attn.weight", "attn.c_proj.weight"}
        for name, by in changed.items():
            sizes = torch.linalg.svdvals(by)
            assert sizes[1] > 1e-6 and sizes[2] < 1e-3 * sizes[1], name


def gpt2_by_hand(model, ids, mask):
    """Logits of a GPT-2 whose attention weights, [heads, queries, keys], go through `mask(layer, weights)`."""
    host, length = model.transformer, ids.shape[1]
    x = host.wte(ids) + host.wpe(torch.arange(length))
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for layer, block in enumerate(host.h):
        split = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in split)
        p = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future, -math.inf).softmax(-1)
        p = torch.stack([row * mask(layer, row) for row in p])
        x = x + block.attn.c_proj((p @ v).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.ln_2(x))
    return model.lm_head(host.ln_f(x))


def test_masks_do_what_a_plain_loop_does(place):
    model = edgewise.load(place / "gpt2")
    ids = torch.randint(0, 800, (3, 9), generator=torch.Generator().manual_seed(0))
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORE)
    drawn = random_mask(torch.tensor([[0.1, 0.5, 0.9, 0.3], [0.0, 1.0, 0.5, 0.5]]), 9, seed=0)
    edges = torch.tensor([[0.5, 1.0, 0.25, 0.5], [3.0, 1.0, 0.0, 0.0]])

    def by_lot(layer, p):
        return drawn(layer, p[None])

    def largest(layer, p):
        mask = torch.zeros_like(p)
        for head, query in itertools.product(range(4), range(9)):
            k = math.floor(edges.mean().item() + (query * 0.618034 + head * 0.754878) % 1)
            for key in sorted(range(query + 1), key=lambda key: -p[head, query, key])[:k]:
                mask[head, query, key] = 1
        return mask

    def largest_of_layer(layer, p):
        mask = torch.zeros_like(p)
        for query in range(9):
            k = math.floor(edges[layer].sum().item() + query * 0.618034 % 1)
            pairs = sorted(
                itertools.product(range(4), range(query + 1)), key=lambda at: -p[at[0], query, at[1]]
            )
            for head, key in pairs[:k]:
                mask[head, query, key] = 1
        return mask

    top_k = [make(edges) for make in TOP_K.values()]
    found: dict[str, float] = {}
    for mask, by_hand in zip((drawn, *top_k), (by_lot, largest, largest_of_layer), strict=True):
        left: list[float] = []

        def counted(layer, p, by_hand=by_hand, left=left):
            left.append(by_hand(layer, p).tril().sum().item())
            return by_hand(layer, p)

        with torch.no_grad():
            expected = F.cross_entropy(gpt2_by_hand(model, ids, counted).flatten(0, 1), targets.flatten())
        found = measure_masked(model, mask, Batch(ids, targets, None))
        assert found["ce"] == pytest.approx(expected.item(), abs=1e-5)
        assert found["density"] == pytest.approx(sum(left) / (3 * 2 * 4 * 45))
    unmasked = measure_masked(model, None, Batch(ids, targets, None))
    assert unmasked["density"] == 1 and unmasked["ce"] != pytest.approx(found["ce"], abs=1e-3)


# ------------------------------------------------------------------------------------------------------- objective


@pytest.mark.parametrize("chunk_elements", [1, 15, 10_000])
def test_the_fit_is_the_divergence_where_there_is_a_target(chunk_elements):
    """Against the plain formulas and autograd, for every size of chunks."""
    torch.manual_seed(0)
    logits, dense = torch.randn(2, 2, 5, 7, dtype=torch.float64)
    targets = torch.randint(0, 7, (2, 5))
    targets[0, 1] = targets[1, 4] = IGNORE
    asked, p, ours = targets != IGNORE, dense.softmax(-1), logits.clone().requires_grad_()
    plain = (p * (p.log() - ours.log_softmax(-1))).sum(-1)[asked].sum()
    ours_too = logits.clone().requires_grad_()
    compared = distillation_terms(ours_too, dense, targets, chunk_elements)
    assert compared.kl.item() == pytest.approx(plain.item(), rel=1e-12)
    (3 * plain).backward()
    (3 * compared.kl).backward()
    assert ours.grad is not None and ours_too.grad is not None
    assert torch.allclose(ours.grad, ours_too.grad, atol=1e-12) and not ours_too.grad[~asked].any()
    assert distillation_terms(dense, dense, targets).kl.item() == pytest.approx(0, abs=1e-12)
    for losses, x in ((compared.ce, logits), (compared.dense_ce, dense)):
        likely = x.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        assert losses.item() == pytest.approx(-likely[asked].sum().item(), rel=1e-12)
        assert cross_entropy(x, targets).item() == pytest.approx(losses.item(), rel=1e-5)


@given(
    st.lists(st.floats(-1, 20, allow_nan=False), min_size=1, max_size=300),
    st.floats(1e-3, 0.5),
    st.floats(1e-3, 0.1),
)
def test_laws_of_the_multiplier(gaps, tolerance, speed):
    multiplier = Multiplier(beta=0.1, step_size=speed, minimum=0.01, maximum=10.0)
    for gap in gaps:
        before = multiplier.beta
        multiplier.update(gap, tolerance)
        assert multiplier.minimum <= multiplier.beta <= multiplier.maximum
        assert abs(math.log(multiplier.beta / before)) <= speed * (1 + 1e-9)
        gap = multiplier.expected
        if gap < tolerance * (1 - 1e-9):  # a rounding error below the tolerance moves nothing
            assert multiplier.beta >= before and (multiplier.beta > before or before == multiplier.maximum)
        if gap > tolerance * (1 + 1e-9):
            assert multiplier.beta <= before and (multiplier.beta < before or before == multiplier.minimum)
    restored = Multiplier(beta=1.0, step_size=speed, minimum=0.01, maximum=10.0)
    restored.load_state_dict(json.loads(json.dumps(multiplier.state_dict())))
    assert restored == multiplier


@given(st.lists(st.floats(-1, 20, allow_nan=False), min_size=1, max_size=100), st.floats(0.1, 3.0))
def test_laws_of_the_lead(gaps, lead):
    """It answers at once and in proportion, moves the level not at all, and stays within the same bounds."""
    with_lead = Multiplier(beta=0.1, step_size=0.05, minimum=0.01, maximum=10.0, damping=lead)
    without = Multiplier(beta=0.1, step_size=0.05, minimum=0.01, maximum=10.0)
    for gap in gaps:
        with_lead.update(gap, tolerance=0.5, minimum=0.02)
        without.update(gap, tolerance=0.5, minimum=0.02)
        room = max(-1.0, min(1.0, (0.5 - without.expected) / 0.5))
        assert with_lead.integral == without.integral == without.beta
        assert with_lead.beta == pytest.approx(max(0.02, min(10.0, without.beta * math.exp(lead * room))))
    restored = Multiplier(beta=1.0, step_size=0.05, minimum=0.01, maximum=10.0, damping=lead)
    restored.load_state_dict(json.loads(json.dumps(with_lead.state_dict())))
    assert restored == with_lead


def swings(lead: float) -> list[float]:
    """The gap of a made-up model at each step: pressure takes edges away slowly, and each share of them costs the same."""
    multiplier, log_density, gaps = Multiplier(0.5, 0.02, 0.01, 100.0, lead), 0.0, []
    for _ in range(3000):
        gaps.append(-log_density)
        multiplier.update(gaps[-1], tolerance=2.0)
        log_density -= 0.01 * math.log(multiplier.beta)  # at rest with beta 1
    return gaps


def test_the_lead_damps_the_swings_of_the_multiplier():
    overshoot = {lead: max(swings(lead)) / 2.0 - 1 for lead in (0.0, 1.0)}
    still_moving = {lead: max(abs(gap - 2.0) for gap in swings(lead)[-1000:]) for lead in (0.0, 1.0)}
    assert overshoot[1.0] < 0.7 * overshoot[0.0]
    assert still_moving[1.0] < 0.1 * still_moving[0.0]


@pytest.mark.parametrize("name", RECIPES)
def test_the_multiplier_comes_back_from_its_floor(place, name):
    multiplier = a_run(place, recipe=name).state.multiplier
    for _ in range(10_000):
        multiplier.update(5.0, tolerance=0.01)
    assert multiplier.beta == multiplier.minimum
    for _ in range(300):
        multiplier.update(0.0, tolerance=0.01)
    assert multiplier.beta > 10 * multiplier.minimum
