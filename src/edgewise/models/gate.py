"""Make a sparse twin of a dense model: `gate`."""

from functools import partial
from typing import Any, NoReturn

from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import config_of
from edgewise.gating.config import GateConfig
from edgewise.gating.install import install
from edgewise.models.publish import push_twin
from edgewise.models.save import refuse_to_save_dense, save_twin


def gate(model: PreTrainedModel, config: GateConfig | None = None) -> PreTrainedModel:
    """Give a dense model gates, in place: an untrained twin. `save_pretrained` and `push_to_hub` then write a twin."""
    install(model, config_of(GateConfig, config))
    # on the instance, because its class belongs to transformers; deepcopy and pickle carry a partial along
    model.save_pretrained = partial(save_twin, model)  # pyright: ignore
    model.push_to_hub = partial(push_twin, model)  # pyright: ignore
    model.init_continuous_batching = refuse_continuous_batching  # pyright: ignore
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.should_save_on_this_rank = refuse_to_save_dense  # pyright: ignore
    return model


def refuse_continuous_batching(*_: Any, **__: Any) -> NoReturn:
    """Stand in for `init_continuous_batching`, which is behind `generate_batch`: its paged attention knows no gates."""
    raise EdgewiseError(
        "continuous batching runs transformers' own paged attention, which knows no gates; use `generate` with a batch"
    )
