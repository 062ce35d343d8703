"""The command line: each command is a function, its docstring and annotations are the help. No logic lives here."""

import sys
from typing import Annotated

import tyro

from edgewise.errors import EdgewiseError


def info(model: Annotated[str, tyro.conf.Positional], json: bool = False) -> None:
    """Say what a model is: architecture, layers x heads, dense or sparse, its gate, parameters, memory.

    Reads the config and the headers of the weight files only, so it is quick for any size.

    Args:
        model: A shipped name (pocket, pocket-addition), a folder, or a Hugging Face name such as gpt2.
        json: Print JSON instead of text.
    """
    import edgewise

    described = edgewise.info(model)
    print(described.to_json() if json else described)


def demo() -> None:
    """Run the main job on what is shipped with the package, and say where the results are (runs/demo)."""
    from edgewise.demo import run

    run()


COMMANDS = {"info": info, "demo": demo}


def main() -> None:
    """Entry point of `edgewise` and `python -m edgewise`."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="edgewise",
            description="Read what a transformer does: remove attention edges, keep the loss, look at what is left.",
        )
    except EdgewiseError as error:
        print(f"edgewise: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
