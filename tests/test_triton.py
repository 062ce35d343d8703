"""Triton kernels in Triton's interpreter against the reference: outputs and all gradients, in double precision.

The interpreter must be chosen before triton is imported, so these tests run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "triton", reason="triton is not installed: its kernels are not tested (Linux: pip install triton)"
)


@pytest.mark.parametrize("part", ["gates", "visibility", "precision"])
def test_kernels_equal_the_reference(part):
    command = [sys.executable, Path(__file__).with_name("triton_parity.py"), part]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_kernels_equal_the_reference_over_random_shapes():
    command = [sys.executable, Path(__file__).with_name("triton_parity.py"), "shapes"]
    result = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def compile_ahead_of_time(*arguments: str) -> subprocess.CompletedProcess:
    """Registers, spills and tensor cores of kernels compiled for GPUs that are not here; fails if one is not as planned."""
    script = Path(__file__).parents[1] / "benchmarks" / "triton_kernels.py"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, script, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "89", "90"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("width", ["16", "32", "64", "80", "96", "128", "256"])
def test_kernels_compile_without_spills_and_use_tensor_cores(width, dtype, capability):
    """In float32 heads of 256 spill, and are tabulated: three products for one take many registers."""
    result = compile_ahead_of_time("--widths", width, "--dtypes", dtype, "--capabilities", capability)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("width", ["64", "128"])
def test_other_gates_and_masks_compile(width):
    """Masks, packed documents, grouped queries, closed heads, deterministic gates, the score gate."""
    result = compile_ahead_of_time(
        "--variants", "--widths", width, "--dtypes", "bf16", "--capabilities", "80", "90"
    )
    assert result.returncode == 0, result.stdout + result.stderr
