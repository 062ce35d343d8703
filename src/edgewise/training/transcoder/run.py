"""A training run's parts: model, transcoder, optimizer, tokens; one step of it, a check, a snapshot."""

import copy
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, Data
from edgewise.measure.evaluation import parts, rows_at_once
from edgewise.training import snapshot
from edgewise.training.diverged import Diverged
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

_CALIBRATION = 8192  # tokens by which the scales are set


class StepLog(NamedTuple):
    """What one step saw, over all processes."""

    mse: list[float]  # of each layer
    l0: list[float]
    flags: tuple[float, ...]
    """Whatever the processes had to tell each other, added up."""


class TranscoderRun:
    """All that a run needs, and nothing of how it is shown."""

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
        state = copy.deepcopy(data.train.state_dict())
        first_rows = data.train.take(max(1, _CALIBRATION // data.train.context))
        data.train.load_state_dict(state)  # they will be read again in training
        transcoder = self._first_transcoder(name, first_rows)
        shares = stream_shares(
            self.host, next(parts(first_rows, rows_at_once(first_rows), accelerator.device))
        )
        rate = config.rate_for(transcoder.width)
        self.rates = (rate, THRESHOLD_RATE * rate)
        context, processes = data.train.context, accelerator.num_processes
        usual = max(1, round(transcoder.features / 2 / context / processes)) * processes
        self.batch_size = config.batch_size or usual
        if self.batch_size % processes:
            raise EdgewiseError(
                f"--batch-size {self.batch_size} cannot be split evenly over {processes} processes"
            )
        self.tokens_of_training = MixedActivations(
            self.host, data.train, self.batch_size, config.seed, accelerator.process_index, processes
        )
        thresholds = [transcoder.log_threshold]
        others = [p for p in transcoder.parameters() if p is not transcoder.log_threshold]
        groups = [{"params": others}, {"params": thresholds}]
        optimizer = torch.optim.Adam(groups, lr=rate, fused=_can_fuse(accelerator))
        self.model, self.optimizer = accelerator.prepare(Objective(transcoder, shares.cpu()), optimizer)
        self.step_number = self.steps = 0
        self.seconds = 0.0
        self.saved_step: int | None = None
        self._checked_on: tuple[Tensor, Tensor] | None = None

    def _first_transcoder(self, name: str, first_rows: Batch) -> Transcoder:
        config, start = self.config, self.config.start_from
        given = None if start is None else load_transcoder(start)
        usual = config.features_for(*sizes_of(self.host)) if given is None else given.features
        info = info_of(self.host, name, config.features or usual)
        if given is not None:
            info = replace(info, massive=given.config.massive)
        transcoder = Transcoder(info, config.seed)
        if given is None:
            calibrate(transcoder, *activations(self.host, first_rows))
            return transcoder
        try:
            transcoder.load_state_dict(given.state_dict())
        except RuntimeError as error:
            raise EdgewiseError(
                f"{start} has {given.layers} layers of {given.features} features and width {given.width}; "
                f"a start for this run must have {info.layers} of {info.features} and width {info.width}"
            ) from error
        return transcoder

    @property
    def transcoder(self) -> Transcoder:
        """Inside what distributed training wraps around it."""
        return self.accelerator.unwrap_model(self.model).transcoder

    @property
    def tokens(self) -> int:
        return self.step_number * self.tokens_per_step

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.data.train.context

    # ------------------------------------------------------------------------------------------------------ a step

    def compute_gradients(self) -> Loss:
        x, y = self.tokens_of_training.take()
        l0 = price(self.step_number, self.steps, self.config.l0, ramped=self.config.start_from is None)
        loss: Loss = self.model(x, y, l0)
        self.accelerator.backward(loss.total)
        return loss

    def step(self, flags: tuple[float, ...] = ()) -> StepLog:
        """One update. `flags` are added up over the processes on the way."""
        began = time.monotonic()
        share = rate_share(self.step_number, self.steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        loss = self.compute_gradients()
        told = torch.cat([loss.mse, loss.l0, torch.tensor(flags, device=loss.mse.device)])
        summed: Tensor = self.accelerator.reduce(told, "sum")  # pyright: ignore
        count, layers = self.accelerator.num_processes, self.transcoder.layers
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        mse, l0 = ((part / count).tolist() for part in summed[: 2 * layers].split(layers))
        if not math.isfinite(sum(mse)) or (norm is not None and not math.isfinite(float(norm))):
            raise Diverged("the loss or its gradient is not a number", self)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1
        self.seconds += time.monotonic() - began
        return StepLog(mse, l0, tuple(summed[2 * layers :].tolist()))

    def measure_step(self) -> float:
        """Seconds of a step, with its share of running the model. Nothing of the run changes."""
        state, steps = copy.deepcopy(self.tokens_of_training.state_dict()), self.steps
        self.steps = max(1, steps)
        self.tokens_of_training.load_state_dict({**state, "step": 0})
        seconds = []
        for _ in range(5):
            began = time.monotonic()
            self.compute_gradients()
            seconds.append(time.monotonic() - began)
        self.optimizer.zero_grad()
        self.tokens_of_training.load_state_dict(state)
        self.steps = steps
        fastest = min(seconds[1:])  # whatever else the machine does can only slow one down
        mine = torch.tensor(
            [fastest + max(0.0, seconds[0] - fastest) / self.tokens_of_training.mixed],
            device=self.accelerator.device,
        )
        slowest: Tensor = self.accelerator.gather(mine)  # pyright: ignore
        return slowest.max().item()

    # ------------------------------------------------------------------------------------------------ a check

    def check(self, tokens: int) -> Fit:
        """Explained variance and active features on some held-out tokens, which are run through the model once."""
        if self._checked_on is None:
            rows = max(1, tokens // self.data.held_out.ids.shape[1])
            some = self.data.held_out.select(slice(rows))
            self._checked_on = activations(self.host, some)
        fit = Fit(self.transcoder)
        fit.add(*self._checked_on)
        return fit

    # ------------------------------------------------------------------------------------------------- snapshots

    @property
    def snapshot_folder(self) -> Path:
        return self.config.out / "snapshots"

    def position(self) -> dict[str, Any]:
        """All that is not a weight, as JSON."""
        return {
            "step": self.step_number,
            "steps": self.steps,
            "seconds": self.seconds,
            "data": {"name": self.data.train.name, "state": self.tokens_of_training.state_dict()},
            "transcoder": asdict(self.transcoder.config),
            "config": json.loads(json.dumps(asdict(self.config), default=str)),
        }

    def save_snapshot(self) -> None:
        """Write the whole state, once for each step."""
        if self.saved_step != self.step_number:
            snapshot.write(self.accelerator, self.snapshot_folder, self.step_number, self.position())
            self.saved_step = self.step_number

    def restore(self, folder: Path, position: dict[str, Any]) -> None:
        """Become what a snapshot says."""
        self.accelerator.load_state(str(folder))
        self.tokens_of_training.load_state_dict(position["data"]["state"])
        self.step_number, self.steps = position["step"], position["steps"]
        self.saved_step = self.step_number
        self.seconds = position["seconds"]


@torch.no_grad()
def calibrate(transcoder: Transcoder, x: Tensor, y: Tensor) -> None:  # [L, n, D], [L, n, D]
    """Set the scales and the decoder's bias by some training text, and what is too large to be explained."""
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


def _can_fuse(accelerator: Accelerator) -> bool:
    return accelerator.device.type in ("cpu", "cuda")
