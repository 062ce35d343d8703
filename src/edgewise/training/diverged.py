"""A run that cannot go on says so, and what to change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from edgewise.core.errors import EdgewiseError
from edgewise.training.snapshot import snapshots


class _Running(Protocol):
    """What is asked of a run."""

    @property
    def step_number(self) -> int: ...
    @property
    def rates(self) -> Sequence[float]: ...
    @property
    def snapshot_folder(self) -> Path: ...


class Diverged(EdgewiseError):
    """The run cannot go on; says what to change."""

    def __init__(self, what: str, run: _Running):
        left = snapshots(run.snapshot_folder)
        rate = run.rates[0] / 3
        way = (
            f"the last good snapshot is {left[0].name}: go on from it with --resume --lr {rate:.1g}"
            if left
            else f"start again with --lr {rate:.1g}"
        )
        super().__init__(f"stopped at step {run.step_number}: {what}; {way}")
