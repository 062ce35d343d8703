"""Settings of a flow: one dataclass for the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import check_fields


@dataclass(frozen=True)
class FlowConfig:
    """Open attention edges on prompts."""

    prompt: tuple[str, ...] = ()
    """The text to read, or several; for an addition model sums, 53+21=. Without one, an addition model gets three sums."""
    out: Path | None = None
    """Folder for flow.json."""

    def __post_init__(self) -> None:
        if isinstance(self.prompt, str):
            raise EdgewiseError("`prompt` must be a tuple of texts, not one text")
        check_fields(self)
