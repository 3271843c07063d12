# SPDX-License-Identifier: Apache-2.0
"""The compilation of the numba backend: eager, without the interpreter lock, and kept in numba's cache.

numba ships no types, and finds a cache stale by the file of the kernel alone: parts stand in the kernel's file.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_numba: Any = import_module("numba")
types: Any = _numba.types


def inner(function: F) -> F:
    """Compile a part of kernels, for whatever types they pass."""
    compiled: F = _numba.njit(nogil=True)(function)
    return compiled


def kernel(*arguments: Any) -> Callable[[F], F]:
    """Compile a kernel for one signature, now, or load it from the cache."""

    def compile_kernel(function: F) -> F:
        signature = types.void(*arguments)
        try:
            compiled: F = _numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # numba finds no directory that it may write to
            compiled = _numba.njit(signature, nogil=True)(function)
        return compiled

    return compile_kernel


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def fetch_add(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element of an int64 array, atomically over threads, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "monotonic")

    return types.int64(array, types.int64, types.int64), generate


def read(dtype: Any, axes: int) -> Any:
    """Return the type of an array that is read. Writable arrays convert to it."""
    return types.Array(dtype, axes, "C", readonly=True)


def filled(dtype: Any, axes: int = 2) -> Any:
    """Return the type of an array that is filled."""
    return types.Array(dtype, axes, "C")
