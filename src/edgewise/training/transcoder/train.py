"""`train_transcoder`: plan the run, run it, never lose it, tell what came out."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.gating.install import install
from edgewise.measure.evaluation import evaluating
from edgewise.models.architecture import parts_of
from edgewise.models.checkpoint import load, load_tokenizer
from edgewise.models.registry import embedded_origin
from edgewise.training import snapshot
from edgewise.training.clock import Clock, catching_signals
from edgewise.training.diverged import Diverged
from edgewise.training.log import Log
from edgewise.training.sparsify.loop import is_slow, known_name, training_data
from edgewise.training.transcoder.config import MAY_BE_NEW, TranscoderConfig, changed
from edgewise.training.transcoder.console import TranscoderScreen
from edgewise.training.transcoder.evaluation import TranscoderEvaluation, evaluate_transcoder
from edgewise.training.transcoder.run import TranscoderRun
from edgewise.training.transcoder.store import WEIGHTS, check_belongs, save_transcoder
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

_CHECKS = 24  # looks at held-out text in a run
_CHECK_TOKENS = 4096  # of each; the last one takes all


@dataclass(frozen=True)
class TranscoderResult:
    """What came out: the transcoder, what was measured, and where it is."""

    transcoder: Transcoder
    evaluation: TranscoderEvaluation
    summary: dict[str, Any]
    folder: Path


def train_transcoder(
    model: str | Path | PreTrainedModel,
    data: Any = None,
    config: TranscoderConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TranscoderResult:
    """Train features that say what the MLPs of a model do, dense or sparse.

    `model` is a name as for `edgewise.load`, or a loaded model, which stays as it is. `data` is a text, jsonl or parquet
    file, a folder of them, a name of the Hugging Face hub, or a dataset object; the shipped models bring their own.

    >>> result = train_transcoder("pocket", config=TranscoderConfig(minutes=5, out="runs/pocket-transcoder"))
    >>> result.evaluation.explained_variance, result.evaluation.l0
    """
    config = replace(config or TranscoderConfig(), out=Path((config or TranscoderConfig()).out))
    # told that there is only a CPU, processes that torchrun started work together, instead of each for itself
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    display = TranscoderScreen(accelerator.is_main_process)
    config, position = _begin_or_resume(config, display)
    name = known_name(model)
    host = model if isinstance(model, PreTrainedModel) else load(model)
    parts_of(install(host))  # says so if it cannot tell where the MLPs are
    origin = embedded_origin(name)
    if tokenizer is None and name and (data is not None or origin is not None):
        tokenizer = load_tokenizer(name)
    found = training_data(origin.name if origin else name, data, config, host, tokenizer)  # pyright: ignore
    with evaluating(host):
        run = TranscoderRun(host, name, found, config, accelerator)
        _restore_or_plan(run, position, display)
        stopped = _train(run, display)
        return _finish(run, stopped, display)


def _begin_or_resume(
    config: TranscoderConfig, display: TranscoderScreen
) -> tuple[TranscoderConfig, dict[str, Any] | None]:
    """The settings of the run, and its position if it has one."""
    folder = config.out / "snapshots"
    if config.out.exists() and not config.out.is_dir():
        raise EdgewiseError(f"{config.out} is a file; give a folder to --out")
    if any(config.out.glob("*.safetensors")) and not (config.out / WEIGHTS).exists():
        raise EdgewiseError(f"{config.out} holds a model's weights; give another folder to --out")
    begun = (config.out / WEIGHTS).exists() or bool(snapshot.snapshots(folder))
    if not config.resume:
        if begun:
            raise EdgewiseError(
                f"{config.out} holds a run already; add --resume to go on with it, or give another --out"
            )
        return config, None
    if not begun:
        raise EdgewiseError(f"{config.out} holds no run to resume; leave out --resume to begin one")
    found, position = snapshot.newest_whole(folder, display.print)
    settings = dict(position["config"])
    settings["valid"] = None if settings["valid"] is None else tuple(settings["valid"])
    settings["start_from"] = None if settings["start_from"] is None else Path(settings["start_from"])
    if new := changed(settings, config):
        raise EdgewiseError(f"the run was begun with other settings; resume it without {', '.join(new)}")
    kept = TranscoderConfig(**{**settings, "out": config.out})
    asked = {key: getattr(config, key) for key in MAY_BE_NEW}
    given = {key: value for key, value in asked.items() if value is not None}
    config = replace(kept, resume=True, save_minutes=config.save_minutes, dtype=config.dtype, **given)
    return config, {**position, "folder": found}


def _restore_or_plan(run: TranscoderRun, position: dict[str, Any] | None, display: TranscoderScreen) -> None:
    """Decide how many steps there will be, and say what will be done before it is begun."""
    config, now = run.config, 0
    if position is not None:
        begun, text = position["data"]["name"], run.data.train.name
        if begun != text:
            raise EdgewiseError(
                f"the run was begun on {begun}, not on {text}; resume it with the same --data"
            )
        check_belongs(config.out, TranscoderInfo(**position["transcoder"]), run.host)
        run.restore(position["folder"], position)
        now = run.step_number
        if all(position["config"][key] == getattr(config, key) for key in ("tokens", "minutes")):
            display.print(
                f"resuming {config.out} at step {now:,} of {run.steps:,} ({run.tokens / 1e6:.2f}M tokens)"
            )
            return
    limits = []
    if config.token_limit is not None:
        if config.token_limit < run.tokens_per_step:
            raise EdgewiseError(
                f"--tokens {config.tokens} is less than one step of {run.tokens_per_step:,} tokens; reduce --batch-size"
            )
        limits.append(config.token_limit // run.tokens_per_step)
    with display.status("measuring a step"):
        seconds = run.measure_step()
    if config.minute_limit is not None:
        limits.append(now + int(60 * config.minute_limit / seconds))
    run.steps = max(min(limits), now + 1)
    display.plan(run, seconds)


def _train(run: TranscoderRun, display: TranscoderScreen) -> str:
    """Steps until something says stop; gives what it was."""
    config, first = run.config, run.step_number
    checked_at = first - first % max(1, run.steps // _CHECKS)
    check_tokens = _CHECK_TOKENS // (4 if is_slow(run.host) else 1)
    stopped = "all steps done"
    with (
        Log(config.out / "log.jsonl", first, run.accelerator.is_main_process) as log,
        display.live(run) as line,
        catching_signals() as asked,
    ):
        clock = Clock(run, asked)
        while run.step_number < run.steps:
            seen = run.step(clock.flags())
            clock.set_steps(seen.flags)
            if run.step_number % max(1, run.steps // 1000) == 0:
                log.write(run, mse=sum(seen.mse), l0=sum(seen.l0) / len(seen.l0))
            if run.step_number - checked_at >= max(1, run.steps // _CHECKS):
                checked_at = run.step_number
                fit = run.check(check_tokens)
                explained, l0 = fit.explained_variance.tolist(), fit.l0.tolist()
                if not math.isfinite(sum(explained)):
                    raise Diverged("what is explained of held-out text is not a number", run)
                log.write(run, explained_variance=explained, held_out_l0=l0, dead=fit.dead.tolist())
            line(seen)
            if clock.saves_or_stops(seen.flags):
                stopped = "time is up"
                break
    run.save_snapshot()
    return stopped


def _finish(run: TranscoderRun, stopped: str, display: TranscoderScreen) -> TranscoderResult:
    """Evaluate, save, say. The other processes wait: what is measured takes seconds."""
    config, transcoder = run.config, run.transcoder.eval()
    with display.status("the transcoder on held-out text"):
        measured = evaluate_transcoder(run.host, transcoder, run.data.held_out)
    training = {
        "stopped": stopped,
        "tokens": run.tokens,
        "steps": run.step_number,
        "seconds": round(run.seconds, 1),
        "l0": config.l0,
        "learning_rate": run.rates[0],
        "seed": config.seed,
        "batch_size": run.batch_size,
        "context": run.data.train.context,
        "data": run.data.train.name,
        "start_from": None if config.start_from is None else str(config.start_from),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    transcoder.config = replace(transcoder.config, training=training, evaluation=measured.to_dict())
    info = transcoder.config
    sizes = {"layers": info.layers, "features": info.features, "width": info.width}
    summary = {"model": info.model, "gated": info.gated, **sizes, **measured.to_dict(), **training}
    if run.accelerator.is_main_process:
        with snapshot.explained(run.snapshot_folder, "the transcoder"):
            save_transcoder(transcoder, config.out, config.dtype)
            (config.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        display.result(measured, stopped, config.out)
    run.accelerator.wait_for_everyone()
    return TranscoderResult(transcoder, measured, summary, config.out)
