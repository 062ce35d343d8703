"""Held-out loss and density of the twin that would be saved, and its distance from the dense model on the same text."""

from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from edgewise.data import Batch
from edgewise.measure.loss import Measured
from edgewise.measure.reference import Reference
from edgewise.models.architecture import vocabulary_size
from edgewise.training.config import TrainerConfig
from edgewise.training.data import is_slow
from edgewise.training.distributed import measure_together
from edgewise.training.sparsify.twin import TrainedTwin
from edgewise.training.state import TrainingState


class Validator:
    """Measures both models on held-out text: the first sequences of it, or all."""

    def __init__(self, dense: PreTrainedModel, twin: TrainedTwin, held_out: Batch):
        self._dense, self._twin, self._held_out = dense, twin, held_out
        # kept hidden states would let some processes skip a layer's gathering that others wait for
        self._reference = Reference(dense, max_bytes=0) if isinstance(dense, FSDPModule) else Reference(dense)
        self.n_sequences = len(held_out.ids)
        """Sequences of a validation."""

    def choose_text(self, trainer: TrainerConfig, state: TrainingState) -> None:
        """Choose how much held-out text validations read."""
        tokens = trainer.validation_tokens // (4 if is_slow(self._dense, trainer) else 1)
        if self._twin.average is not None:  # the multiplier follows these validations
            tokens = max(
                tokens, round(trainer.validation_share * state.planned_steps * state.tokens_per_step)
            )
        n_sequences, context = self._held_out.ids.shape
        chosen = max(self._twin.accelerator.num_processes, tokens // context)
        self.n_sequences = min(chosen, n_sequences)

    def measure_twin(self, n_sequences: int | None = None) -> Measured:
        """Measure the twin that would be saved, gates deterministic, on the first held-out sequences or on all; and against
        the dense model on the same ones, because a part of the text is easier or harder than all of it."""
        with self._twin.averaged():
            return self._measure(self._twin.model, n_sequences, self._reference)

    def measure_dense(self) -> Measured:
        """Measure the dense model on all held-out text."""
        accelerator = self._twin.accelerator
        first = accelerator.process_index * len(self._held_out.ids) // accelerator.num_processes
        with self._reference.recording(first):
            return self._measure(self._dense, None)

    def _measure(
        self, model: nn.Module, n_sequences: int | None, reference: Reference | None = None
    ) -> Measured:
        batch = self._held_out.select(slice(n_sequences))
        with self._twin.autocast():
            return measure_together(
                model, batch, self._twin.accelerator, vocabulary_size(self._dense), reference
            )
