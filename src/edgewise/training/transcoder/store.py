"""Save and load transcoders (transcoder.safetensors and config.json), and check that one belongs to a model."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import exists, is_folder, write_atomically, write_json
from edgewise.core.schema import read_as, read_json
from edgewise.gating.edge_gate import gate_config, gates_of
from edgewise.models.architecture import decoder_layers
from edgewise.training.transcoder.config import Decoders
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

FORMAT = 1
KINDS = [f"{decoders} transcoder" for decoders in get_args(Decoders)]
WEIGHTS, CONFIG = "transcoder.safetensors", "config.json"
_SAMPLE = 1 << 16  # of each parameter, so that large models are known as quickly as small ones
_TOLERANCE = 0.01  # bfloat16 moves a projection by about 0.001, a light fine-tuning by more than 0.01


def save_transcoder(
    transcoder: Transcoder, folder: str | Path, dtype: Literal["float32", "float16"] = "float32"
) -> Path:
    """Write a transcoder. The config is written last: no config, no transcoder."""
    folder = Path(folder)
    if exists(folder) and not folder.is_dir():
        raise EdgewiseError(f"{folder} is a file; give a folder to save to")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    full_precision = ("input_scale", "output_scale")  # a handful of numbers, of any magnitude
    numbers = getattr(torch, dtype)
    state = {
        name: tensor.detach().cpu().to(torch.float32 if name in full_precision else numbers).contiguous()
        for name, tensor in transcoder.state_dict().items()
    }
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise EdgewiseError(f"the transcoder holds numbers that are not finite in {dtype}; it was not saved")
    write_atomically(folder / WEIGHTS, lambda new: save_file(state, new))
    config = {
        "format": FORMAT,
        "kind": f"{transcoder.config.decoders} transcoder",
        **asdict(transcoder.config),
    }
    write_json(folder / CONFIG, config, indent=2)
    return folder


def load_transcoder(folder: str | Path, model: nn.Module | None = None) -> Transcoder:
    """Read a transcoder, on the model's device if there is one. One that was trained on another model is refused."""
    folder = Path(folder)
    info = read_info(folder)
    if model is not None:
        check_belongs(folder, info, model)
    _check_size(folder, info)
    transcoder = Transcoder(info)
    try:
        state = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    except (SafetensorError, OSError) as error:
        raise EdgewiseError(f"{folder}: {WEIGHTS} is truncated or damaged; copy or train it again") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in transcoder.state_dict().items()}
    if wanted != {name: tuple(tensor.shape) for name, tensor in state.items()}:
        raise EdgewiseError(f"{folder}: {WEIGHTS} has other sizes than {CONFIG} says; the folder is damaged")
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise EdgewiseError(f"{folder}: {WEIGHTS} holds numbers that are not finite; the folder is damaged")
    transcoder.load_state_dict(state)
    if model is not None:
        transcoder.to(next(model.parameters()).device)
    return transcoder.eval()


def _check_size(folder: Path, info: TranscoderInfo) -> None:
    """Refuse a file that is missing, or too small for the sizes, before memory is allocated for them."""
    decoders = info.n_decoders * info.features * info.width
    if not (folder / WEIGHTS).is_file():  # a pipe would be waited for
        raise EdgewiseError(f"{folder}: {WEIGHTS} is missing; copy or train it again")
    if (folder / WEIGHTS).stat().st_size < 2 * decoders:
        raise EdgewiseError(
            f"{folder}: {WEIGHTS} is truncated or damaged, or has other sizes than {CONFIG} says; copy or train it again"
        )


def read_info(folder: Path) -> TranscoderInfo:
    """What config.json says."""
    path = folder / CONFIG
    if not is_folder(folder) or not path.exists():
        raise EdgewiseError(f"{str(folder)[:200]} holds no transcoder: there is no {CONFIG}")
    try:
        config = read_json(path, "transcoder")
    except EdgewiseError as error:
        raise EdgewiseError(f"{folder}: {CONFIG} cannot be read ({first_line(error)})") from error
    if not isinstance(config, dict) or config.get("kind") not in KINDS:
        raise EdgewiseError(f"{folder} holds no transcoder, but something else with a {CONFIG}")
    if config.get("format") != FORMAT:
        raise EdgewiseError(
            f"{folder} was written by a newer edgewise (format {config.get('format')}); upgrade with pip"
        )
    try:
        info: TranscoderInfo = read_as(TranscoderInfo, path, "transcoder")
        if min(info.layers, info.features, info.width) < 1:
            raise EdgewiseError("sizes below 1")
    except EdgewiseError as error:
        raise EdgewiseError(
            f"{folder}: {CONFIG} describes no transcoder ({first_line(error)}); the folder is damaged"
        ) from error
    return info


# ------------------------------------------------------------------------------------------------ its model


def info_of(model: nn.Module, name: str, features: int, decoders: Decoders = "cross-layer") -> TranscoderInfo:
    """A new transcoder's config, for a model."""
    layers, width = sizes_of(model)
    return TranscoderInfo(name, is_gated(model), fingerprint(model), layers, features, width, decoders)


def sizes_of(model: nn.Module) -> tuple[int, int]:
    """L and D."""
    base: Any = model
    return len(decoder_layers(model)), base.config.get_text_config().hidden_size


def is_gated(model: nn.Module) -> bool:
    """Whether its gates close edges; a twin that is told to be dense is another model."""
    return gate_config(model) is not None and any(gate.mode != "dense" for gate in gates_of(model))


def fingerprint(model: nn.Module) -> list[float]:
    """The projection of each parameter onto a fixed direction, in shares of its norm.

    Rounding to bfloat16 hardly moves it. Training does: unlike a norm it sees changes in every direction.
    """
    return [_projection(parameter) for parameter in model.parameters()]


def _projection(parameter: Tensor) -> float:
    sample = parameter.detach().flatten()[:_SAMPLE].cpu().double()
    norm = sample.norm()
    direction = torch.cos(torch.arange(1, len(sample) + 1, dtype=torch.float64).square())
    return (sample @ direction / norm).item() if norm else 0.0


def check_belongs(folder: Path, info: TranscoderInfo, model: nn.Module) -> None:
    """Refuse a transcoder of another model."""
    layers, width = sizes_of(model)
    if (layers, width) != (info.layers, info.width):
        raise EdgewiseError(
            f"{folder} was trained on {info.model}, with {info.layers} layers of width {info.width}; this model has "
            f"{layers} of width {width}"
        )
    if info.gated != is_gated(model):
        ours, theirs = ("sparse", "dense") if is_gated(model) else ("dense", "sparse")
        raise EdgewiseError(f"{folder} was trained on a {theirs} model, {info.model}; this one is {ours}")
    ours = fingerprint(model)
    same = len(ours) == len(info.fingerprint)
    if not same or max(abs(a - b) for a, b in zip(ours, info.fingerprint, strict=True)) > _TOLERANCE:
        raise EdgewiseError(
            f"{folder} was trained on {info.model}, whose weights are not those of this model"
        )
