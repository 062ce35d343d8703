"""What `make demo` runs: the main job on what is shipped with the package, offline. Holds no logic of its own."""

from pathlib import Path

OUT = Path("runs/demo")


def run() -> None:
    """Every stage in turn; results under runs/demo."""
