"""Where a training stands: one object that the trainer advances, snapshots hold and the log reports."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass
class TrainingState:
    """The part that every training has; a training adds fields of its own. All of it fits into JSON."""

    tokens_per_step: int
    """Over all processes."""
    step: int = 0
    """Steps done."""
    planned_steps: int = 0
    """Steps of the whole run; where time is limited, this follows the pace."""
    validations: int = 24
    """Validations of the whole run."""
    seconds: float = 0.0
    """Time spent in steps, over all sessions of a resumed run."""
    seconds_spent: float = 0.0
    """Time spent in all, set-up and validations included, over all sessions."""
    time_limit: float | None = None
    """Seconds that the run may take in all; a resumed run has what is left of them."""

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        return self.step * self.tokens_per_step

    def state_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(saved[field.name])
            else:
                setattr(self, field.name, saved[field.name])
