"""`sparsify`: plan a run, train, save the twin and the figures of the run."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gate_config
from edgewise.gating.install import install
from edgewise.measure.evaluation import Measured, evaluating
from edgewise.models.checkpoint import load, save
from edgewise.models.lora import save_adapters
from edgewise.training import snapshot
from edgewise.training.budget import StepTimes, check_token_limit, plan_steps
from edgewise.training.callbacks import Callback, Tracker
from edgewise.training.config import TrainerConfig
from edgewise.training.console import ProgressLine
from edgewise.training.data import known_name, tokenizer_for, training_data
from edgewise.training.distributed import make_accelerator
from edgewise.training.log import Log
from edgewise.training.resume import check_same_text, open_run, restore, resumed_config
from edgewise.training.snapshot import Snapshot
from edgewise.training.sparsify.callbacks import StopAtDensity, StopIfDiverging
from edgewise.training.sparsify.config import MAY_BE_NEW, SparsifyConfig, changed
from edgewise.training.sparsify.console import describe_step, print_plan, print_result
from edgewise.training.sparsify.controls import run_controls
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.result import LOG, SUMMARY, SparsifyResult, read_log
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.summary import summarize
from edgewise.training.sparsify.timing import measure_times
from edgewise.training.sparsify.twin import FinishedTwin
from edgewise.training.trainer import Trainer

_SAME_LOSS = 2e-3  # the most by which devices and numbers of processes may change a loss


def sparsify(
    model: str | Path | PreTrainedModel,
    data: Any = None,
    config: SparsifyConfig | None = None,
    *,
    recipe: Recipe | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trainer: TrainerConfig | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
) -> SparsifyResult:
    """Post-train a dense model until almost no attention edges remain, at the same loss.

    `model` is a name as for `edgewise.load`, or a loaded dense model, which stays as it is. `data` is a text, jsonl or
    parquet file, a folder of them, a name of the Hugging Face hub, a dataset object, or a `Data`; the shipped models bring
    their own. `recipe` is a value instead of the name in `config`; a resumed run keeps its own if it is not given.

    >>> result = edgewise.sparsify("pocket", config=edgewise.SparsifyConfig(minutes=5, out="runs/pocket-sparse"))
    >>> result.summary["density"], result.summary["delta_ce"]
    """
    config = replace(config or SparsifyConfig(), out=Path((config or SparsifyConfig()).out))
    trainer = trainer or TrainerConfig()
    accelerator = make_accelerator(config.report_to, config.out)
    display = (display or Display()) if accelerator.is_main_process else Display(quiet=True)
    saved = open_run(config, "twin*", display)
    if saved is not None:
        config, recipe = _resumed_config(config, saved), _resumed_recipe(recipe, saved, display)
    name = known_name(model)
    dense = model if isinstance(model, PreTrainedModel) else load(model)
    if gate_config(install(dense)) is not None:
        raise EdgewiseError(f"{name} is a sparse twin already; start from the dense model")
    tokenizer = tokenizer or tokenizer_for(name, data)
    text = training_data(name, data, config, dense, tokenizer, trainer)
    with evaluating(dense):
        with display.status("computing null values"):
            run = SparsifyRun(dense, text, config, accelerator, recipe, resumed=saved is not None)
        with display.status("the dense model on held-out text"):
            dense_measured = run.measure_dense()
        run.state.dense_ce = dense_measured.ce
        context = _Context(name, tokenizer, dense_measured, trainer, display)
        _restore_or_plan(run, saved, context)
        run.choose_validation_text(trainer)
        with _tracking(run, name):
            stopped = Trainer(run, [*_callbacks(run, display), *callbacks], trainer.validations).fit()
            return _finish(run, context, stopped)


class _Context(NamedTuple):
    """What is known of a run besides the run itself."""

    name: str
    tokenizer: PreTrainedTokenizerBase | None
    dense: Measured
    """The dense model on all held-out text."""
    trainer: TrainerConfig
    display: Display


@contextmanager
def _tracking(run: SparsifyRun, name: str) -> Iterator[None]:
    """The tracker that the config names, for the time of the run."""
    if run.config.report_to is None:
        yield
        return
    settings = {"model": name, "seed": run.config.seed, "recipe": run.recipe.name}
    run.accelerator.init_trackers("edgewise", settings)
    try:
        yield
    finally:
        run.accelerator.end_training()


def _callbacks(run: SparsifyRun, display: Display) -> list[Callback]:
    config, state = run.config, run.state

    def phase_end() -> int:
        return run.layerwise_steps if run.is_layerwise else state.planned_steps

    callbacks = [
        StopIfDiverging(run),
        Log(config.out / LOG),
        ProgressLine(display, partial(describe_step, run), phase_end),
    ]
    if config.report_to:
        callbacks.append(Tracker("density", "delta_ce", "beta"))
    if config.density is not None:
        callbacks.append(StopAtDensity(config.density, config.loss_tolerance))
    return callbacks


# ------------------------------------------------------------------------------------------------- resume and plan


def _resumed_config(config: SparsifyConfig, saved: Snapshot) -> SparsifyConfig:
    may_change = (*MAY_BE_NEW, "report_to")
    return resumed_config(
        config, saved.content["config"], changed, may_change, per_session=("save_minutes", "controls", "plot")
    )


def _resumed_recipe(recipe: Recipe | None, saved: Snapshot, display: Display) -> Recipe:
    """The recipe that the run began with, unless another is given. It keeps its null values or the lack of them: they are
    weights."""
    begun = Recipe.from_dict(saved.content["recipe"])
    if recipe is None:
        return begun
    recipe = replace(recipe, gate=replace(recipe.gate, null_value=begun.gate.null_value))
    if recipe != begun:
        display.print("the recipe is another now than when this run was begun: it goes on with the new one")
    return recipe


def _restore_or_plan(run: SparsifyRun, saved: Snapshot | None, context: _Context) -> None:
    """Decide how many steps there will be, and say what will be done before it is begun."""
    display, seconds = context.display, context.trainer.seconds_per_step
    config, state = run.config, run.state
    if saved is not None:
        check_same_text(run.data, saved)
        _check_same_dense(context.dense, saved)
        restore(run, saved)
        begun = saved.content["config"]
        if all(begun[limit] == getattr(config, limit) for limit in ("tokens", "minutes")):
            display.print(
                f"resuming {config.out} at step {state.step:,} of {state.planned_steps:,} "
                f"({state.tokens / 1e6:.2f}M tokens)"
            )
            return
    check_token_limit(config, state)
    with display.status("measuring a step"):
        times = measure_times(run) if seconds is None else StepTimes(seconds)
    state.planned_steps = plan_steps(config, state, times)
    if state.planned_steps <= run.layerwise_steps:
        raise EdgewiseError(
            f"`layerwise_warmup={config.layerwise_warmup}` leaves no time for joint training: give fewer tokens, or "
            "a longer run"
        )
    print_plan(display, run, context.name, context.dense, times)


def _check_same_dense(dense: Measured, saved: Snapshot) -> None:
    """A run goes on with the dense model and the held-out text it began with."""
    begun = saved.content["state"]["dense_ce"]
    if not abs(dense.ce - begun) < _SAME_LOSS:
        raise EdgewiseError(
            f"the run was begun with another model or text: the dense model's held-out loss is {dense.ce:.4f} now, and was "
            f"{begun:.4f}; resume it with what it was begun with"
        )


# ---------------------------------------------------------------------------------------------------------- finish


def _finish(run: SparsifyRun, context: _Context, stopped: str) -> SparsifyResult:
    """Measure the twin on all held-out text, save it, draw the run, run the controls."""
    config, accelerator, display = run.config, run.accelerator, context.display
    with display.status("the twin on held-out text"):
        measured = run.measure_twin()
    twin = run.finish()
    summary = summarize(run, context.name, context.dense, measured, twin.state_dict(), stopped)
    controls = _finished_controls(config, summary["tokens"])
    if controls:
        summary["controls"] = controls
    result = SparsifyResult(summary, config.out, twin.model)
    if accelerator.is_main_process:
        with snapshot.explained(config.out / snapshot.FOLDER, "the twin"):
            _save_twin(run, twin, context)
            result.save()
            result.log.extend(read_log(config.out))
            if config.plot:
                result.save_figure(config.out)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if config.controls:  # longer than other processes would wait
            for results in run_controls(run, measured, display, controls):
                summary["controls"] = results
                result.save()
        print_result(display, result)
    return result


def _save_twin(run: SparsifyRun, twin: FinishedTwin, context: _Context) -> None:
    name, tokenizer = context.name, context.tokenizer
    out = run.config.out
    if twin.weights is not None:
        twin.model.save_pretrained(out, state_dict=twin.weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(out)
        return
    save(twin.model, out, tokenizer)
    if twin.adapters is not None and name:
        save_adapters(out / "adapters", twin.adapters, out, twin.model, run.dense, name)
        if tokenizer is not None:
            tokenizer.save_pretrained(out / "adapters")


def _finished_controls(config: SparsifyConfig, tokens: int) -> dict[str, Any]:
    """Controls of this very run that were finished before it was interrupted."""
    path = config.out / SUMMARY
    summary = json.loads(path.read_text()) if config.resume and path.is_file() else {}
    return summary.get("controls", {}) if summary.get("tokens") == tokens else {}
