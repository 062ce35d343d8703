"""Triton's interpreter, which runs kernels on a CPU by numpy. Import this before anything that imports triton."""

import os

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
from triton.runtime import interpreter

_patched: set[int] = set()  # modules whose language functions the running kernel has patched
_patch_lang, _run = interpreter._patch_lang, interpreter.InterpretedFunction.run


def _run_kernel(kernel, *args, **kwargs):
    _patched.clear()
    return _run(kernel, *args, **kwargs)


def _call_inside_a_kernel(function, *args, **kwargs):
    """As the interpreter does, but patching each module once a kernel: in each call it takes most of the time."""
    if id(function.fn.__globals__) not in _patched:
        _patched.add(id(function.fn.__globals__))
        _patch_lang(function.fn)
    return function.rewrite()(*args, **kwargs)


def _dot(builder, a, b, *rest):
    """The interpreter multiplies the bit patterns of bfloat16 numbers; here, the numbers."""
    return _create_dot(builder, _numbers(a), _numbers(b), *rest)


def _numbers(x):
    if x.data.dtype != np.uint16:
        return x
    return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


_create_dot = interpreter.InterpreterBuilder.create_dot
interpreter.InterpreterBuilder.create_dot = _dot  # pyright: ignore
interpreter.InterpretedFunction.run = _run_kernel  # pyright: ignore
interpreter.InterpretedFunction.__call__ = _call_inside_a_kernel  # pyright: ignore
