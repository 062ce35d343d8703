"""The model card of a sparse twin: the README.md of its folder, from its config and the summary of the run that made it."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from edgewise.core.files import write_text
from edgewise.gating.config import GATES, GateConfig
from edgewise.models.hub import hub_is_reachable
from edgewise.models.registry import embedded, embedded_name
from edgewise.models.twin_format import ADAPTERS_KEY, TWIN_KEY, read_gate

CARD, SUMMARY, PICTURE = "README.md", "summary.json", "run.png"
CONSTRAINTS = {"loss": "held-out loss, not KL", "loss-and-kl": "held-out loss and KL"}
GENERATED = (
    "<!-- Written by edgewise from config.json and summary.json; remove this line to keep your own text. -->"
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TAGS = ["edgewise", "sparse-attention", "interpretability", "mechanistic-interpretability"]
_CITATION = """```bibtex
@article{draye2025sparse,
  title   = {Sparse Attention Post-Training for Mechanistic Interpretability},
  author  = {Draye and Lei and Pan and Posner and Sch{\\"o}lkopf},
  journal = {arXiv preprint arXiv:2512.05865},
  year    = {2025}
}
```"""


def is_generated(card: str) -> bool:
    """Whether a card was written here, and not by somebody who knows more."""
    return GENERATED in card


def write_card(
    folder: str | Path, base: str | None = None, repo_id: str | None = None, tags: list[str] | None = None
) -> Path | None:
    """Write the model card of a twin's folder. A card that somebody has written or edited stays as it is.

    Args:
        folder: A twin's folder; figures and picture of its run are used if they are there.
        base: The dense model it was made from, where no summary says it.
        repo_id: Its name on the hub, for the lines that load it.
        tags: More tags for the hub.
    """
    folder = Path(folder)
    path = folder / CARD
    if path.is_file() and not is_generated(path.read_text(encoding="utf-8")):
        return None
    return write_text(path, _card(folder, base, repo_id, tags or []))


def write_run_cards(folder: Path) -> None:
    """The cards of a finished run: of its twin, and of the same twin as LoRA adapters if it has them."""
    write_card(folder)
    adapters = folder / "adapters"
    if (adapters / "config.json").is_file():
        carry_run(folder, adapters)
        write_card(adapters)


def carry_run(source: Path, folder: Path) -> None:
    """Copy what a twin's folder says of the run that made it, for a twin that was loaded from there and is saved again."""
    if (source / "config.json").is_file() and folder.resolve() != source.resolve():
        for name in (CARD, SUMMARY, PICTURE):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)


def _card(folder: Path, base: str | None, repo_id: str | None, tags: list[str]) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    gate, host = read_gate(str(folder), config)
    summary = _summary(folder)
    named = (
        summary.get("model") or config[TWIN_KEY].get(ADAPTERS_KEY, {}).get("base") or base or "a dense model"
    )
    base = embedded_name(str(named))
    data = _metadata(base, str(host.get("model_type")), summary, repo_id or folder.name)
    data.tags = [*(data.tags or []), *tags]
    architecture = next(iter(host.get("architectures") or []), str(host.get("model_type")))
    sections = [
        f"---\n{data.to_yaml()}\n---\n{GENERATED}",
        f"# Sparse twin of {base}\n\n{_abstract(base, architecture, summary)}",
        _figures(summary, folder),
        f"## How to load it\n\n{_loading(repo_id or folder.name)}",
        f"## Training\n\n{_training(summary)}" if summary else "",
        f"## Gate\n\n{_gate(gate)}",
        f"## Licence\n\n{_licence(base, data.license)}",
        f"## Citation\n\nThe method; made by Edgewise (`pip install edgewise`).\n\n{_CITATION}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _summary(folder: Path) -> dict[str, Any]:
    """summary.json of the run, empty if there is none that can be read."""
    try:
        content = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and "density" in content else {}


def _metadata(base: str, model_type: str, summary: dict[str, Any], name: str) -> ModelCardData:
    data = str(summary.get("settings", {}).get("data", ""))
    is_on_hub = bool(_HUB_NAME.fullmatch(base)) and not Path(base).exists()
    results = {
        "held_out_loss": ("Held-out loss, nats per token", summary.get("sparse_ce")),
        "density": ("Open attention edges, share", summary.get("density")),
    }
    return ModelCardData(
        base_model=base if is_on_hub or base == "gpt2" else None,
        base_model_relation="finetune" if is_on_hub or base == "gpt2" else None,
        library_name="edgewise",
        license=_licence_of(base),
        pipeline_tag="text-generation",
        tags=[*TAGS, model_type],
        datasets=[data] if _HUB_NAME.fullmatch(data) and not Path(data).exists() else None,
        model_name=name if summary else None,
        eval_results=[
            EvalResult(
                task_type="text-generation",
                dataset_type="text",
                dataset_name=data or "held-out text",
                metric_type=metric,
                metric_name=label,
                metric_value=value,
            )
            for metric, (label, value) in results.items()
            if value is not None
        ]
        or None,
        ignore_metadata_errors=True,
    )


def _licence_of(base: str) -> str | None:
    """The licence in the base model's card: in its folder, on the hub, or None if nothing says it."""
    if (model := embedded(base)) is not None:
        return model.license
    card = Path(base) / CARD
    try:
        if card.is_file():
            return ModelCard(card.read_text(encoding="utf-8")).data.get("license")
        return ModelCard.load(base).data.get("license") if hub_is_reachable() else None
    except Exception:  # no card, no such repository, no network: then the card says so
        return None


def _abstract(base: str, architecture: str, summary: dict[str, Any]) -> str:
    outcome = (
        f"It keeps {summary['density']:.2%} of the attention edges at {summary['delta_ce']:+.4f} nats per token of held-out "
        "text."
        if summary
        else "It has not been post-trained by `edgewise sparsify`, or its figures are not known."
    )
    return (
        f"`{base}` ({architecture}) post-trained with gated attention: most attention edges are closed, so circuits, "
        f"attention maps and single predictions can be read. {outcome}"
    )


def _figures(summary: dict[str, Any], folder: Path) -> str:
    if not summary:
        return ""
    context = summary.get("settings", {}).get("context")
    heads = f"{summary['heads_closed']} of {summary['heads']}"
    rows = [
        ("attention edges", "100%", f"{summary['density']:.2%}"),
        (
            "edges per query and head",
            f"{(context + 1) / 2:g}" if context else "",
            f"{summary['edges_per_query']:.2f}",
        ),
        ("held-out loss, nats per token", f"{summary['dense_ce']:.4f}", f"{summary['sparse_ce']:.4f}"),
        ("loss against dense", "", f"{summary['delta_ce']:+.4f}"),
        (
            "KL from dense, nats per token",
            "",
            f"{summary['kl']:.4f}" if summary.get("kl") is not None else "",
        ),
        ("heads without an open edge", "0", heads),
    ]
    lines = [f"| {label} | {dense} | {sparse} |" for label, dense, sparse in rows if sparse]
    table = "\n".join(["| | dense | sparse twin |", "|---|---|---|", *lines])
    picture = (
        f"\n\n![Density, penalty and held-out loss over the run]({PICTURE})"
        if (folder / PICTURE).is_file()
        else ""
    )
    return table + picture


def _loading(name: str) -> str:
    quoted = json.dumps(name)  # in double quotes, as formatters leave them
    return (
        f"```\npip install edgewise\n```\n\n```python\nimport edgewise\n\ntwin = edgewise.load({quoted})\n"
        f"tokenizer = edgewise.load_tokenizer({quoted})\n```\n\nAfter `import edgewise`, "
        f"`AutoModelForCausalLM.from_pretrained({name!r})` and `pipeline` open it too, with its gates. Without edgewise "
        "transformers refuses it: read without gates it would be another model."
    )


def _training(summary: dict[str, Any]) -> str:
    settings, versions = summary.get("settings", {}), summary.get("versions", {})
    rows = [
        ("recipe", summary.get("recipe")),
        ("started from the twin", settings.get("start_from")),
        ("data", settings.get("data")),
        ("tokens", f"{summary['tokens']:,}" if summary.get("tokens") else None),
        ("context, batch", _joined(settings.get("context"), settings.get("batch_size"))),
        ("learning rate", settings.get("learning_rate")),
        ("LoRA rank", settings.get("lora")),
        ("heads to close, at most", settings.get("close_heads")),
        ("precision", settings.get("dtype")),
        ("tolerance, nats", summary.get("tolerance")),
        ("held within it", CONSTRAINTS.get(summary.get("constraint", ""))),
        ("seed", summary.get("seed")),
        ("seconds", summary.get("seconds")),
        ("versions", ", ".join(f"{package} {number}" for package, number in versions.items())),
    ]
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in rows if value is not None)]
    )


def _joined(context: Any, batch: Any) -> str | None:
    return None if context is None else f"{context} tokens, {batch} sequences"


def _gate(gate: GateConfig) -> str:
    sinks = "" if gate.sinks else " Edges to the first token of a text are always closed."
    null = " Closed attention mass reads a learned null value." if gate.null_value else ""
    kind = f"`{gate.kind}`, b = {gate.b:g}: {GATES[gate.kind].meaning}."
    return f"{kind}{sinks}{null} Written by edgewise {version('edgewise')}."


def _licence(base: str, licence: Any) -> str:
    if licence:
        return f"That of `{base}`: `{licence}`."
    return f"That of `{base}`; see its model card."
