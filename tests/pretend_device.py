"""A pretended accelerator: real numbers, computed on the CPU, under the rules of a device.

Inside `PretendDevice()` the device "pretend" exists. Its tensors are CPU tensors in a wrapper, and a dispatch mode sees
every operation on them: a float64 tensor there fails (MPS has none), an operation on tensors of both devices fails, and each
operation for which the host would have to wait is counted, with the line it comes from.
"""

import sys
import traceback
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
aten: Any = torch.ops.aten

WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2",
    "unique_consecutive", "histc", "bincount",
}  # fmt: skip
"""Operations whose result, or its shape, the host has to know."""
COPIES = {"_to_copy", "copy_", "_copy_from"}
CPU_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that take indices on the CPU."""


class _Module(backend_registration._DummyBackendModule):
    """`torch.pretend`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    in_use = False

    def is_available(self) -> bool:
        return self.in_use


class _Hook(backend_registration._DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


class PretendTensor(Tensor):
    """A tensor that says it is on the pretended device."""

    inner: Tensor  # pyright: ignore

    @staticmethod
    def __new__(cls, inner: Tensor) -> "PretendTensor":
        # For autograd's engine it is a CPU tensor: the engine has no queue for a device that is not there.
        made = Tensor._make_wrapper_subclass(  # pyright: ignore
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="cpu", requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore
        return torch.device(NAME, 0)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a tensor of the pretended device was used outside of it")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and type(args[0]) is Tensor and isinstance(args[1], cls):
            return args[0].to(NAME, args[1].dtype)  # as the other: of that one, C++ would see the CPU
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # pyright: ignore
        device, dtype, *_ = torch._C._nn._parse_to(*_without_copy(args), **_without(kwargs, "copy"))  # pyright: ignore
        if isinstance(args[0] if args else None, Tensor):
            device, dtype = args[0].device, args[0].dtype
        if device is None or device.type == NAME:
            return self if dtype in (None, self.dtype) else super().to(dtype)
        return aten._to_copy(self, device=device, dtype=dtype)

    def cpu(self, *args: Any) -> Tensor:  # pyright: ignore
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert a tensor of the pretended device to numpy; use .cpu() first")

    __array__ = numpy

    def untyped_storage(self) -> Any:  # for savers, which look for tensors that share memory
        return self.inner.untyped_storage()

    def __format__(self, spec: str) -> str:
        return format(self.cpu(), spec)

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"pretend({self.cpu()!r})"


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != name}


def _without_copy(args: tuple) -> tuple:
    return (args[0].dtype,) if args and isinstance(args[0], Tensor) else args


class PretendDevice(TorchDispatchMode):
    """Makes the device exist inside a `with` block, and records what happened on it."""

    def __init__(self) -> None:
        super().__init__()
        _register()
        self.waits: Counter[str] = Counter()
        """Host synchronisations by operation and line."""
        self._tasks: set[int] = set()  # backward passes on the device
        self.synchronized = 0
        """Calls of `torch.accelerator.synchronize`."""

    def __enter__(self) -> "PretendDevice":
        _Module.in_use = True
        self._synchronize = mock.patch.object(torch.accelerator, "synchronize", self._count_synchronize)
        self._synchronize.start()
        self._swapped = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=...) comes through here
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _Module.in_use = False
        self._synchronize.stop()
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_swap_module_params_on_conversion(self._swapped)

    def _count_synchronize(self, device: Any = None) -> None:  # torch's own would ask for streams
        self.synchronized += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_device = [x for x in tensors if isinstance(x, PretendTensor)]
        name = func.overloadpacket.__name__
        result_is_there = bool(on_device)
        task = torch._C._current_graph_task_id()  # of a backward pass, -1 outside of any
        if on_device and task != -1:
            self._tasks.add(task)
        if kwargs.get("device") is not None:
            result_is_there = torch.device(kwargs["device"]).type == NAME
            kwargs["device"] = torch.device("cpu")
            of_device = on_device or (not tensors and task in self._tasks)
            # a cast of a gradient: C++ gives it the device it sees; a copy of the same precision is from device to device
            is_cast = name in COPIES and kwargs.get("dtype") not in (None, tensors[0].dtype)
            if (name not in COPIES or is_cast) and of_device and _called_by_autograd():
                result_is_there = True
        self._check(name, tensors, on_device, result_is_there)
        if name in COPIES and not kwargs.get("non_blocking") and not isinstance(tensors[-1], PretendTensor):
            is_upload = isinstance(tensors[0], PretendTensor) if name == "copy_" else result_is_there
            if is_upload:
                self._wait("copy from the CPU")
        output = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if func._schema.is_mutable:
            return _mutated(func, args, kwargs, output)
        return tree_map(_wrapped, output) if result_is_there else output

    def _check(self, name: str, tensors: list, on_device: list, result_is_there: bool) -> None:
        if not on_device:
            return
        elsewhere = [x for x in tensors if not isinstance(x, PretendTensor) and x.ndim > 0]
        if name in CPU_INDICES:
            elsewhere = [x for x in elsewhere if x.is_floating_point()]
            if any(x.dtype == torch.bool for x in on_device[1:]):
                self._wait(f"{name} by a mask")
        if name in COPIES:
            if name == "copy_" and not isinstance(tensors[0], PretendTensor):
                result_is_there = False
            if not result_is_there:
                self._wait("copy to the CPU")
        elif elsewhere:
            raise AssertionError(
                f"{name} mixes devices: {[(type(x).__name__, tuple(x.shape)) for x in tensors]}"
            )
        if name in WAITING or (name == "repeat_interleave" and tensors):
            self._wait(name)

    def _wait(self, what: str) -> None:
        ours = ("edgewise", "transformers", "accelerate", "tests/test_")
        stack = traceback.extract_stack()
        if any(f.filename.endswith("utils/clip_grad.py") for f in stack):
            return  # it groups tensors by the device that C++ sees, and copies between "devices" that are one
        frame = next((f for f in reversed(stack) if any(part in f.filename for part in ours)), stack[0])
        self.waits[f"{what}, {'/'.join(frame.filename.split('/')[-3:])}:{frame.lineno}: {frame.line}"] += 1

    @property
    def n_waits(self) -> int:
        return self.waits.total()

    @property
    def own_waits(self) -> int:
        """Those that transformers does not cause, which looks at positions once in each forward pass."""
        return sum(n for line, n in self.waits.items() if "transformers" not in line)


def _called_by_autograd() -> bool:
    """Whether C++ makes a tensor in a backward pass, zeros for instance: it takes all gradients for CPU tensors."""
    frame, own = sys._getframe(1), ("pretend_device", "torch/_compile", "torch/_dynamo")
    while frame is not None and any(name in frame.f_code.co_filename for name in own):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith("torch/autograd/graph.py")


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, PretendTensor) else x


def _wrapped(x: Any) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, PretendTensor):
        return x
    if x.dtype == torch.float64:
        raise AssertionError("a float64 tensor on the device, which MPS refuses")
    return PretendTensor(x)


def _mutated(func: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
    """In place of results that are arguments, those arguments."""
    of_inner = {id(_inner(x)): x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
    is_there = any(isinstance(x, PretendTensor) for x in of_inner.values())
    return tree_map(
        lambda x: of_inner.get(id(x), _wrapped(x) if is_there else x) if isinstance(x, Tensor) else x, output
    )


_registered: list[bool] = []


def _register() -> None:
    if not _registered:
        backend_registration._setup_privateuseone_for_python_backend(
            NAME, backend_module=_Module(), hook=_Hook()
        )
        _registered.append(True)
