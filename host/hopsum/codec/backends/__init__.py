# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of codecs, per backend.

    kernels         the common definition, and its reference: numpy, written for reading. Needed where numba does not
                    run, and to check it
    numba_kernels   compiled, for every processor that numba compiles for (thc_kernels, dither_kernels and range_kernels
                    as vector code; vector_code: its instructions; jit: the compilation; stream_kernels: a run of
                    chunks, for the worker's compiled loop)
    factor_kernels  the definition and reference of factors of low rank; low_rank_kernels: the same, compiled
    threads         several threads for kernels that release the interpreter lock

Backends agree bit for bit, because nothing depends on the order of additions: the rotation works on integers,
sums of squares are exact in float64 up to one fixed order, and every other float result is a single operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Final

from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.interface import CodecError

BACKENDS: Final = ("auto", "numpy", "numba")
COMPILED_VARIABLE: Final = "HOPSUM_COMPILED"
_only_cached: Final[ContextVar[bool]] = ContextVar("_only_cached", default=False)


def compiled_is_wanted() -> bool:
    """Return whether compiled kernels and loops may be used: HOPSUM_COMPILED=0 turns them off."""
    return os.environ.get(COMPILED_VARIABLE) != "0"


def load_kernels(backend: str, threads: int = 1) -> Kernels:
    """Return a backend by name. "auto" is numba where it can be imported, else numpy.

    HOPSUM_COMPILED=0 makes "auto" numpy.

    Args:
        backend: "auto", "numpy" or "numba".
        threads: of a call of numba's kernels, the calling one among them. numpy works on the calling one alone.

    Raises:
        CodecError: unknown backend, one whose package is not installed, or no thread at all.
    """
    if threads < 1:
        raise CodecError(f"{threads} threads: at least 1")
    if backend == "auto":
        backend = "numba" if compiled_is_wanted() and find_spec("numba") else "numpy"
    if backend not in BACKENDS:
        raise CodecError(f"backend {backend!r}: one of {', '.join(BACKENDS)}")
    if backend == "numpy":
        return Kernels()
    try:
        from hopsum.codec.backends import numba_kernels  # here: numba takes a second to import
    except ModuleNotFoundError as error:
        raise CodecError(f"backend {backend!r} needs the package {error.name}; install it or use numpy") from error
    return numba_kernels.NumbaKernels(threads)


class NotCompiledError(Exception):
    """A kernel is not in numba's cache, and this block of the program does not wait for it."""


@contextmanager
def only_cached() -> Iterator[None]:
    """Let kernels that numba's cache does not have raise NotCompiledError in this block of this thread."""
    token = _only_cached.set(True)
    try:
        yield
    finally:
        _only_cached.reset(token)


def is_only_cached() -> bool:
    """Return whether this thread is in a block of `only_cached`."""
    return _only_cached.get()
