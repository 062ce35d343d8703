"""Entry point: assembles the commands. Each is a function; its signature and docstring are its flags and its help."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr

import tyro

from edgewise import __version__
from edgewise.cli.ablate import ablate
from edgewise.cli.circuit import circuit
from edgewise.cli.compact import compact
from edgewise.cli.demo import demo
from edgewise.cli.evaluate import evaluate
from edgewise.cli.features import features
from edgewise.cli.flags import FlagNames, flags_of
from edgewise.cli.flow import flow
from edgewise.cli.help import command_help, overview
from edgewise.cli.info import info
from edgewise.cli.maps import maps
from edgewise.cli.plan import plan
from edgewise.cli.report import report
from edgewise.cli.sparsify import sparsify
from edgewise.cli.tasks import tasks
from edgewise.cli.trace import trace
from edgewise.cli.transcoder import transcoder
from edgewise.core.errors import EdgewiseError

DESCRIPTION = """Remove attention edges from a transformer at the same loss, and read what is left.

Examples:
  edgewise demo                                        every step on the embedded models, in minutes, offline
  edgewise sparsify gpt2 --data my_text/ --minutes 60  train the sparse twin
  edgewise circuit pocket pocket-sparse --task copy    compare circuits of a dense model and its twin
  edgewise COMMAND --help                              what a command takes
  edgewise --version                                   which version this is"""

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "the basics": {
        "demo": demo,
        "sparsify": sparsify,
        "circuit": circuit,
        "maps": maps,
        "trace": trace,
        "report": report,
    },
    "before a run, and on its twin": {
        "info": info,
        "plan": plan,
        "eval": evaluate,
        "tasks": tasks,
        "compact": compact,
    },
    "more to look at": {"flow": flow, "ablate": ablate, "transcoder": transcoder, "features": features},
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


_OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory|not enough memory", re.IGNORECASE)
"""What torch says when it cannot allocate a tensor."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `edgewise ARGUMENTS`, those of the process if not given.

    Exits with 2 and one line on stderr on wrong input, with 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments[0] if arguments else ""
    if name == "--version":
        print(f"edgewise {__version__}")
    elif name in COMMANDS:
        _run(name, arguments[1:])
    else:
        _overview(arguments)


def _run(name: str, arguments: Sequence[str]) -> None:
    """Run one command, with arguments of the library shown as flags: in help, progress and errors, not in results."""
    command = COMMANDS[name]
    flags = flags_of(command)
    with errors_in_one_line(flags):
        if {"-h", "--help"} & set(arguments):
            print(command_help(name, command, description(command), flags))
        else:
            tyro.cli(command, prog=f"edgewise {name}", description=description(command), args=arguments)


@contextmanager
def errors_in_one_line(flags: dict[str, str]) -> Iterator[None]:
    """Exit with 2 and one line on stderr on wrong input, with 130 if interrupted; stderr shows arguments as `flags`."""
    with redirect_stderr(FlagNames(sys.stderr, flags)):  # type: ignore
        try:
            yield
        except EdgewiseError as error:
            print(f"edgewise: {_printable(str(error))}", file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
                raise
            print(
                "edgewise: there is not enough memory for this: give smaller numbers or a smaller model",
                file=sys.stderr,
            )
            sys.exit(2)
        except BrokenPipeError:  # whoever reads the output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still flushes at exit
            sys.exit(141)
        except KeyboardInterrupt as interrupt:
            if str(interrupt):
                print(f"edgewise: {interrupt}", file=sys.stderr)
            sys.exit(130)


def _printable(text: str) -> str:
    """A text without characters that control a terminal, which a file or a name may hold."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )


def _overview(arguments: Sequence[str]) -> None:
    """Show all commands with the first sentence of each, or refuse a word that is none of them."""
    if {"-h", "--help"} & set(arguments) or not arguments:
        first = {
            title: {name: description(command).splitlines()[0] for name, command in group.items()}
            for title, group in GROUPS.items()
        }
        print(overview(DESCRIPTION, first))
        return
    app = tyro.extras.SubcommandApp()
    for name, command in COMMANDS.items():
        app.command(name=name, help=description(command).splitlines()[0])(command)
    app.cli(prog="edgewise", description=DESCRIPTION, args=arguments)


def description(command: Callable[..., None]) -> str:
    """A command's docstring without its `Args`: paragraphs as one line each, examples as they stand."""
    text, _, _ = inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        part if part.startswith("Examples:") else part.replace("\n", " ") for part in paragraphs
    )
