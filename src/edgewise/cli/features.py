"""`edgewise features`."""

from pathlib import Path
from typing import Annotated

import tyro

from edgewise.cli.arguments import PLACEMENT, Flags, PlacementFlags
from edgewise.training.transcoder.config import FeaturesConfig


def features(
    transcoder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRANSCODER")],
    config: Flags[FeaturesConfig],
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Show features of a transcoder: the contexts that activate them most, and the tokens they promote.

    Examples:
      edgewise features runs/transcoder --layer 3 --feature 17 42 --data my_text/

    Args:
        transcoder: Its folder.
        config: Which features.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.features import print_features
    from edgewise.training.transcoder.describe import describe_features

    print_features(describe_features(transcoder, config, device=placement.device, dtype=placement.dtype))
