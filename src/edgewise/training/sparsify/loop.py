"""`sparsify`: plan the run, run it, never lose it, tell what came out."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.data import HELD_OUT_TOKENS, Data, embedded_data, open_data
from edgewise.gating.edge_gate import gate_config
from edgewise.gating.install import install
from edgewise.measure.evaluation import Measured, evaluating
from edgewise.models.checkpoint import load, load_tokenizer, save
from edgewise.models.lora import save_adapters
from edgewise.models.registry import embedded, embedded_name
from edgewise.plots.run import draw_run
from edgewise.training import snapshot
from edgewise.training.clock import Clock, catching_signals
from edgewise.training.diverged import Diverged
from edgewise.training.log import Log
from edgewise.training.sparsify.config import LONGEST_CONTEXT, MAY_BE_NEW, SparsifyConfig, changed
from edgewise.training.sparsify.console import Display
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.run import Run
from edgewise.training.sparsify.summary import summarize

_CHECKS = 24  # validations in a run
_CHECK_TOKENS = 16_384  # held-out tokens of a validation on the way; the last one takes all
# of a run's tokens, for each validation that the multiplier goes by: what it is told should hold on all held-out text
_CHECKED_SHARE = 0.01
# parameters; a larger model is held to as much text as others are on the way, and on the way to a quarter of it
_LARGE_ON_A_CPU = 50_000_000
_SAME_LOSS = 2e-3  # the most by which devices and numbers of processes may change a loss


@dataclass(frozen=True)
class SparsifyResult:
    """What came out: the twin, what was measured, and where it is."""

    twin: PreTrainedModel
    summary: dict[str, Any]
    folder: Path


def sparsify(
    model: str | Path | PreTrainedModel,
    data: Any = None,
    config: SparsifyConfig | None = None,
    *,
    recipe: Recipe | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> SparsifyResult:
    """Post-train a dense model until almost no attention edges remain, at the same loss.

    `model` is a name as for `edgewise.load`, or a loaded dense model, which stays as it is. `data` is a text, jsonl or
    parquet file, a folder of them, a name of the Hugging Face hub, or a dataset object; the shipped models bring their own.
    `recipe` is a value instead of the name in `config`; a resumed run keeps its own if it is not given.

    >>> result = edgewise.sparsify("pocket", config=edgewise.SparsifyConfig(minutes=5, out="runs/pocket-sparse"))
    >>> result.summary["density"], result.summary["delta_ce"]
    """
    config = replace(config or SparsifyConfig(), out=Path((config or SparsifyConfig()).out))
    # told that there is only a CPU, processes that torchrun started work together, instead of each for itself
    only_cpu = not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=only_cpu, log_with=config.report_to, project_dir=str(config.out))
    display = Display(accelerator.is_main_process)
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.cpu_ram_efficient_loading:
        raise EdgewiseError(
            "with FSDP's cpu_ram_efficient_loading only one process would load the dense model's weights, and the others "
            "learn from zeros; start with --fsdp_cpu_ram_efficient_loading false"
        )
    if config.report_to and not accelerator.log_with:
        raise EdgewiseError(f"--report-to {config.report_to} needs a package: pip install {config.report_to}")
    config, position = _begin_or_resume(config, display)
    name = known_name(model)
    dense = model if isinstance(model, PreTrainedModel) else load(model)
    if gate_config(install(dense)) is not None:
        raise EdgewiseError(f"{name} is a sparse twin already; start from the dense model")
    if tokenizer is None and name and (data is not None or embedded(name) is not None):
        tokenizer = load_tokenizer(name)
    found = training_data(name, data, config, dense, tokenizer)
    with evaluating(dense):
        with display.status("what attending to nothing is worth"):
            recipe = _recipe_of(position, recipe)
            run = Run(dense, found, config, accelerator, recipe, is_resumed=position is not None)
        if config.report_to:
            about = {"model": name, "seed": config.seed, "recipe": run.recipe.name}
            accelerator.init_trackers("edgewise", about)
        with display.status("the dense model on held-out text"):
            dense_measured = run.validate_dense()
        run.target = dense_measured.ce
        _restore_or_plan(run, position, dense_measured, name, display)
        try:
            stopped = _train(run, display)
            return _finish(run, name, dense_measured, tokenizer, stopped, display)
        finally:
            if config.report_to:
                accelerator.end_training()


def known_name(model: str | Path | PreTrainedModel) -> str:
    """What the model is called, a shipped one by its own name; empty for one that was never loaded from anywhere."""
    name = (model.name_or_path or "") if isinstance(model, PreTrainedModel) else str(model)
    return embedded_name(name)


def _begin_or_resume(
    config: SparsifyConfig, display: Display
) -> tuple[SparsifyConfig, dict[str, Any] | None]:
    """The settings of the run, and its position if it has one."""
    folder = config.out / "snapshots"
    if config.out.exists() and not config.out.is_dir():
        raise EdgewiseError(f"{config.out} is a file; give a folder to --out")
    if [*config.out.glob("model*.safetensors"), *config.out.glob("pytorch_model*")]:
        raise EdgewiseError(f"{config.out} holds a dense model's weights; give another folder to --out")
    begun = config.out.is_dir() and (any(config.out.glob("twin*")) or snapshot.snapshots(folder))
    if not config.resume:
        if begun:
            raise EdgewiseError(
                f"{config.out} holds a run already; add --resume to go on with it, or give another --out"
            )
        return config, None
    if not begun:
        raise EdgewiseError(f"{config.out} holds no run to resume; leave out --resume to begin one")
    found, position = snapshot.newest_whole(folder, display.print)
    settings = {**position["config"], "valid": _tuple(position["config"]["valid"])}
    if new := changed(settings, config):
        raise EdgewiseError(f"the run was begun with other settings; resume it without {', '.join(new)}")
    kept = SparsifyConfig(**{**settings, "out": config.out})
    asked = {key: getattr(config, key) for key in (*MAY_BE_NEW, "report_to")}
    given = {key: value for key, value in asked.items() if value is not None}
    config = replace(kept, resume=True, save_minutes=config.save_minutes, controls=config.controls, **given)
    return config, {**position, "folder": found}


def _recipe_of(position: dict[str, Any] | None, recipe: Recipe | None) -> Recipe | None:
    """The recipe given, else that of the run that is resumed. Its weights have a null value or not, whatever is given."""
    if position is None:
        return recipe
    begun = Recipe.from_dict(position["recipe"])
    if recipe is None:
        return begun
    return replace(recipe, gate=replace(recipe.gate, null_value=begun.gate.null_value))


def _tuple(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def training_data(
    name: str,
    data: Any,
    config: SparsifyConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Data:
    own = getattr(model.config.get_text_config(), "max_position_embeddings", LONGEST_CONTEXT)
    if config.context is not None and config.context > own:
        raise EdgewiseError(f"--context {config.context} is longer than the model's own context, {own}")
    if data is None:
        shipped = embedded_data(name, config.seed)
        if shipped is None:
            raise EdgewiseError(
                f"{name or 'this model'} brings no text of its own; give --data: a file, a folder or a dataset's name"
            )
        if config.context not in (None, shipped.train.context):
            raise EdgewiseError(
                f"{name}'s own text has rows of {shipped.train.context} tokens; leave out --context"
            )
        return shipped
    if tokenizer is None:
        raise EdgewiseError("reading text needs a tokenizer; give tokenizer=..., or the model by name")
    context = config.context or min(own, LONGEST_CONTEXT)
    tokens = _CHECK_TOKENS if is_slow(model) else HELD_OUT_TOKENS
    return open_data(data, tokenizer, context, config.seed, valid=config.valid, held_out_tokens=tokens)


def is_slow(model: PreTrainedModel) -> bool:
    """Whether reading much held-out text would take minutes, before the first step and after the last."""
    return not torch.accelerator.is_available() and model.num_parameters() > _LARGE_ON_A_CPU


# --------------------------------------------------------------------------------------------------------- the plan


def _restore_or_plan(
    run: Run, position: dict[str, Any] | None, dense: Measured, name: str, display: Display
) -> None:
    """Decide how many steps there will be, and say what will be done before it is begun."""
    config, now = run.config, 0
    if position is not None:
        _check_same(run, position, dense)
        run.restore(position["folder"], position)
        now = run.step_number
        if Recipe.from_dict(position["recipe"]) != run.recipe:
            display.print(
                "the recipe is another now than when this run was begun: it goes on with the new one"
            )
        begun = position["config"]
        if all(begun[key] == getattr(config, key) for key in ("tokens", "minutes")):
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
        layerwise_left = max(0, run.layerwise_steps - now)
        seconds = run.measure_step()
        layerwise_seconds = layerwise_left * run.measure_step(is_layerwise=True) if layerwise_left else 0.0
    minutes = config.minute_limit
    if minutes is not None:
        limits.append(now + layerwise_left + int((60 * minutes - layerwise_seconds) / seconds))
    if not limits:  # a density alone: no schedule to fit, so allow for a long one
        limits.append(now + int(60 * 60 * 24 / seconds))
    run.steps = max(min(limits), now + 1)
    if run.steps <= run.layerwise_steps:
        raise EdgewiseError(
            f"--layerwise-warmup {config.layerwise_warmup} leaves no time for joint training: give fewer tokens, or "
            "a longer run"
        )
    display.plan(run, name, dense, seconds, layerwise_seconds)


def _check_same(run: Run, position: dict[str, Any], dense: Measured) -> None:
    """A run goes on only with the text and the dense model it was begun with."""
    begun, now = position["data"]["name"], run.data.train.name
    if begun != now:
        raise EdgewiseError(f"the run was begun on {begun}, not on {now}; resume it with the same --data")
    if not abs(dense.ce - position["target"]) < _SAME_LOSS:
        raise EdgewiseError(
            f"the run was begun with another model or text: the dense model's held-out loss is {dense.ce:.4f} now, and was "
            f"{position['target']:.4f}; resume it with what it was begun with"
        )


# ------------------------------------------------------------------------------------------------------- the loop


def _train(run: Run, display: Display) -> str:
    """Steps until something says stop; gives what it was."""
    config, accelerator = run.config, run.accelerator
    check_tokens = _CHECK_TOKENS // (4 if is_slow(run.dense) else 1)
    if run.average is not None:
        check_tokens = max(check_tokens, round(_CHECKED_SHARE * run.steps * run.tokens_per_step))
    check_rows = max(accelerator.num_processes, check_tokens // run.data.train.context)
    # of the same rows, because a part of the text is easier or harder than all of it
    all_rows = check_rows >= len(run.data.held_out.ids)
    dense_ce = run.target if all_rows else run.validate_dense(check_rows).ce
    first = run.step_number
    # counted from where the run before it was interrupted would have looked last
    checked_at = first - first % max(1, run.steps // _CHECKS)
    first_gap: float | None = None
    stopped = "all steps done"
    with (
        Log(config.out / "log.jsonl", run.step_number, accelerator.is_main_process) as log,
        display.live(run, lambda: run.layerwise_steps if run.is_layerwise else run.steps) as line,
        catching_signals() as asked,
    ):
        clock = Clock(run, asked)
        while run.step_number < run.steps:
            if run.step_number == run.layerwise_steps:
                clock.begin_other_steps()
            seen = run.step(clock.flags(fits_schedule=not run.is_layerwise))
            clock.set_steps(seen.flags)
            gap = run.multiplier.gap or 0.0
            if run.step_number == first + 20:
                first_gap = max(gap, 0.0)
            if first_gap is not None and gap > 2 * first_gap + 2.0:
                raise Diverged(f"the loss is {gap:.1f} nats above the dense model's and growing", run)
            every = max(1, run.steps // 1000)
            if run.step_number % every == 0:
                losses = {"ce": seen.ce, "dense_ce": seen.dense_ce, "expected_density": seen.density}
                log.write(run, **_multiplier(run), **losses)
            line(seen)
            if clock.is_last(seen.flags) or run.step_number - checked_at >= max(1, run.steps // _CHECKS):
                checked_at = run.step_number
                checked = run.validate(check_rows)
                if not math.isfinite(checked.ce):
                    raise Diverged("the held-out loss is not a number", run)
                log.write(run, **_multiplier(run), delta_ce=checked.ce - dense_ce, **_held_out(checked))
                display.checked(checked)
                if config.report_to:
                    values = {
                        "density": checked.density,
                        "delta_ce": checked.ce - dense_ce,
                        "beta": run.multiplier.beta,
                    }
                    accelerator.log(values, step=run.step_number)
                run.take_notice(checked, dense_ce)
                reached = config.density is not None and checked.density <= config.density
                if reached and checked.ce <= dense_ce + config.loss_tolerance:
                    stopped = f"density {config.density} reached"
                    break
            if clock.saves_or_stops(seen.flags):
                stopped = "time is up"
                break
    run.save_snapshot()
    return stopped


def _multiplier(run: Run) -> dict[str, Any]:
    return {"beta": run.multiplier.beta, "gap": run.multiplier.gap, "expected_gap": run.multiplier.expected}


def _held_out(checked: Measured) -> dict[str, float]:
    return {"held_out_ce": checked.ce, "density": checked.density, "edges_per_query": checked.edges_per_query}


# -------------------------------------------------------------------------------------------------------- the end


def _finish(
    run: Run, name: str, dense: Measured, tokenizer: Any, stopped: str, display: Display
) -> SparsifyResult:
    config, accelerator = run.config, run.accelerator
    with display.status("the twin on held-out text"):
        measured = run.validate()
    twin, state, adapters = run.twin()
    weights = twin.state_dict() if state is None else state
    summary = summarize(run, name, dense, measured, weights, stopped)
    controls = _known_controls(config, summary["tokens"])
    if controls:
        summary["controls"] = controls
    if accelerator.is_main_process:
        with snapshot.explained(run.snapshot_folder, "the twin"):
            if state is None:
                save(twin, config.out, tokenizer)
                if adapters is not None and name:
                    save_adapters(config.out / "adapters", adapters, config.out, twin, run.dense, name)
                    if tokenizer is not None:
                        tokenizer.save_pretrained(config.out / "adapters")
            else:
                twin.save_pretrained(config.out, state_dict=state)
                if tokenizer is not None:
                    tokenizer.save_pretrained(config.out)
            _write_summary(config.out, summary)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if config.controls:  # longer than other processes would wait
            from edgewise.training.sparsify.controls import run_controls

            for summary["controls"] in run_controls(run, measured, display, controls):
                _write_summary(config.out, summary)
        display.result(summary, config.out)
    return SparsifyResult(twin, summary, config.out)


def _known_controls(config: SparsifyConfig, tokens: int) -> dict[str, Any]:
    """Those of this very run that were finished before it was interrupted."""
    path = config.out / "summary.json"
    found = json.loads(path.read_text()) if config.resume and path.is_file() else {}
    return found.get("controls", {}) if found.get("tokens") == tokens else {}


def _write_summary(folder: Path, summary: dict[str, Any]) -> None:
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw_run(folder)
