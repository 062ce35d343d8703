"""A transcoder's training: model, transcoder, optimizer, activations; what a step updates, what a validation measures, what
a snapshot holds. The loop is `training/trainer.py`."""

import copy
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import psutil
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.devices import synchronize
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, Data
from edgewise.training.budget import Costs
from edgewise.training.config import TrainerConfig
from edgewise.training.data import is_slow
from edgewise.training.distributed import clip_gradients
from edgewise.training.diverged import Diverged
from edgewise.training.state import TrainingState
from edgewise.training.transcoder.activations import error_costs
from edgewise.training.transcoder.config import TranscoderConfig
from edgewise.training.transcoder.evaluation import Fit
from edgewise.training.transcoder.objective import (
    THRESHOLD_LR_RATIO,
    Loss,
    TranscoderObjective,
    l0_coefficient,
    learning_rate_factor,
)
from edgewise.training.transcoder.shuffle import ShuffledActivations, activations
from edgewise.training.transcoder.store import info_of, load_transcoder, sizes_of
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo, massive_limits

_CALIBRATION_TOKENS = 8192
_EVALUATION_PASSES = 3.0
"""Time of the evaluation at the end, in forward passes without logits over the same text: two passes with logits."""


class TranscoderMetrics(NamedTuple):
    """Of one step, over all processes."""

    mse: list[float]
    """Fraction of variance unexplained, per layer."""
    l0: list[float]
    """Active features per token, in each layer."""


class TranscoderRun:
    """All that a training needs, and nothing of how it is shown."""

    predicts_pace, changes_pace = True, False

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        data: Data,
        config: TranscoderConfig,
        accelerator: Accelerator,
    ):
        self.config, self.data, self.accelerator = config, data, accelerator
        self.host = model.to(accelerator.device).eval()  # pyright: ignore
        first_batch = self._first_batch()
        transcoder = self._first_transcoder(name, first_batch)
        costs = error_costs(self.host, transcoder, first_batch, config.seed)
        objective = TranscoderObjective(transcoder, costs)
        rate = config.rate_for(transcoder.width)
        self.learning_rates = (rate, THRESHOLD_LR_RATIO * rate)
        self.batch_size = self._batch_size(transcoder)
        processes = accelerator.num_processes
        self.batches = ShuffledActivations(
            self.host,
            data.train,
            self.batch_size,
            config.seed,
            index=accelerator.process_index,
            processes=processes,
        )
        thresholds = [transcoder.log_threshold]
        others = [p for p in transcoder.parameters() if p is not transcoder.log_threshold]
        groups = [{"params": others}, {"params": thresholds}]
        fused = accelerator.device.type in ("cpu", "cuda")
        optimizer = torch.optim.Adam(groups, lr=rate, fused=fused)
        self.model, self.optimizer = accelerator.prepare(objective, optimizer)
        self.state = TrainingState(self.batch_size * data.train.context)
        self.validation_tokens = 0
        self._validation_activations: tuple[Tensor, Tensor] | None = None  # [L, n, D], [L, n, D]

    def _first_batch(self) -> Batch:
        """The first sequences, which will be read again in training."""
        stream = self.data.train
        state = copy.deepcopy(stream.state_dict())
        batch = stream.take(max(1, _CALIBRATION_TOKENS // stream.context))
        stream.load_state_dict(state)
        return batch

    def _first_transcoder(self, name: str, batch: Batch) -> Transcoder:
        """A new transcoder calibrated by a batch, or the one that the config says to start from."""
        config, start = self.config, self.config.start_from
        initial = None if start is None else load_transcoder(start)
        default = config.features_for(*sizes_of(self.host)) if initial is None else initial.features
        decoders = config.decoders if initial is None else initial.config.decoders
        info = info_of(self.host, name, config.features or default, decoders)
        if initial is not None:
            info = replace(info, massive=initial.config.massive)
        check_memory(info)
        transcoder = Transcoder(info, config.seed)
        if initial is None:
            calibrate(transcoder, *activations(self.host, batch))
            return transcoder
        try:
            transcoder.load_state_dict(initial.state_dict())
        except RuntimeError as error:
            raise EdgewiseError(
                f"{start} has {initial.layers} layers of {initial.features} features and width {initial.width}; "
                f"a start for this run must have {info.layers} of {info.features} and width {info.width}"
            ) from error
        return transcoder

    def _batch_size(self, transcoder: Transcoder) -> int:
        """Sequences to a step: the config's, or about half as many tokens as a layer has features."""
        context, processes = self.data.train.context, self.accelerator.num_processes
        default = max(1, round(transcoder.features / 2 / context / processes)) * processes
        batch_size = self.config.batch_size or default
        if batch_size % processes:
            raise EdgewiseError(
                f"`batch_size={batch_size}` cannot be split evenly over {processes} processes"
            )
        return batch_size

    @property
    def transcoder(self) -> Transcoder:
        """Inside what distributed training wraps around it."""
        return self.accelerator.unwrap_model(self.model).transcoder

    # ------------------------------------------------------------------------------------------------------ a step

    def _backward(self, planned_steps: int) -> Loss:
        x, y = self.batches.next()
        ramped = self.config.start_from is None
        coefficient = l0_coefficient(self.state.step, planned_steps, self.config.l0, ramped)
        loss: Loss = self.model(x, y, coefficient)
        self.accelerator.backward(loss.total)
        return loss

    def forward_backward(self) -> Tensor:  # -> [2 L + 1]: metrics of the layers, norm of the gradients
        loss = self._backward(self.state.planned_steps)
        norm = clip_gradients(self.accelerator, self.model)
        return torch.cat([loss.mse, loss.l0, norm.to(loss.mse)[None]])

    def update(self, sums: Tensor) -> TranscoderMetrics:  # [2 L + 1]
        means = sums / self.accelerator.num_processes
        layers = self.transcoder.layers
        metrics = TranscoderMetrics(means[:layers].tolist(), means[layers:-1].tolist())
        if not math.isfinite(sum(metrics.mse) + means[-1].item()):
            raise Diverged("the loss or its gradient is not a number", self)
        factor = learning_rate_factor(self.state.step, self.state.planned_steps)
        for group, peak in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        return metrics

    def measure_times(self) -> Costs:
        """Time of a step, with its share of the model's forward passes, and of the evaluation at the end. The run's state is
        unchanged."""
        seconds = []
        with self._rewinding_batches():
            for _ in range(5):
                began = time.monotonic()
                self._backward(max(1, self.state.planned_steps))
                synchronize(self.accelerator.device)
                seconds.append(time.monotonic() - began)
        self.optimizer.zero_grad()
        fastest = min(seconds[1:])  # other processes can only slow a step down
        refill, buffer_steps = max(0.0, seconds[0] - fastest), self.batches.buffer_steps
        per_token = refill * self.accelerator.num_processes / (buffer_steps * self.state.tokens_per_step)
        final = _EVALUATION_PASSES * per_token * self.data.held_out.ids.numel()
        return Costs(fastest + refill / buffer_steps, validation=fastest, final=final)

    @contextmanager
    def _rewinding_batches(self) -> Iterator[None]:
        """Refill the shuffle buffer inside a `with` block; afterwards batches go on where they were."""
        state = copy.deepcopy(self.batches.state_dict())
        self.batches.load_state_dict({**state, "step": 0})
        try:
            yield
        finally:
            self.batches.load_state_dict(state)

    # ------------------------------------------------------------------------------------------------ validation

    def choose_validation_text(self, trainer: TrainerConfig) -> None:
        """Decide how much held-out text validations read."""
        self.validation_tokens = trainer.validation_tokens // (4 if is_slow(self.host, trainer) else 1)

    def validate(self) -> dict[str, Any]:
        """Explained variance and active features of each layer on held-out text, which is run through the model once."""
        if self._validation_activations is None:
            held_out = self.data.held_out
            n_sequences = max(1, self.validation_tokens // held_out.ids.shape[1])
            self._validation_activations = activations(self.host, held_out.select(slice(n_sequences)))
        fit = Fit(self.transcoder)
        fit.add(*self._validation_activations)
        explained = fit.explained_variance.tolist()
        if not math.isfinite(sum(explained)):
            raise Diverged("the explained variance of held-out text is not a number", self)
        return {
            "explained_variance": explained,
            "held_out_l0": fit.l0.tolist(),
            "dead": fit.dead.tolist(),
        }

    # ------------------------------------------------------------------------------------------ log and snapshots

    def logged(self, metrics: TranscoderMetrics) -> dict[str, Any]:
        """A step's line of the log."""
        rate = self.optimizer.param_groups[0]["lr"]
        return {"mse": sum(metrics.mse), "l0": sum(metrics.l0) / len(metrics.l0), "learning_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.state_dict(),
            "data": {"name": self.data.train.name, "state": self.batches.state_dict()},
            "transcoder": asdict(self.transcoder.config),
            "config": json.loads(json.dumps(asdict(self.config), default=str)),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state.load_state_dict(saved["state"])
        self.batches.load_state_dict(saved["data"]["state"])


@torch.no_grad()
def calibrate(transcoder: Transcoder, x: Tensor, y: Tensor) -> None:  # [L, n, D], [L, n, D]
    """Set scales, the decoder's bias and the limits of massive outputs from activations on training text."""
    limits = massive_limits(y)
    ordinary = (torch.linalg.vector_norm(y, dim=2) <= limits[:, None]).to(y)[..., None]  # [L, n, 1]
    if not ordinary.all():
        transcoder.config = replace(transcoder.config, massive=limits.tolist())
    count = ordinary.sum(1)
    mean = (y * ordinary).sum(1) / count
    variance = ((y - mean[:, None]).square().mean(2, keepdim=True) * ordinary).sum((1, 2)) / count[:, 0]
    scale = variance.sqrt().clamp_min(1e-12)
    norm = torch.linalg.vector_norm(x, dim=2).mean(1).clamp_min(1e-12)
    transcoder.input_scale.copy_(math.sqrt(transcoder.width) / norm)
    transcoder.output_scale.copy_(scale)
    transcoder.decoder_bias.copy_(mean / scale[:, None])


def check_memory(info: TranscoderInfo) -> None:
    """Refuse more features than weights, gradients and Adam's moments have memory for."""
    matrices = info.n_decoders + info.layers
    needed, memory = 16 * matrices * info.features * info.width, psutil.virtual_memory().total
    if needed > memory:
        raise EdgewiseError(
            f"`features={info.features}` need {needed / 2**30:,.0f} GB to be trained, and there are {memory / 2**30:,.0f}; "
            "give fewer"
        )
