"""Compile the Triton kernels ahead of time, without a GPU, and tabulate what each launch configuration costs.

    python benchmarks/triton_kernels.py                                    # everything; some 20 minutes
    python benchmarks/triton_kernels.py --widths 64 --dtypes bf16 --capabilities 90
    python benchmarks/triton_kernels.py --variants                         # other gates and masks, one size of head
    python benchmarks/triton_kernels.py --write docs/gpu.md                # also put the rows into the document's table

Registers and local memory ("stack": what spills) are those that ptxas assigned, read from the cubin; shared memory is what a
launch asks for; "mma" counts tensor-core instructions in the PTX. Exits with 1 if a configuration uses no tensor cores or
spills; in float32 heads of more than 128 may.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from rich.progress import track
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edgewise.kernels import triton_kernels
from edgewise.kernels.triton_backend import Tiles, block_width, launch_plan

DTYPES = {
    "bf16": (torch.bfloat16, "*bf16"),
    "fp16": (torch.float16, "*fp16"),
    "fp32": (torch.float32, "*fp32"),
}
KERNELS = ("forward", "query_gradients", "key_gradients")
WIDTHS, CAPABILITIES = (16, 32, 64, 80, 96, 128, 256), (80, 89, 90)
REGISTERS, SHARED, WARPS = 65536, {80: 163, 89: 99, 90: 227}, {80: 64, 89: 48, 90: 64}  # of a multiprocessor
HALF_POINTERS = {"q", "k", "v", "y", "dy", "dq", "dk", "dv"}
POINTERS = {"starts": "*i32", "sinks": "*i32", "ends": "*i32", "mask": "*u8", "closed": "*u8", "seed": "*i64"}
BEGIN, END = "<!-- table: written by benchmarks/triton_kernels.py -->", "<!-- end of table -->"


VARIANTS: dict[str, dict[str, Any]] = {
    "deterministic, sinks": {"SAMPLE": False, "SINKS": True},
    "score gate": {"KAPPA": 0.0},
    "packed documents, grouped queries": {"GROUPS": 4, "starts": True, "ends": True},
    "mask, closed heads": {"mask": True, "closed": True},
}
"""Constants of a launch that differ from those of the table; True for a tensor that is not given there."""


class Usage(NamedTuple):
    """What one compiled kernel uses."""

    registers: int  # of a thread
    stack: int  # bytes of a thread
    shared: int  # bytes of a block
    mma: int  # tensor-core instructions
    occupancy: float  # share of a multiprocessor's warps


def compile_kernel(
    name: str, width: int, dtype: str, capability: int, tiles: Tiles, changes: dict[str, Any] | None = None
) -> Usage:
    """Compile one kernel for heads of one width, without sink edges: with them there is less to do."""
    kernel: Any = getattr(triton_kernels, f"{name}_kernel")
    constants = {
        "GROUPS": 1, "D": width, "D_V": width, "SCALE": width**-0.5, "KAPPA": 1.0, "SINKS": False, "SAMPLE": True,
        "REAL": tl.float32, "PRECISION": "tf32x3" if dtype == "fp32" else "ieee",
        "BLOCK_D": block_width(width), "BLOCK_DV": block_width(width), "BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys,
        "starts": None, "mask": None, "closed": None, "ends": None,
    }  # fmt: skip
    constants |= changes or {}
    for tensor in POINTERS.keys() & constants.keys():
        if constants[tensor] is True:
            del constants[tensor]
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    signature = {a: "constexpr" if a in constants else _type(a, dtype) for a in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (a, kind) in enumerate(signature.items())
        if kind.startswith("*") or a.endswith(("_batch", "_head", "_row"))
    }
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    source: Any = ASTSource(kernel, signature, constants, aligned)  # pyright: ignore
    compiled: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    shared = compiled.metadata.shared
    mma = len(re.findall(r"wgmma\.mma_async|mma\.sync", compiled.asm["ptx"]))
    blocks = min(
        REGISTERS // (registers * 32 * tiles.warps),
        SHARED[capability] * 1024 // (shared + 1024),
        WARPS[capability] // tiles.warps,
    )
    return Usage(registers, stack, shared, mma, blocks * tiles.warps / WARPS[capability])


def _type(argument: str, dtype: str) -> str:
    if argument in HALF_POINTERS:
        return DTYPES[dtype][1]
    if argument in POINTERS:
        return POINTERS[argument]
    floats = {"b", "lse", "expected_edges", "open_edges", "dedges", "rows_D", "sums_dz"}
    return "*fp32" if argument in floats else "i32"


def _resources(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.check_output([tool, "-res-usage", file.name], text=True)
    results = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert results is not None, text
    return int(results[1]), int(results[2])


def compile_variants(width: int, dtype: str, capabilities: list[int]) -> None:
    """Print what each variant uses; exit with 1 if one spills or uses no tensor cores."""
    failed = False
    for variant, changes in VARIANTS.items():
        for kernel in KERNELS:
            for capability in capabilities:
                plan = launch_plan(width, DTYPES[dtype][0])
                tiles = getattr(plan.for_mask() if "mask" in changes else plan, kernel)
                usage = compile_kernel(kernel, width, dtype, capability, tiles, changes)
                print(f"{variant:<36}{kernel:<17} sm_{capability} {usage}", flush=True)
                failed |= spills(usage, width, dtype) or not usage.mma
    if failed:
        sys.exit("spills, or no tensor cores")


def spills(usage: Usage, width: int, dtype: str) -> bool:
    """Whether a configuration spills that must not."""
    return usage.stack > 0 and (dtype != "fp32" or width <= 128)


Row = tuple[int, int, int, str]


def row_of(line: str) -> Row:
    """What a line of the table is about, in the order of the table: precision, head size, kernel, GPU."""
    width, dtype, kernel, gpu = (cell.strip() for cell in line.split("|")[1:5])
    return list(DTYPES).index(dtype), int(width), KERNELS.index(kernel.replace(" ", "_")), gpu


def write_rows(document: Path, rows: dict[Row, str]) -> None:
    """Put rows into a document's table, in the place of those about the same."""
    before, rest = document.read_text().split(BEGIN)
    table, after = rest.split(END)
    head, alignment, *lines = table.strip().splitlines()
    merged = {row_of(line): line for line in lines} | rows
    ordered = [merged[row] for row in sorted(merged)]
    document.write_text(before + "\n".join([BEGIN, head, alignment, *ordered, END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of heads")
    parser.add_argument("--dtypes", nargs="+", default=("bf16", "fp32"), choices=DTYPES)
    parser.add_argument(
        "--capabilities", type=int, nargs="+", default=CAPABILITIES, help="80: A100, 89: L4, 90: H100"
    )
    parser.add_argument(
        "--variants", action="store_true", help="compile VARIANTS instead, one width and type"
    )
    parser.add_argument("--write", type=Path, help="document in whose table these rows are replaced")
    arguments = parser.parse_args()
    if arguments.variants:
        compile_variants(arguments.widths[0], arguments.dtypes[0], arguments.capabilities)
        return
    rows: dict[Row, str] = {}
    jobs = [
        (width, dtype, kernel, capability)
        for dtype in arguments.dtypes
        for width in arguments.widths
        for kernel in KERNELS
        for capability in arguments.capabilities
    ]
    failures = []
    for width, dtype, kernel, capability in track(jobs, "compiling", disable=not sys.stderr.isatty()):
        tiles = getattr(launch_plan(width, DTYPES[dtype][0]), kernel)
        usage = compile_kernel(kernel, width, dtype, capability, tiles)
        sizes = f"{tiles.queries} x {tiles.keys} | {tiles.warps} | {usage.registers} | {usage.stack} B"
        line = (
            f"| {width} | {dtype} | {kernel.replace('_', ' ')} | sm_{capability} | {sizes} "
            f"| {usage.shared / 1024:.0f} KiB | {usage.mma} | {usage.occupancy:.0%} |"
        )
        rows[row_of(line)] = line
        print(line, flush=True)
        if spills(usage, width, dtype) or not usage.mma or usage.shared > SHARED[capability] * 1024:
            failures.append(line)
    if arguments.write:
        write_rows(arguments.write, rows)
    if failures:
        print("spills, no tensor cores, or too much shared memory:", *failures, sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
