"""`edgewise maps`."""

from pathlib import Path

from edgewise.cli.arguments import PLACEMENT, Flags, ModelsArgument, PlacementFlags
from edgewise.core.errors import EdgewiseError
from edgewise.maps.config import MapsConfig
from edgewise.plots.map_style import MapStyle

DEFAULTS, STYLE = MapsConfig(out=Path("runs/maps")), MapStyle()


def maps(
    models: ModelsArgument,
    config: Flags[MapsConfig] = DEFAULTS,
    style: Flags[MapStyle] = STYLE,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Draw attention maps of the heads in a task's circuit, a dense model above its twin, and classify the heads.

    Leaves attention-maps.svg, .pdf and .png in --out, and the data to draw them again in .json and .safetensors.

    Examples:
      edgewise maps pocket pocket-sparse --task copy
      edgewise maps gpt2 runs/gpt2-sparse --circuit runs/ioi --narrow
      edgewise maps gpt2 --prompt "When Mary and John went home" --heads L5H1,L6H9

    Args:
        models: One model, or two that read the same tokens (dense first): embedded models, folders or Hugging Face names.
        config: Task, prompt and heads.
        style: The look of the grid.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.maps import print_maps
    from edgewise.core.console import Display
    from edgewise.core.files import output_folder
    from edgewise.maps.collect import collect_maps
    from edgewise.models.loaded import load_models
    from edgewise.plots.attention_maps import draw_maps
    from edgewise.plots.style import save_figure

    if config.out is None:
        raise EdgewiseError("give a folder as `out`")
    with output_folder(config.out):
        display = Display()
        result = collect_maps(
            load_models(models, device=placement.device, dtype=placement.dtype, display=display), config
        )
        save_figure(draw_maps(result, style), config.out / "attention-maps")
        print_maps(result)
        display.print(f"attention-maps.json is in {config.out}, drawn as attention-maps (svg, pdf, png)")
