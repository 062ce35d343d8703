"""`sparsify`: plan a run, train, save the twin and the figures of the run."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import output_folder
from edgewise.core.ranges import config_of
from edgewise.core.schema import read_as
from edgewise.data.packing import Processes
from edgewise.gating.edge_gate import gate_config
from edgewise.gating.install import install
from edgewise.measure.forward import eval_mode
from edgewise.models.card import write_run_cards
from edgewise.models.load import load
from edgewise.models.lora import save_adapters
from edgewise.models.save import save
from edgewise.training import snapshot
from edgewise.training.callbacks import Callback, Tracker
from edgewise.training.config import TrainerConfig
from edgewise.training.console import ProgressLine
from edgewise.training.data import known_name, tokenizer_for, training_data
from edgewise.training.distributed import make_accelerator, text_processes
from edgewise.training.log import Log
from edgewise.training.resume import open_run, reading
from edgewise.training.sparsify.begin import RunContext, restore_or_plan, resumed_recipe, resumed_run_config
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.console import describe_step, print_result
from edgewise.training.sparsify.controls import run_controls
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.result import LOG, SUMMARY, SparsifyResult, read_log
from edgewise.training.sparsify.run import SparsifyRun
from edgewise.training.sparsify.stopping import StopAtDensity, StopIfDiverging
from edgewise.training.sparsify.summary import summarize
from edgewise.training.sparsify.twin import FinishedTwin
from edgewise.training.trainer import Trainer


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
    parquet file, a folder of them, a name of the Hugging Face hub, a dataset object, or a `Data`; the embedded models bring
    their own. `recipe` is a value instead of the name in `config`; a resumed run keeps its own if it is not given.

    >>> result = edgewise.sparsify("pocket", config=edgewise.SparsifyConfig(minutes=5, out="runs/pocket-sparse"))
    >>> result.summary["density"], result.summary["delta_ce"]
    """
    began = time.monotonic()
    config = config_of(SparsifyConfig, config)
    config = replace(config, out=Path(config.out))
    session = config
    trainer = trainer or TrainerConfig()
    accelerator = make_accelerator(config.report_to, config.out, config.device)
    display = (display or Display()) if accelerator.is_main_process else Display(quiet=True)
    # locked before snapshots are read: another process may be writing one
    with output_folder(config.out if accelerator.is_main_process else None):
        saved = open_run(config, "twin*", display)
        if saved is not None:
            with reading(saved):
                config, recipe = resumed_run_config(config, saved), resumed_recipe(recipe, saved, display)
        name = known_name(model)
        dense = _own(model, accelerator) if isinstance(model, PreTrainedModel) else load(model)
        if gate_config(install(dense)) is not None:
            raise EdgewiseError(f"{name} is a sparse twin already; start from the dense model")
        tokenizer = tokenizer or tokenizer_for(name, data)
        processes = text_processes(accelerator)
        text = training_data(name, data, config, dense, tokenizer, trainer, processes)
        with eval_mode(dense):
            with display.status("computing null values"):
                run = SparsifyRun(dense, text, config, accelerator, recipe, resumed=saved is not None)
            measuring = time.monotonic()
            with display.status("the dense model on held-out text"):
                dense_measured = run.validator.measure_dense()
            run.state.dense_ce = dense_measured.ce
            dense_pass = time.monotonic() - measuring
            context = RunContext(name, tokenizer, dense_measured, trainer, display, began, dense_pass)
            final = restore_or_plan(run, saved, context, session)
            with _tracking(run, name):
                stopped = Trainer(run, [*_callbacks(run, display), *callbacks], final).fit()
                return _finish(run, context, stopped, processes)


def _own(model: PreTrainedModel, accelerator: Accelerator) -> PreTrainedModel:
    """A given model, or a copy of it where the dense model will be sharded."""
    return copy.deepcopy(model) if accelerator.distributed_type == DistributedType.FSDP else model


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
        callbacks.append(Tracker("density", "delta_ce", "held_out_kl", "beta"))
    if config.density is not None:
        callbacks.append(StopAtDensity(config.density, config.loss_tolerance, run.recipe.kl_constraint))
    return callbacks


# ---------------------------------------------------------------------------------------------------------- finish


def _finish(run: SparsifyRun, context: RunContext, stopped: str, processes: Processes) -> SparsifyResult:
    """Measure the twin on all held-out text, save it, draw the run, run the controls."""
    config, accelerator, display = run.config, run.accelerator, context.display
    with display.status("the twin on held-out text"):
        measured = run.validator.measure_twin()
    twin = run.twin.finish()
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
            write_run_cards(config.out)
    accelerator.wait_for_everyone()
    processes.separate()
    if accelerator.is_main_process:
        if config.controls:  # longer than other processes would wait
            for results in run_controls(run, measured, display, controls):
                summary["controls"] = results
                result.save()
        print_result(display, result)
    return result


def _save_twin(run: SparsifyRun, twin: FinishedTwin, context: RunContext) -> None:
    name, tokenizer = context.name, context.tokenizer
    out = run.config.out
    twin.model.config.name_or_path = str(out)  # where its summary and its picture are
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
    try:
        summary = read_as(dict[str, Any], path) if config.resume and path.is_file() else {}
    except EdgewiseError:  # controls are then computed again
        return {}
    return summary.get("controls", {}) if summary.get("tokens") == tokens else {}
