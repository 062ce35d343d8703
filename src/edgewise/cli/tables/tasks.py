"""Table of tasks: accuracy and scores of each, then example prompts."""

from rich.markup import escape
from rich.table import Table

from edgewise.cli.tables.output import Output
from edgewise.tasks.measure import TaskResult, TasksResult

EXAMPLES = 3


def print_tasks(measured: TasksResult) -> None:
    """Print a table with a line for each task, then three prompts of each."""
    output = Output()
    output.print(_table(measured))
    output.print_plain(
        "accuracy: the answer scores above the wrong one; top-1: it is the most likely of all tokens"
    )
    for name, result in measured.results.items():
        output.print_plain(f"\n{name}")
        _print_examples(output, result)


def _table(measured: TasksResult) -> Table:
    header, *rows = measured.table()
    table = Table(*header)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _print_examples(output: Output, result: TaskResult) -> None:
    for pair in result.task.pairs[:EXAMPLES]:
        output.print_plain(f"  clean    {_one_line(pair.clean)}")
        output.print_plain(f"  corrupt  {_one_line(pair.corrupt)}")
        output.print_plain(
            f"  answer   {_first_and_last(pair.answers)}   wrong  {_first_and_last(pair.wrong)}"
        )
    for reason, count in result.task.skipped.items():
        output.print_plain(f"  skipped  {count}: {reason}")


def _one_line(text: str) -> str:
    return text.strip().replace("\n", "\\n")


def _first_and_last(answers: tuple[str, ...]) -> str:
    first, last = answers[0].strip(), answers[-1].strip()
    return first if len(answers) == 1 else f"{first} .. {last}"
