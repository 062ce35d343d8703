"""What every result of an analysis can do: save itself, draw itself, show itself in a terminal and in a notebook.

A result is a dataclass without a model in it, so that every picture can be drawn again from the saved file. Packages that
compute results come before `plots` and may not import it; `plot` therefore looks the drawing function up by name when it is
called, as pandas does with its plotting backend.
"""

import html
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgewise.core.errors import EdgewiseError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgewise.core.console import Display


class Result:
    """Base of all results."""

    drawn_by: ClassVar[str] = ""
    """The function that draws it, as `edgewise.plots.module:function`; called with the result and what `plot` was given."""

    figure_name: ClassVar[str] = ""
    """The name under which its figure is saved."""

    def plot(self, **style: Any) -> "Figure":
        """Draw the result. `style` goes to the function in `edgewise.plots` that draws it, which documents it."""
        if not self.drawn_by:
            raise EdgewiseError(f"{type(self).__name__} has no figure, only a table: print it")
        module, _, function = self.drawn_by.partition(":")
        return getattr(import_module(module), function)(self, **style)

    def save_figure(self, folder: str | Path, **style: Any) -> list[Path]:
        """Draw the result into a folder, as svg, pdf and png; returns their paths."""
        save = import_module("edgewise.plots.style").save_figure
        return save(self.plot(**style), Path(folder) / self.figure_name)

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder; gives the path of its JSON file."""
        raise NotImplementedError

    def save_or_print(self, folder: str | Path | None, display: "Display") -> None:
        """Write the result into a folder, if there is one. Where that fails it is printed: what was computed is not lost."""
        if folder is None:
            return
        try:
            self.save(folder)
        except EdgewiseError:
            display.print(repr(self))
            raise

    def table(self) -> list[list[str]]:
        """The result in a few lines: rows of cells, the first row the header."""
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = self.table()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join([type(self).__name__, *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        header, *rows = ([html.escape(cell) for cell in row] for row in self.table())
        head = "".join(f"<th>{cell}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
