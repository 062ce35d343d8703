"""The model type `edgewise` of lm-evaluation-harness, which finds it by the entry point `lm_eval.models`.

    lm_eval --model edgewise --model_args pretrained=runs/gpt2-sparse --tasks arc_easy

Only the harness imports this module: lm-eval is an optional package.
"""

from typing import Any

from lm_eval.models.huggingface import HFLM  # pyright: ignore

from edgewise.models.find import find_model
from edgewise.models.hub import HubOptions


class EdgewiseLM(HFLM):
    """The harness's own class for models of transformers, for sparse twins, dense models and embedded ones.

    Importing edgewise has registered twins with the auto classes, by which the harness loads them: with their gates.
    """

    def __init__(self, pretrained: Any, backend: Any = "causal", **kwargs: Any) -> None:
        if isinstance(pretrained, str):
            options = {key: kwargs[key] for key in ("revision", "subfolder", "token") if kwargs.get(key)}
            pretrained = find_model(pretrained, HubOptions(**options)).address
        super().__init__(pretrained=pretrained, backend="causal", **kwargs)  # pyright: ignore
