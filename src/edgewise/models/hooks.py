"""Hooks on modules of any model, removed when their `with` block ends: record or replace inputs, outputs, forward passes.

What passes inside attention (queries, scores, head outputs) is not a module's input or output: see `edgewise.gating.tap`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Replace = Callable[[Tensor], Tensor | None]
"""Called with a tensor; returns its replacement, or None to leave it."""
Forward = Callable[..., Any]


@contextmanager
def replace_input(module: nn.Module, replace: Replace) -> Iterator[None]:
    """Call `replace` with a module's first input, or its `hidden_states` if that is passed by name."""

    def hook(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        x = args[0] if args else kwargs["hidden_states"]
        replacement = replace(x)
        if replacement is None:
            return None
        if args:
            return (replacement, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": replacement}

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def record_input(module: nn.Module, into: list[Tensor]) -> Iterator[None]:
    """Append a module's first input to a list, at every call."""
    with replace_input(module, into.append):
        yield


@contextmanager
def replace_output(module: nn.Module, replace: Replace) -> Iterator[None]:
    """Call `replace` with a module's output."""

    def hook(_: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        return replace(output)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replace_forward(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Call `forward` instead of the module's own."""
    previous = module.__dict__.get("forward")  # others, such as accelerate, may have replaced it too
    module.forward = forward
    try:
        yield
    finally:
        if previous is None:
            del module.forward
        else:
            module.forward = previous
