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

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, Data
from edgewise.measure.evaluation import parts, rows_at_once
from edgewise.training.config import TrainerConfig
from edgewise.training.data import is_slow
from edgewise.training.diverged import Diverged
from edgewise.training.state import TrainingState
from edgewise.training.transcoder.activations import stream_shares
from edgewise.training.transcoder.config import TranscoderConfig
from edgewise.training.transcoder.evaluation import Fit
from edgewise.training.transcoder.mixing import MixedActivations, activations
from edgewise.training.transcoder.objective import (
    THRESHOLD_RATE,
    Loss,
    Objective,
    price,
    rate_share,
)
from edgewise.training.transcoder.store import info_of, load_transcoder, sizes_of
from edgewise.training.transcoder.transcoder import Transcoder, massive_limits

_CALIBRATION_TOKENS = 8192


class StepMetrics(NamedTuple):
    """Of one step, over all processes."""

    mse: list[float]
    """Of each layer, in shares of its variance."""
    l0: list[float]
    """Active features of a token, in each layer."""


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
        micro_batch = next(parts(first_batch, rows_at_once(first_batch), accelerator.device))
        objective = Objective(transcoder, stream_shares(self.host, micro_batch).cpu())
        rate = config.rate_for(transcoder.width)
        self.learning_rates = (rate, THRESHOLD_RATE * rate)
        self.batch_size = self._batch_size(transcoder)
        processes = accelerator.num_processes
        self.batches = MixedActivations(
            self.host, data.train, self.batch_size, config.seed, accelerator.process_index, processes
        )
        thresholds = [transcoder.log_threshold]
        others = [p for p in transcoder.parameters() if p is not transcoder.log_threshold]
        groups = [{"params": others}, {"params": thresholds}]
        fused = accelerator.device.type in ("cpu", "cuda")
        optimizer = torch.optim.Adam(groups, lr=rate, fused=fused)
        self.model, self.optimizer = accelerator.prepare(objective, optimizer)
        self.state = TrainingState(self.batch_size * data.train.context)
        self._validation_tokens = 0
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
        given = None if start is None else load_transcoder(start)
        usual = config.features_for(*sizes_of(self.host)) if given is None else given.features
        info = info_of(self.host, name, config.features or usual)
        if given is not None:
            info = replace(info, massive=given.config.massive)
        transcoder = Transcoder(info, config.seed)
        if given is None:
            calibrate(transcoder, *activations(self.host, batch))
            return transcoder
        try:
            transcoder.load_state_dict(given.state_dict())
        except RuntimeError as error:
            raise EdgewiseError(
                f"{start} has {given.layers} layers of {given.features} features and width {given.width}; "
                f"a start for this run must have {info.layers} of {info.features} and width {info.width}"
            ) from error
        return transcoder

    def _batch_size(self, transcoder: Transcoder) -> int:
        """Sequences to a step: the config's, or about half as many tokens as a layer has features."""
        context, processes = self.data.train.context, self.accelerator.num_processes
        usual = max(1, round(transcoder.features / 2 / context / processes)) * processes
        batch_size = self.config.batch_size or usual
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
        x, y = self.batches.take()
        ramped = self.config.start_from is None
        loss: Loss = self.model(x, y, price(self.state.step, planned_steps, self.config.l0, ramped))
        self.accelerator.backward(loss.total)
        return loss

    def forward_backward(self) -> Tensor:  # -> [2 L]
        loss = self._backward(self.state.planned_steps)
        return torch.cat([loss.mse, loss.l0])

    def update(self, sums: Tensor) -> StepMetrics:  # [2 L]
        means = sums / self.accelerator.num_processes
        layers = self.transcoder.layers
        metrics = StepMetrics(means[:layers].tolist(), means[layers:].tolist())
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        if not math.isfinite(sum(metrics.mse)) or (norm is not None and not math.isfinite(float(norm))):
            raise Diverged("the loss or its gradient is not a number", self)
        share = rate_share(self.state.step, self.state.planned_steps)
        for group, highest in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = highest * share
        self.optimizer.step()
        self.optimizer.zero_grad()
        return metrics

    def measure_step(self) -> float:
        """Seconds of a step, with its share of running the model. Nothing of the run changes."""
        seconds = []
        with self._rewinding_batches():
            for _ in range(5):
                began = time.monotonic()
                self._backward(max(1, self.state.planned_steps))
                seconds.append(time.monotonic() - began)
        self.optimizer.zero_grad()
        fastest = min(seconds[1:])  # whatever else the machine does can only slow one down
        with_model = fastest + max(0.0, seconds[0] - fastest) / self.batches.mixed
        times: Tensor = self.accelerator.gather(torch.tensor([with_model], device=self.accelerator.device))  # pyright: ignore
        return times.max().item()

    @contextmanager
    def _rewinding_batches(self) -> Iterator[None]:
        """Inside a `with` block, batches begin with a new mixture; afterwards they are where they were."""
        state = copy.deepcopy(self.batches.state_dict())
        self.batches.load_state_dict({**state, "step": 0})
        try:
            yield
        finally:
            self.batches.load_state_dict(state)

    # ------------------------------------------------------------------------------------------------ validation

    def choose_validation_text(self, trainer: TrainerConfig) -> None:
        """Decide on how much held-out text validations are measured."""
        self._validation_tokens = trainer.validation_tokens // (4 if is_slow(self.host, trainer) else 1)

    def validate(self) -> dict[str, Any]:
        """Explained variance and active features of each layer on held-out text, which is run through the model once."""
        if self._validation_activations is None:
            held_out = self.data.held_out
            n_sequences = max(1, self._validation_tokens // held_out.ids.shape[1])
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

    def logged(self, metrics: StepMetrics) -> dict[str, Any]:
        """A step's line of the log."""
        return {"mse": sum(metrics.mse), "l0": sum(metrics.l0) / len(metrics.l0)}

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
    """Set the scales and the decoder's bias from activations on training text, and the limits of massive outputs."""
    limits = massive_limits(y)
    ordinary = (torch.linalg.vector_norm(y, dim=2) <= limits[:, None]).to(y)[..., None]  # [L, n, 1]
    if not ordinary.all():
        transcoder.config = replace(transcoder.config, massive=limits.tolist())
    count = ordinary.sum(1)
    mean = (y * ordinary).sum(1) / count
    spread = ((y - mean[:, None]).square().mean(2, keepdim=True) * ordinary).sum((1, 2)) / count[:, 0]
    spread = spread.sqrt().clamp_min(1e-12)
    norm = torch.linalg.vector_norm(x, dim=2).mean(1).clamp_min(1e-12)
    transcoder.input_scale.copy_(math.sqrt(transcoder.width) / norm)
    transcoder.output_scale.copy_(spread)
    transcoder.decoder_bias.copy_(mean / spread[:, None])
