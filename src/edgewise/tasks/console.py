"""What `edgewise tasks` prints."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgewise.core.errors import EdgewiseError
from edgewise.tasks.measure import TasksMeasured

EXAMPLES = 3


def print_tasks(found: TasksMeasured, out: Path | None = None) -> None:
    """A table, one task to a row, then three prompts of each."""
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to fit
    table = Table("task", "prompts", "skipped", "accuracy", "top-1", "score clean", "score corrupt", "metric")
    for name, result in found.results.items():
        table.add_row(
            escape(name),
            str(len(result.task.pairs)),
            str(sum(result.task.skipped.values())),
            f"{result.accuracy:.1%}",
            f"{result.top_1:.1%}",
            f"{result.clean.mean():+.3f}",
            f"{result.corrupt.mean():+.3f}",
            result.task.metric,
        )
    for name, why in found.impossible.items():
        table.add_row(escape(name), "0", *[""] * 5, escape(why.removeprefix(f"{name} ")))
    console.print(table)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say("accuracy: the answer scores above the wrong one; top-1: it is the likeliest of all tokens")
    for name, result in found.results.items():
        say(f"\n{name}")
        for pair in result.task.pairs[:EXAMPLES]:
            say(f"  clean    {_line(pair.clean)}")
            say(f"  corrupt  {_line(pair.corrupt)}")
            say(f"  answer   {_few(pair.answers)}   wrong  {_few(pair.wrong)}")
        for reason, count in result.task.skipped.items():
            say(f"  skipped  {count}: {reason}")
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
        except OSError as error:
            raise EdgewiseError(f"cannot write {out}: {error.strerror}") from error
        say(f"Written to {out}")


def _line(text: str) -> str:
    return text.strip().replace("\n", "\\n")


def _few(answers: tuple[str, ...]) -> str:
    words = [answer.strip() for answer in answers]
    return words[0] if len(words) == 1 else f"{words[0]} .. {words[-1]}"
