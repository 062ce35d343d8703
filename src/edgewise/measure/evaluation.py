"""Former home of names that now stand in `forward`, `loss`, `memory` and `evaluate`."""

from collections.abc import Iterator

import torch

from edgewise.data.batch import Batch
from edgewise.measure.evaluate import evaluate_models as evaluate_models
from edgewise.measure.forward import eval_mode as evaluating
from edgewise.measure.forward import evaluation_bytes as bytes_of_measuring
from edgewise.measure.forward import forward as run_rows
from edgewise.measure.forward import run_model as run_model
from edgewise.measure.forward import sequences_per_pass as rows_at_once
from edgewise.measure.loss import Measured as Measured
from edgewise.measure.loss import cross_entropy as cross_entropy
from edgewise.measure.loss import measure as measure
from edgewise.measure.memory import activation_elements as numbers_of_row
from edgewise.models.architecture import mlp_width as width_inside_mlps
from edgewise.models.architecture import vocabulary_size as vocabulary_of


def parts(batch: Batch, rows: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
    return batch.micro_batches(rows, device)


__all__ = [
    "Measured",
    "bytes_of_measuring",
    "cross_entropy",
    "evaluate_models",
    "evaluating",
    "measure",
    "numbers_of_row",
    "parts",
    "rows_at_once",
    "run_model",
    "run_rows",
    "vocabulary_of",
    "width_inside_mlps",
]  # fmt: skip
