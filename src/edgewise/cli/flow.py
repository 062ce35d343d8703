"""`edgewise flow`."""

from pathlib import Path

from edgewise.cli.arguments import ModelsArgument


def flow(
    models: ModelsArgument,
    prompt: str | None = None,
    colour_heads: bool = False,
    out: Path = Path("runs/flow"),
) -> None:
    """Draw a prompt's open attention edges: tokens across, layers upward, a dense model above its twin.

    Examples:
      edgewise flow pocket pocket-sparse --prompt 'The opposite of " large " is "'
      edgewise flow pocket-addition pocket-addition-sparse

    Args:
        models: One model, or two that read the same tokens (dense first): shipped names, folders or Hugging Face names.
        prompt: The text to read; for an addition model a sum, 53+21=. Without one, an addition model gets three sums.
        colour_heads: Give each head a colour of its own.
        out: Folder for flow.json and for flow as svg, pdf and png.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.flow.collect import collect_flow
    from edgewise.plots.flow import draw_flow
    from edgewise.plots.style import save_figure

    flows = collect_flow(models, () if prompt is None else prompt)
    flows.save(out)
    save_figure(draw_flow(flows, colour_heads), out / "flow")
    print(f"flow.json is in {out}, drawn as flow (svg, pdf, png)")
