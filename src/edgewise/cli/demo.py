"""`edgewise demo`."""

from pathlib import Path


def demo(out: Path = Path("runs/demo"), minutes: float = 1.6) -> None:
    """Run every stage on the embedded models, offline: sparsify, circuits, maps, flow, trace, report.

    Examples:
      edgewise demo

    Args:
        out: Folder for all results.
        minutes: How long post-training may take.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.demo_stages import run

    run(out, minutes)
