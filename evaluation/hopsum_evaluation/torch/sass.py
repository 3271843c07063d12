# SPDX-License-Identifier: Apache-2.0
"""Machine code of the Triton kernels, compiled on a machine without a GPU: `python -m hopsum_evaluation.torch.sass`.

Each kernel is compiled for sm_90 and disassembled with the tools that Triton's wheel carries. The kernels have no
loops, so instructions are counted as they stand: a warp's program handles one block of 1024 elements, 32 a thread.

`bound` is the unit of a multiprocessor that is busiest, with these rates assumed, in results per clock: 128
instructions issued, 128 float32 (with 64 integer multiplications among them), 64 other integer, compare and select,
64 float64, 16 conversions, 32 loads, stores and shuffles. What it says is a ceiling, not a forecast: latency, cache
misses and bank conflicts come on top. Nothing here is a measurement of a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hopsum.codec.interface import CodecError
from hopsum.torch.codec.torch_kernels import WARPS, options

THREAD_ELEMENTS: Final = 32
MULTIPROCESSORS: Final = 132
"""The multiprocessors of an H100 SXM or an H200."""
CLOCK_HZ: Final = 1.7e9
"""Assumed under load."""
_RATES: Final = {
    "issue": 128,
    "float32": 128,
    "multiply": 64,
    "integer": 64,
    "float64": 64,
    "convert": 16,
    "memory": 32,
}
_UNITS: Final = {
    "float32": ("FADD", "FMUL", "FFMA"),
    "multiply": ("IMAD",),
    "float64": ("DADD", "DMUL", "DFMA"),
    "convert": ("F2F", "F2I", "I2F", "FRND"),
    "memory": ("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "SHFL", "LDL", "STL"),
}
_UNIT_OF: Final = {name: unit for unit, names in _UNITS.items() for name in names}
_INSTRUCTION: Final = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_POINTERS: Final = {
    "x": "*fp32", "scales": "*fp32", "shifts": "*i32", "cells": "*i32", "sums": "*u16", "counts": "*i32",
    "factors": "*fp32", "beyond": "*i32", "payloads": "*u16", "values": "*fp32", "residual": "*fp32",
    "pending": "*fp32", "out": "*fp32",
}  # fmt: skip
_NUMBERS: Final = {"blocks": "i32", "rotation": "i64", "rounding": "i64", "granularity": "i32"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it is launched."""

    name: str
    kernel: str
    constants: dict[str, Any]
    bytes_per_element: float
    """Bytes through device memory: each input read once, each output written once."""
    pointers: dict[str, str]
    """Types that are not those of `_POINTERS`."""


VARIANTS: Final = (
    Variant("ranges", "square_sums", {"BLOCKS": 2 * WARPS, "COMPENSATE": False}, 4, {"sums": "*fp64"}),
    Variant("ranges, x + residual", "square_sums", {"BLOCKS": 2 * WARPS, "COMPENSATE": True}, 12, {"sums": "*fp64"}),
    Variant("encode, float32", "thc_encode", {"BLOCKS": WARPS, "EXACT_FLOAT": True}, 4.5, {"out": "*u16"}),
    Variant("encode, int32", "thc_encode", {"BLOCKS": WARPS, "EXACT_FLOAT": False}, 4.5, {"out": "*u16"}),
    Variant("decode", "thc_decode", {"BLOCKS": WARPS}, 5, {}),
    Variant("contribution", "thc_contribution", {"BLOCKS": WARPS, "SUBTRACT": False}, 4.5, {}),
    Variant("subtract", "thc_contribution", {"BLOCKS": WARPS, "SUBTRACT": True}, 8.5, {}),
)


@dataclass(frozen=True, slots=True)
class SassReport:
    """Static figures of a kernel, for an element where nothing else is said."""

    name: str
    registers: int
    spilled_bytes: int
    """Local memory of a thread."""
    barriers: int
    """The barriers of the whole CTA, in a program."""
    fused: int
    """Multiply-adds of float32, in a program: they round once, so the product must be exact."""
    flushing: int
    """Instructions that make zeros of subnormal numbers, in a program."""
    instructions: float
    units: dict[str, float]
    bound: str
    elements_per_s: float
    """The rate that `bound` allows on 132 multiprocessors at 1.7 GHz."""
    bytes_per_s: float
    """The memory traffic of that."""


def inspect(variant: Variant) -> SassReport:
    """Compile one kernel for sm_90 and count.

    Raises:
        CodecError: triton is not installed, or runs as an interpreter in this process.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise CodecError("TRITON_INTERPRET=1 is set: triton interprets in this process; unset it to compile")
    cubin = _compile(variant)
    tool = Path(import_module("triton.backends.nvidia").__file__ or "").parent / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        sass, usage = (_run(tool, option, path) for option in ("-sass", "-res-usage"))
    names = [name for name in _INSTRUCTION.findall(sass) if name != "NOP"]
    return _report(variant, Counter(names), usage, sass.count(".FTZ"))


def _compile(variant: Variant) -> bytes:
    try:
        compiler, targets = import_module("triton.compiler"), import_module("triton.backends.compiler")
    except ModuleNotFoundError as error:
        raise CodecError(f"this needs the package {error.name}; install triton") from error
    kernels = import_module("hopsum.torch.codec.triton_kernels")
    kernel = getattr(kernels, variant.kernel)
    types = _NUMBERS | {f"{name}_ptr": kind for name, kind in (_POINTERS | variant.pointers).items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(signature) if name.endswith("_ptr")}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=variant.constants, attrs=aligned)
    made = compiler.compile(source, target=targets.GPUTarget("cuda", 90, 32), options=options(WARPS))
    cubin: bytes = made.asm["cubin"]
    return cubin


def _run(tool: Path, option: str, path: Path) -> str:
    return subprocess.run([str(tool), option, str(path)], capture_output=True, text=True, check=True).stdout


def _report(variant: Variant, counts: Counter[str], usage: str, flushing: int) -> SassReport:
    units: Counter[str] = Counter()
    for name, count in counts.items():
        units[_UNIT_OF.get(name, "integer")] += count
    per_element = {unit: round(count / THREAD_ELEMENTS, 2) for unit, count in sorted(units.items())}
    total = sum(counts.values()) / THREAD_ELEMENTS
    busy = {"issue": total} | {unit: units[unit] / THREAD_ELEMENTS for unit in _UNITS | {"integer": ()}}
    busy["float32"] += busy["multiply"]
    bound = max(busy, key=lambda unit: busy[unit] / _RATES[unit])
    rate = _RATES[bound] / busy[bound] * MULTIPROCESSORS * CLOCK_HZ
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return SassReport(
        variant.name,
        found["REG"],
        found["STACK"] + found["LOCAL"],
        counts["BAR"],
        counts["FFMA"],
        flushing,
        round(total, 2),
        per_element,
        bound,
        rate,
        rate * variant.bytes_per_element,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or one JSON object with --json."""
    parser = argparse.ArgumentParser(prog="python -m hopsum_evaluation.torch.sass", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    chosen = parser.parse_args(arguments)
    try:
        reports = [inspect(variant) for variant in VARIANTS if variant.name in (chosen.only or names)]
    except CodecError as error:
        parser.error(str(error))
    if chosen.json:
        print(json.dumps({"target": "sm_90", "kernels": [asdict(report) for report in reports]}))
        return 0
    print(f"{'sm_90':22} registers  spilled  instructions  float32  multiply  integer  memory  bound    TB/s at most")
    for each in reports:
        units = [each.units.get(unit, 0.0) for unit in ("float32", "multiply", "integer", "memory")]
        columns = "".join(f"{value:>{width}.1f}" for value, width in zip(units, (9, 10, 9, 8), strict=True))
        print(
            f"{each.name:22} {each.registers:9} {each.spilled_bytes:8} {each.instructions:13.1f}{columns}"
            f"  {each.bound:8} {each.bytes_per_s / 1e12:12.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
