"""How post-training begins: a new run is planned, an interrupted one restored."""

import time
from dataclasses import replace
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.measure.loss import Measured
from edgewise.training.budget import (
    Costs,
    agreed,
    begin_time,
    check_time_limit,
    check_token_limit,
    plan_steps,
    plan_validations,
)
from edgewise.training.config import TrainerConfig
from edgewise.training.console import print_resuming
from edgewise.training.resume import check_same_text, reading, restore, resumed_config
from edgewise.training.snapshot import Snapshot
from edgewise.training.sparsify.config import MAY_BE_NEW, SparsifyConfig
from edgewise.training.sparsify.console import print_plan
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.timing import TWIN_PASS, measure_times

_SAME_LOSS = 2e-3  # the most by which devices and numbers of processes may change a loss


class RunContext(NamedTuple):
    """What is known of a run besides the run itself."""

    name: str
    tokenizer: PreTrainedTokenizerBase | None
    dense: Measured
    """The dense model on all held-out text."""
    trainer: TrainerConfig
    display: Display
    began: float
    """When this session began, by `time.monotonic`."""
    dense_pass: float
    """Seconds that the dense model took for all held-out text."""


def resumed_run_config(config: SparsifyConfig, saved: Snapshot) -> SparsifyConfig:
    may_change = (*MAY_BE_NEW, "report_to")
    return resumed_config(
        config, saved.content["config"], may_change, per_session=("save_minutes", "controls", "plot")
    )


def resumed_recipe(recipe: Recipe | None, saved: Snapshot, display: Display) -> Recipe:
    """The recipe that the run began with, unless another is given. It keeps its null values or the lack of them: they are
    weights."""
    begun = Recipe.from_dict(saved.content["recipe"])
    if recipe is None:
        return begun
    recipe = replace(recipe, gate=replace(recipe.gate, null_value=begun.gate.null_value))
    if recipe != begun:
        display.print("the recipe is another now than when this run was begun: it goes on with the new one")
    return recipe


def restore_or_plan(
    run: SparsifyRun, saved: Snapshot | None, context: RunContext, session: SparsifyConfig
) -> float:
    """Decide how many steps there will be, and say what will be done before it is begun. Returns the seconds to leave for
    the measurement at the end. `session`: the config of this session, in which a resumed run's limits are set only if they
    are new."""
    display, trainer = context.display, context.trainer
    config, state = run.config, run.state
    final = TWIN_PASS * context.dense_pass
    if saved is not None:
        with reading(saved):
            check_same_text(run.data, saved)
            _check_same_dense(context.dense, saved)
            restore(run, saved)
        if session.minutes is None and session.tokens in (None, saved.content["config"]["tokens"]):
            run.validator.choose_text(trainer, state)
            print_resuming(display, config.out, state)
            return final
    check_token_limit(config, state)
    with display.status("measuring a step"):
        costs = measure_times(run) if trainer.seconds_per_step is None else Costs(trainer.seconds_per_step)
    step, warmup, setup, dense_pass = agreed(
        run.accelerator, costs.step, costs.warmup, time.monotonic() - context.began, context.dense_pass
    )
    costs = costs._replace(step=step, warmup=warmup, setup=setup, final=TWIN_PASS * dense_pass)
    begin_time(session, state, setup)
    state.planned_steps = plan_steps(config, state, costs)
    run.validator.choose_text(trainer, state)
    share = run.validator.n_sequences / len(run.data.held_out.ids)
    costs = costs._replace(validation=share * costs.final)
    check_time_limit(session, costs, trainer)
    tokens = run.validator.n_sequences * run.data.train.context
    state.validations = plan_validations(trainer, state, costs, tokens)
    state.planned_steps = plan_steps(config, state, costs, state.validations)
    if state.planned_steps <= run.layerwise_steps:
        raise EdgewiseError(
            f"`layerwise_warmup={config.layerwise_warmup}` leaves no time for joint training: give fewer tokens, or "
            "a longer run"
        )
    print_plan(display, run, context.name, context.dense, costs)
    return final


def _check_same_dense(dense: Measured, saved: Snapshot) -> None:
    """A run goes on with the dense model and the held-out text it began with."""
    begun = saved.content["state"]["dense_ce"]
    if not abs(dense.ce - begun) < _SAME_LOSS:
        raise EdgewiseError(
            f"the run was begun with another model or text: the dense model's held-out loss is {dense.ce:.4f} now, and was "
            f"{begun:.4f}; resume it with what it was begun with"
        )
