"""The model card of a transcoder: the README.md of its folder, from its config."""

from pathlib import Path

from huggingface_hub import ModelCardData

from edgewise.models.card import CARD, GENERATED, TAGS
from edgewise.training.transcoder.transcoder import TranscoderInfo


def write_card(folder: str | Path, info: TranscoderInfo, name: str | None = None) -> Path:
    """Write the model card of a transcoder's folder."""
    data = ModelCardData(library_name="edgewise", tags=[*TAGS, "cross-layer-transcoder"])
    kind = "sparse twin" if info.gated else "dense model"
    training, evaluation = info.training, info.evaluation
    figures = {
        "data": training.get("data"),
        "tokens": training.get("tokens"),
        "l0 penalty": training.get("l0"),
        "explained variance, mean over layers": evaluation.get("mean_explained_variance"),
        "active features per token and layer": evaluation.get("mean_l0"),
        "loss of the model, nats per token": evaluation.get("loss"),
        "loss with its MLPs replaced": evaluation.get("replaced_loss"),
    }
    rows = [
        f"| {label} | {f'{value:.4g}' if isinstance(value, float) else value} |"
        for label, value in figures.items()
        if value is not None
    ]
    table = "\n".join(["| | |", "|---|---|", *rows]) if rows else "Its figures are not known."
    name = name or Path(folder).name
    path = Path(folder, CARD)
    path.write_text(
        f"---\n{data.to_yaml()}\n---\n{GENERATED}\n\n# Cross-layer transcoder of {info.model}\n\n"
        f"{info.features} features in each of {info.layers} layers (width {info.width}) that explain the MLPs of the {kind} "
        f"`{info.model}`.\n\n{table}\n\n## How to load it\n\n```python\nimport edgewise\n\n"
        f"model = edgewise.load({info.model!r})\ntranscoder = edgewise.Transcoder.from_pretrained({name!r}, model=model)\n"
        f"traces = edgewise.trace({info.model!r}, edgewise.TraceConfig(prompt=...), transcoders=transcoder)\n```\n\n"
        "One that was trained on another model is refused.\n",
        encoding="utf-8",
    )
    return path
