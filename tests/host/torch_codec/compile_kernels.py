# SPDX-License-Identifier: Apache-2.0
"""Compiles the Triton kernels for a GPU, without one: `python compile_kernels.py`, without TRITON_INTERPRET."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hopsum.torch.codec import triton_kernels
from hopsum.torch.codec.torch_kernels import WARPS, compiler_options

POINTERS = {
    "beyond_ptr": "*i32", "bounds_ptr": "*i32", "cells_ptr": "*i32", "codes_ptr": "*u16", "counts_ptr": "*i32",
    "factors_ptr": "*fp32", "offsets_ptr": "*fp32", "out_ptr": "*fp32", "payloads_ptr": "*u16", "pending_ptr": "*fp32",
    "residual_ptr": "*fp32", "rows_ptr": "*i32", "scales_ptr": "*fp32", "shifts_ptr": "*i32", "sums_ptr": "*u16",
    "values_ptr": "*fp32", "x_ptr": "*fp32",
}  # fmt: skip
KEYS = ("rotation", "rounding", "dither")
BITS = (4, 3, 2)


def compile_kernel(name: str, types: dict[str, str] | None = None, **constants: object) -> None:
    """Compile a kernel with these values of its constants, and print its size.

    Args:
        name: of the kernel.
        types: of arguments that differ from those of other kernels.
        constants: in addition to BLOCKS.
    """
    kernel: Any = getattr(triton_kernels, name)
    constants = {"BLOCKS": WARPS} | constants
    known = POINTERS | dict.fromkeys(KEYS, "i64") | (types or {}) | dict.fromkeys(constants, "constexpr")
    # Numbers are of 32 bits.
    signature = {argument: known.get(argument, "i32") for argument in kernel.arg_names}
    places = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=compiler_options(WARPS))
    print(name, constants, len(compiled.asm["cubin"]))


def main() -> None:
    """Compile every kernel in the forms that jobs launch."""
    codes = {"out_ptr": "*u16"}
    for exact in (True, False):
        compile_kernel("thc_encode", codes, EXACT_FLOAT=exact, BITS=4, DITHER=False)
    for bits in BITS:
        compile_kernel("thc_encode", codes, EXACT_FLOAT=True, BITS=bits, DITHER=True)
        compile_kernel("requantized_decode", BITS=bits)
        compile_kernel("dither_subtract", BITS=bits)
    for name in ("thc_decode", "thc_subtract", "dither_decode"):
        compile_kernel(name)
    for compensate in (True, False):
        compile_kernel("square_sums", {"sums_ptr": "*fp64"}, COMPENSATE=compensate)


if __name__ == "__main__":
    main()
