"""`edgewise flow`."""

from pathlib import Path

from edgewise.cli.arguments import PLACEMENT, Flags, ModelsArgument, PlacementFlags
from edgewise.core.errors import EdgewiseError
from edgewise.flow.config import FlowConfig

DEFAULTS = FlowConfig(out=Path("runs/flow"))


def flow(
    models: ModelsArgument,
    config: Flags[FlowConfig] = DEFAULTS,
    colour_heads: bool = False,
    caption: bool = False,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Draw a prompt's open attention edges: tokens across, layers upward, a dense model above its twin.

    Examples:
      edgewise flow pocket pocket-sparse --prompt 'The opposite of " large " is "'
      edgewise flow pocket-addition pocket-addition-sparse

    Args:
        models: One model, or two that read the same tokens (dense first): embedded models, folders or Hugging Face names.
        config: The prompts, and the folder for flow.json and its figure.
        colour_heads: Give each head a colour of its own.
        caption: Draw a caption below that explains the figure.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.core.console import Display
    from edgewise.core.files import output_folder
    from edgewise.flow.collect import collect_flow
    from edgewise.models.loaded import load_models
    from edgewise.plots.flow import draw_flow
    from edgewise.plots.style import save_figure

    if config.out is None:
        raise EdgewiseError("give a folder as `out`")
    with output_folder(config.out):
        flows = collect_flow(
            load_models(models, device=placement.device, dtype=placement.dtype, display=Display()), config
        )
        save_figure(draw_flow(flows, colour_heads, caption=caption), config.out / "flow")
        print(f"flow.json is in {config.out}, drawn as flow (svg, pdf, png)")
