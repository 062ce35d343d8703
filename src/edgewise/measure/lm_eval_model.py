"""The model type `edgewise` of lm-evaluation-harness, which finds it by the entry point `lm_eval.models`.

    lm_eval --model edgewise --model_args pretrained=runs/gpt2-sparse --tasks arc_easy

Releases up to 0.4.13 read no entry points. For them this module is the harness's command line, with the model type added:

    python -m edgewise.measure.lm_eval_model --model edgewise --model_args pretrained=runs/gpt2-sparse --tasks arc_easy

Only the harness imports this module: lm-eval is an optional package.
"""

from typing import Any

from lm_eval.api.registry import model_registry  # pyright: ignore
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


def main() -> None:
    """The harness's own command line, in which `--model edgewise` is known whatever its release."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore  # takes seconds

    if "edgewise" not in model_registry:
        model_registry.register("edgewise", target="edgewise.measure.lm_eval_model:EdgewiseLM")
    cli_evaluate()


if __name__ == "__main__":
    main()
