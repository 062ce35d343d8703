"""The look of the grid of attention maps: one dataclass for the API, the command line and its help."""

import re
from dataclasses import dataclass

from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import shortened
from edgewise.core.ranges import Columns, check_fields


@dataclass(frozen=True)
class MapStyle:
    """How the grid is drawn."""

    columns: Columns | None = None
    """Maps per line of the figure: 9, or 5 if narrow."""
    narrow: bool = False
    """Draw for a paper's column instead of its page."""
    colour_bar: bool = False
    """Add the scale of weights."""
    values: bool = False
    """Print each weight in its cell, of a map alone."""
    caption: bool = False
    """Draw a caption below that explains the figure."""
    mark: str | None = None
    """A cell to frame in red in every map, as query,key counted from 1: 8,5."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.cell  # noqa: B018

    @property
    def cell(self) -> tuple[int, int] | None:
        """Query and key of `mark`, counted from 0 as everywhere in Python."""
        if self.mark is None:
            return None
        match = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", self.mark)
        if not match or "0" in (match[1], match[2]):
            raise EdgewiseError(
                f"{shortened(self.mark)} is no cell; give `mark` as a query and a key, counted from 1: 8,5"
            )
        return int(match[1]) - 1, int(match[2]) - 1
