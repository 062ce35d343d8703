"""A run's folder: begin a run in it, or go on with the one it holds."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import exists
from edgewise.training import snapshot
from edgewise.training.snapshot import Snapshot

if TYPE_CHECKING:
    from edgewise.core.console import Display
    from edgewise.data import Data
    from edgewise.training.trainer import TrainingRun


class ResumableConfig(Protocol):
    @property
    def out(self) -> Path: ...
    @property
    def resume(self) -> bool: ...


Config = TypeVar("Config", bound=ResumableConfig)


def open_run(config: ResumableConfig, result: str, display: "Display") -> Snapshot | None:
    """Check that `out` can take a run; returns the snapshot to go on from, None for a new run.

    `result`: a pattern of the files that a finished run leaves behind.
    """
    out, folder = config.out, config.out / snapshot.FOLDER
    if exists(out) and not out.is_dir():
        raise EdgewiseError(f"{out} is a file; give a folder as `out`")
    results = set(out.glob(result))
    others = {*out.glob("*.safetensors"), *out.glob("pytorch_model*")} - results
    if others:
        raise EdgewiseError(f"{out} holds other weights, {min(others).name}; give another folder as `out`")
    begun = bool(results or snapshot.snapshots(folder))
    if config.resume and not begun:
        raise EdgewiseError(f"{out} holds no run to resume; leave out `resume=True` to begin one")
    if begun and not config.resume:
        raise EdgewiseError(
            f"{out} holds a run already; add `resume=True` to go on with it, or give another `out`"
        )
    return snapshot.newest_intact(folder, display.print) if begun else None


def resumed_config(
    config: Config,
    saved: dict[str, Any],
    may_change: Sequence[str],
    per_session: Sequence[str],
) -> Config:
    """The config that a run began with, with what this session was given and may change.

    `may_change`: fields that override the saved ones where they are not None. `per_session`: fields that are never taken
    from the run. A difference in any other is refused.
    """
    per_session = ("out", "resume", "device", *per_session)
    saved = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    default = type(config)()
    names = [
        f"`{field.name}`"
        for field in fields(config)  # pyright: ignore
        if field.name not in (*may_change, *per_session)
        and getattr(config, field.name) not in (saved.get(field.name), getattr(default, field.name))
    ]
    if names:
        raise EdgewiseError(f"the run was begun with other settings; resume it without {', '.join(names)}")
    changes = {name: getattr(config, name) for name in may_change if getattr(config, name) is not None}
    changes |= {name: getattr(config, name) for name in per_session}
    return replace(type(config)(**{**saved, "out": config.out}), **changes)  # pyright: ignore


def check_same_text(data: "Data", saved: Snapshot) -> None:
    """A run goes on with the text it began with."""
    begun, now = saved.content["data"]["name"], data.train.name
    if begun != now:
        raise EdgewiseError(f"the run was begun on {begun}, not on {now}; resume it with the same `data`")


def restore(run: "TrainingRun", saved: Snapshot) -> None:
    """Put a run where a snapshot was taken."""
    own = run.state_dict()
    for part in ("state", "data"):
        _check_form(own[part], saved.content[part], part)
    run.accelerator.load_state(str(saved.folder))
    run.load_state_dict(saved.content)


@contextmanager
def reading(saved: Snapshot) -> Iterator[None]:
    """Refuse a snapshot that is not as this version writes it, in one sentence: of another version, or edited."""
    try:
        yield
    except EdgewiseError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EdgewiseError(
            f"{saved.folder.name} is of another version of edgewise, or was edited ({first_line(error)}); start again in "
            "another `out`"
        ) from error


def _check_form(own: Any, saved: Any, path: str) -> None:
    """Raise a ValueError for a saved state whose fields or types are not those of this run's, or that is not finite."""
    if isinstance(own, dict):
        if not isinstance(saved, dict):
            raise ValueError(f"{path} has no fields")
        for key, value in own.items():
            if key not in saved:
                raise ValueError(f"{path}.{key} is missing")
            _check_form(value, saved[key], f"{path}.{key}")
    elif isinstance(saved, list):
        if own is not None and not isinstance(own, list):
            raise ValueError(f"{path} is a list")
        if len({len(row) if isinstance(row, list) else -1 for row in saved}) > 1:
            raise ValueError(f"{path} is no matrix")
        for row in saved:
            _check_form(None, row, path)
    elif isinstance(saved, float) and not math.isfinite(saved):
        raise ValueError(f"{path} is {saved}")
    elif own is not None and saved is not None and _kind(own) is not _kind(saved):
        raise ValueError(f"{path} is a {type(saved).__name__}")


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)
