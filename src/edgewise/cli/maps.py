"""`edgewise maps`."""

from pathlib import Path

from edgewise.cli.arguments import ModelsArgument


def maps(
    models: ModelsArgument,
    task: str = "copy",
    prompt: str | None = None,
    heads: str | None = None,
    circuit: Path | None = None,
    threshold: float = 0.9,
    prompts: int = 32,
    columns: int | None = None,
    narrow: bool = False,
    colour_bar: bool = False,
    mark: str | None = None,
    out: Path = Path("runs/maps"),
) -> None:
    """Draw attention maps of the heads in a task's circuit, a dense model above its twin, and classify the heads.

    Leaves attention-maps.svg, .pdf and .png in --out, and the data to draw them again in .json and .safetensors.

    Examples:
      edgewise maps pocket pocket-sparse --task copy
      edgewise maps gpt2 runs/gpt2-sparse --circuit runs/ioi --narrow
      edgewise maps gpt2 --prompt "When Mary and John went home" --heads L5H1,L6H9

    Args:
        models: One model, or two that read the same tokens (dense first): shipped names, folders or Hugging Face names.
        task: copy, ioi, greater-than, docstring, antonym, or a JSONL file of clean, corrupt, answer, wrong.
        prompt: Show this text instead of the task's first prompt.
        heads: Show these heads instead of the circuit's: L5H1,L0H0, or all. One alone is shown with its tokens.
        circuit: A folder with circuit.json, from which the task and its heads are taken instead of searching for them.
        threshold: Share of the task's effect that the heads must explain.
        prompts: Pairs of prompts by which heads are chosen.
        columns: Maps per line of the figure: 9, or 5 if narrow.
        narrow: Draw for a paper's column instead of its page.
        colour_bar: Add the scale of weights.
        mark: A cell to frame in red in every map, as query,key counted from 0: 8,5.
        out: Folder for all files.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.core.console import Display
    from edgewise.maps.collect import collect_maps
    from edgewise.maps.console import print_maps
    from edgewise.plots.attention_maps import MapLook, cell, draw_maps
    from edgewise.plots.style import save_figure

    look = MapLook(columns, narrow, colour_bar, None if mark is None else cell(mark))
    display = Display()
    result = collect_maps(
        models,
        task,
        prompt=prompt,
        heads=heads,
        circuit=circuit,
        threshold=threshold,
        prompts=prompts,
        out=out,
        display=display,
    )
    result.save(out)
    save_figure(draw_maps(result, look), out / "attention-maps")
    print_maps(result)
    display.print(f"attention-maps.json is in {out}, drawn as attention-maps (svg, pdf, png)")
