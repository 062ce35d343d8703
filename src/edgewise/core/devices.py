"""Devices and precisions by name, and what differs between devices.

torch takes seconds to import, and configurations that name devices are read without it: functions import it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import psutil

from edgewise.core.errors import EdgewiseError, first_line

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES = ("auto", "float32", "bfloat16", "float16")


def device_of(device: "str | torch.device | None") -> "torch.device":
    """A device by name; "auto" is the accelerator of the machine if it has one, None the CPU."""
    import torch

    if device is None or device == "cpu":
        return torch.device("cpu")
    if device == "auto":
        return _accelerator() or torch.device("cpu")
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise EdgewiseError(
            f"`device` {device!r} is no device; give auto, cpu, cuda, cuda:1 or mps"
        ) from error
    if named.type != "cpu":
        _check_available(named)
    return named


def one_device(
    device_map: "str | int | torch.device | dict[str, Any] | None", what: str
) -> "torch.device | None":
    """The device of a `device_map`, as transformers takes it, for something that is not spread over several."""
    if device_map is None:
        return None
    if isinstance(device_map, dict):
        if device_map.keys() != {""}:
            raise EdgewiseError(
                f"{what} stays whole: give `device_map` one device, such as 'auto' or 'cuda:1'"
            )
        return one_device(device_map[""], what)
    if device_map in ("balanced", "balanced_low_0", "sequential"):
        return device_of("auto")
    return device_of(f"cuda:{device_map}" if isinstance(device_map, int) else device_map)


def only_device(model: "torch.nn.Module", what: str) -> "torch.device":
    """The device that a whole model is on. One that is spread over several is refused: `what` cannot be done there."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        raise EdgewiseError(f"{what} needs the whole model on one device: give one as `device`, such as cpu")
    return devices.pop()


def _accelerator() -> "torch.device | None":
    """The accelerator that is there. `current_accelerator` names the one that torch was built for, there or not."""
    import torch

    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _check_available(device: "torch.device") -> None:
    import torch

    present = _accelerator()
    if present is None or present.type != device.type:
        available = "only a CPU" if present is None else f"{present.type} and a CPU"
        raise EdgewiseError(f"`device` {device} is not there: this torch finds {available}; leave it at auto")
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        raise EdgewiseError(f"`device` {device} is not there: this machine has {count}, counted from 0")


def dtype_of(dtype: "str | torch.dtype | None") -> "torch.dtype | None":
    """A precision by name; None for "auto", the checkpoint's own."""
    import torch

    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise EdgewiseError(f"`dtype` must be one of {', '.join(DTYPES)}, not {dtype!r}")
    return None if dtype == "auto" else getattr(torch, dtype)


def upload(x: "torch.Tensor", device: "torch.device | str") -> "torch.Tensor":
    """A tensor on a device, copied from the CPU without waiting for what the device has still to do.

    The memory may be written again at once: a copy from memory that is not pinned is staged. Not so on MPS.
    """
    return x.to(device, non_blocking=not str(device).startswith("mps"))


def synchronize(device: "torch.device") -> None:
    """Wait until a device has done what it was given: before a clock is read."""
    import torch

    if device.type == "cpu":
        return
    try:
        torch.accelerator.synchronize(device)
    except RuntimeError as error:
        raise EdgewiseError(f"{device} failed: {first_line(error)}") from error


@contextmanager
def without_tf32() -> Iterator[None]:
    """Full float32 matrix products on a GPU inside a `with` block: TF32 has 10 bits of mantissa, too few to compare by."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, full)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextmanager
def computing_on(device: "torch.device") -> Iterator[None]:
    """Make new tensors on a device, and full float32 products there, inside a `with` block."""
    import torch

    # on a CPU tensors are made there anyway, and a default costs a call for each operation
    with nullcontext() if device.type == "cpu" else torch.device(device), without_tf32():
        yield


def free_memory(device: "torch.device") -> int:
    """Bytes that may still be allocated on a device: its own memory if it has any, else the machine's."""
    import torch

    own = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return psutil.virtual_memory().available if own is None else own(device)[0]
