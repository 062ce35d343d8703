"""`edgewise ablate`."""

from pathlib import Path

from edgewise.cli.arguments import PLACEMENT, Flags, ModelArgument, PlacementFlags
from edgewise.tracing.config import InterventionConfig


def ablate(
    model: ModelArgument,
    config: Flags[InterventionConfig],
    transcoder: Path | None = None,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Ablate, scale or patch heads and features by hand: the next tokens before and after, beside the trace's prediction.

    Examples:
      edgewise ablate pocket-sparse --heads L4H1,L3H4
      edgewise ablate pocket-sparse --features L0/118@5 --scale 2
      edgewise ablate pocket-sparse --heads L4H1 --patch-from 'The opposite of " hot " is "'

    Args:
        model: An embedded model, a folder or a Hugging Face name.
        config: What is changed.
        transcoder: The folder of the model's transcoder. The embedded models bring theirs.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.output import Output, print_result
    from edgewise.core.console import Display
    from edgewise.models.loaded import load_models
    from edgewise.tracing.intervene import intervene

    display = Display()
    loaded = load_models([model], device=placement.device, dtype=placement.dtype, display=display)
    result = intervene(loaded, config, transcoder=transcoder)
    title = f"{', '.join(result.changed)} of {result.model} {result.how}"
    print_result(Output(), result, title)
    display.print(f"Written to {result.save(config.out)}")
