"""`edgewise compact`."""

from pathlib import Path

from edgewise.cli.arguments import PLACEMENT, ModelArgument, PlacementFlags


def compact(model: ModelArgument, out: Path, placement: PlacementFlags = PLACEMENT) -> None:
    """Remove the closed heads of a sparse twin: the same logits, fewer parameters, a smaller key/value cache.

    A head whose b is 0 or less can never attend. Its queries, keys, values and outputs are removed, and what it adds to
    every token becomes a bias. All commands take the result like any twin, and heads keep their numbers.

    Examples:
      edgewise compact runs/gpt2-sparse --out runs/gpt2-compact
      edgewise compact pocket-sparse --out runs/pocket-compact

    Args:
        model: The sparse twin: an embedded model (pocket-sparse), a folder, or a Hugging Face name.
        out: Folder for the compacted twin.
        placement: Where the twin is compacted and compared with what it was, and in which precision it is saved.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.core.console import Display
    from edgewise.models.compact import compact as compact_model
    from edgewise.models.load import load, load_tokenizer
    from edgewise.models.save import save

    display = Display()
    with display.status("loading"):
        twin = load(model, device=placement.device, dtype=placement.dtype)
    with display.status("removing closed heads"):
        small = compact_model(twin)
    save(small, out, load_tokenizer(model))
    parameters = [sum(p.numel() for p in m.parameters()) for m in (twin, small)]
    gates = [module for module in small.modules() if hasattr(module, "kept")]
    heads = sum(gate.heads for gate in gates), sum(gate.all_heads for gate in gates)  # pyright: ignore
    display.print(
        f"{heads[1] - heads[0]} of {heads[1]} heads removed: {parameters[1]:,} of {parameters[0]:,} parameters are left; "
        f"the twin is in {out}"
    )
