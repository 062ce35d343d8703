"""The heads to show: those of a task's circuit, or those given by name."""

import re
from typing import NamedTuple

from edgewise.circuits.result import CircuitResult
from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import shortened
from edgewise.models.loaded import LoadedModels


class HeadSelection(NamedTuple):
    """Heads of one model, as L5H1 and so on, in the order in which they are shown."""

    heads: list[str]
    explained: float | None = None
    """Share of the task's effect that a circuit's heads explain."""
    note: str = ""
    """Why there are none."""


def parse_heads(text: str, loaded: LoadedModels) -> list[str]:
    """Parse "L5H1,L0H0" or "all" into heads that all of the models have, each once, in the order given."""
    configs = [model.config.get_text_config() for model in loaded.models]
    n_layers = min(config.num_hidden_layers for config in configs)
    n_heads = min(config.num_attention_heads for config in configs)
    if text == "all":
        return [f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads)]
    heads: dict[str, None] = {}
    for name in text.replace(",", " ").split():
        match = re.fullmatch(r"L(\d{1,9})H(\d{1,9})", name.upper())
        if not match:
            raise EdgewiseError(f"{shortened(name)} names no head; give `heads` as L5H1,L0H0, or all")
        layer, head = map(int, match.groups())
        if layer >= n_layers or head >= n_heads:
            last = f"L{n_layers - 1}H{n_heads - 1}"
            raise EdgewiseError(f"there is no head {name}: heads go from L0H0 to {last}")
        heads[f"L{layer}H{head}"] = None
    if not heads:
        raise EdgewiseError("name at least one head in `heads`: L5H1,L0H0, or all")
    return list(heads)


def select_circuit_heads(circuit: CircuitResult, names: tuple[str, ...], index: int) -> HeadSelection:
    """The heads of a model's circuit, the most important first; `names`: of all models that are shown."""
    name, by_name = names[index], {model.model: model for model in circuit.models}
    if name not in by_name:
        raise EdgewiseError(
            f"the circuit is of {' and '.join(by_name)}, not of {name}; search again without `circuit`"
        )
    same_models = [model.model for model in circuit.models] == [*names]  # two loaded models may share a name
    heads = (circuit.models[index] if same_models else by_name[name]).heads
    if heads is None:
        note = f"{name} does not show {circuit.task}, so it has no circuit and no heads to show"
        return HeadSelection([], None, note)
    return HeadSelection(heads.best.components, heads.best.explained.held_out)
