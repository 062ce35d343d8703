"""`train_transcoder`: plan a run, train, save the transcoder and its evaluation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.files import output_folder, write_json
from edgewise.core.ranges import config_of
from edgewise.gating.install import install
from edgewise.measure.forward import eval_mode
from edgewise.models.linearise import check_traceable
from edgewise.models.load import load
from edgewise.models.registry import embedded_origin
from edgewise.training import snapshot
from edgewise.training.budget import (
    agreed,
    begin_time,
    check_time_limit,
    check_token_limit,
    plan_steps,
    plan_validations,
)
from edgewise.training.callbacks import Callback
from edgewise.training.config import TrainerConfig
from edgewise.training.console import ProgressLine, print_resuming
from edgewise.training.data import known_name, tokenizer_for, training_data
from edgewise.training.distributed import make_accelerator, text_processes
from edgewise.training.log import Log
from edgewise.training.resume import check_same_text, open_run, reading, restore, resumed_config
from edgewise.training.snapshot import Snapshot
from edgewise.training.trainer import Trainer
from edgewise.training.transcoder.config import MAY_BE_NEW, TranscoderConfig
from edgewise.training.transcoder.console import describe_step, print_plan, print_result
from edgewise.training.transcoder.evaluation import TranscoderEvaluation, evaluate_transcoder
from edgewise.training.transcoder.run import TranscoderRun
from edgewise.training.transcoder.store import WEIGHTS, check_belongs, save_transcoder
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

TRAINER = TrainerConfig(validation_tokens=4096)


@dataclass(frozen=True)
class TranscoderResult:
    """A trained transcoder, its evaluation on held-out text, and the folder it is in."""

    transcoder: Transcoder
    evaluation: TranscoderEvaluation
    summary: dict[str, Any]
    folder: Path


def train_transcoder(
    model: str | Path | PreTrainedModel,
    data: Any = None,
    config: TranscoderConfig | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trainer: TrainerConfig = TRAINER,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
) -> TranscoderResult:
    """Train a cross-layer transcoder of a model, dense or sparse.

    `model` is a name as for `edgewise.load`, or a loaded model, which stays as it is. `data` is a text, jsonl or parquet
    file, a folder of them, a name of the Hugging Face hub, a dataset object, or a `Data`; the embedded models bring their
    own.

    >>> result = train_transcoder("pocket", config=TranscoderConfig(minutes=5, out="runs/pocket-transcoder"))
    >>> result.evaluation.explained_variance, result.evaluation.l0
    """
    began = time.monotonic()
    config = config_of(TranscoderConfig, config)
    config = replace(config, out=Path(config.out))
    session = config
    accelerator = make_accelerator(device=config.device)
    display = (display or Display()) if accelerator.is_main_process else Display(quiet=True)
    # locked before snapshots are read: another process may be writing one
    with output_folder(config.out if accelerator.is_main_process else None):
        saved = open_run(config, WEIGHTS, display)
        if saved is not None:
            with reading(saved):
                config = _resumed_config(config, saved)
        name = known_name(model)
        host = model if isinstance(model, PreTrainedModel) else load(model)
        with eval_mode(install(host)):
            check_traceable(host)
        tokenizer = tokenizer or tokenizer_for(name, data)
        origin = embedded_origin(name)
        text = training_data(
            origin.name if origin else name,
            data,
            config,
            host,
            tokenizer,
            trainer,
            text_processes(accelerator),
        )
        with eval_mode(host):
            run = TranscoderRun(host, name, text, config, accelerator)
            run.choose_validation_text(trainer)
            final = _restore_or_plan(run, saved, trainer, display, began, session)
            own = [Log(config.out / "log.jsonl"), ProgressLine(display, describe_step)]
            stopped = Trainer(run, [*own, *callbacks], final).fit()
            return _finish(run, stopped, display)


def _resumed_config(config: TranscoderConfig, saved: Snapshot) -> TranscoderConfig:
    begun = dict(saved.content["config"])
    begun["start_from"] = None if begun["start_from"] is None else Path(begun["start_from"])
    return resumed_config(config, begun, MAY_BE_NEW, per_session=("save_minutes", "dtype"))


def _restore_or_plan(
    run: TranscoderRun,
    saved: Snapshot | None,
    trainer: TrainerConfig,
    display: Display,
    began: float,
    session: TranscoderConfig,
) -> float:
    """Decide how many steps there will be, and say what will be done before it is begun. Returns the seconds to leave for
    the evaluation at the end. `began`: when this session began; `session`: its config, in which a resumed run's limits are
    set only if they are new."""
    config, state = run.config, run.state
    if saved is not None:
        with reading(saved):
            check_same_text(run.data, saved)
            check_belongs(config.out, TranscoderInfo(**saved.content["transcoder"]), run.host)
            restore(run, saved)
        if session.minutes is None and session.tokens in (None, saved.content["config"]["tokens"]):
            print_resuming(display, config.out, state)
            return 0.0
    check_token_limit(config, state)
    with display.status("measuring a step"):
        costs = run.measure_times()
    step, setup, final = agreed(
        run.accelerator, trainer.seconds_per_step or costs.step, time.monotonic() - began, costs.final
    )
    costs = costs._replace(step=step, setup=setup, final=final)
    begin_time(session, state, setup)
    state.planned_steps = plan_steps(config, state, costs)
    check_time_limit(session, costs, trainer)
    state.validations = plan_validations(trainer, state, costs, run.validation_tokens)
    state.planned_steps = plan_steps(config, state, costs, state.validations)
    print_plan(display, run, costs)
    return costs.final


def _finish(run: TranscoderRun, stopped: str, display: Display) -> TranscoderResult:
    """Evaluate and save the transcoder. The other processes wait: this takes seconds."""
    config, transcoder = run.config, run.transcoder.eval()
    with display.status("the transcoder on held-out text"):
        measured = evaluate_transcoder(run.host, transcoder, run.data.held_out)
    training = _describe_training(run, stopped)
    transcoder.config = replace(transcoder.config, training=training, evaluation=measured.to_dict())
    info = transcoder.config
    sizes = {"layers": info.layers, "features": info.features, "width": info.width}
    summary = {"model": info.model, "gated": info.gated, **sizes, **measured.to_dict(), **training}
    if run.accelerator.is_main_process:
        with snapshot.explained(config.out / snapshot.FOLDER, "the transcoder"):
            save_transcoder(transcoder, config.out, config.dtype)
            write_json(config.out / "summary.json", summary, indent=2)
        print_result(display, measured, stopped, config.out)
    run.accelerator.wait_for_everyone()
    return TranscoderResult(transcoder, measured, summary, config.out)


def _describe_training(run: TranscoderRun, stopped: str) -> dict[str, Any]:
    """How the transcoder was trained, for its config.json and summary.json."""
    config, state = run.config, run.state
    return {
        "stopped": stopped,
        "tokens": state.tokens,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
        "l0": config.l0,
        "learning_rate": run.learning_rates[0],
        "seed": config.seed,
        "batch_size": run.batch_size,
        "context": run.data.train.context,
        "data": run.data.train.name,
        "start_from": None if config.start_from is None else str(config.start_from),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
