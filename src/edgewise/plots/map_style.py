"""The look of the grid of attention maps: one dataclass for the API, the command line and its help."""

import re
from dataclasses import dataclass

from edgewise.core.errors import EdgewiseError


@dataclass(frozen=True)
class MapStyle:
    """How the grid is drawn."""

    columns: int | None = None
    """Maps per line of the figure: 9, or 5 if narrow."""
    narrow: bool = False
    """Draw for a paper's column instead of its page."""
    colour_bar: bool = False
    """Add the scale of weights."""
    mark: str | None = None
    """A cell to frame in red in every map, as query,key counted from 0: 8,5."""

    def __post_init__(self) -> None:
        if self.columns is not None and self.columns < 1:
            raise EdgewiseError(f"`columns` must be positive, not {self.columns}")
        self.cell  # noqa: B018

    @property
    def cell(self) -> tuple[int, int] | None:
        """Query and key of `mark`."""
        if self.mark is None:
            return None
        match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", self.mark)
        if not match:
            raise EdgewiseError(
                f"{self.mark!r} is no cell; give `mark` as a query and a key, counted from 0: 8,5"
            )
        return int(match[1]), int(match[2])
