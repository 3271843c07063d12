# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of codecs, per backend.

    kernels     what a backend does, and how: the common definition
    reference   numpy, written for reading
    compiled    numba, written for speed (compiled_thc: the kernels of thc and uhc; jit: how they are compiled)
    vectors     the same as vector code, where that is faster (vector_parts: instructions; vector_choice: the choice)
    threads     any of them on several threads

Backends agree bit for bit, because nothing depends on the order of additions: the rotation works on integers,
sums of squares are exact in float64 up to one fixed order, and every other float result is a single operation.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.base import CodecError

_MODULES: Final = {"numpy": "reference", "numba": "compiled"}
BACKENDS: Final = ("auto", *_MODULES)
COMPILED_VARIABLE: Final = "HOPSUM_COMPILED"


def compiled_is_wanted() -> bool:
    """Return whether vector code and compiled loops may be used: HOPSUM_COMPILED=0 turns them off."""
    return os.environ.get(COMPILED_VARIABLE) != "0"


def load_kernels(backend: str, threads: int = 1) -> Kernels:
    """Return a backend by name, on so many threads. "auto" is numba where it can be imported, else numpy.

    Raises:
        CodecError: unknown backend, one whose package is not installed, or no thread at all.
    """
    if threads < 1:
        raise CodecError(f"{threads} threads: at least 1")
    if backend == "auto":
        backend = "numba" if find_spec("numba") else "numpy"
    if backend not in _MODULES:
        raise CodecError(f"backend {backend!r}: one of {', '.join(BACKENDS)}")
    try:
        module = import_module(f"hopsum.codec.backends.{_MODULES[backend]}")
    except ModuleNotFoundError as error:
        raise CodecError(f"backend {backend!r} needs the package {error.name}; install it or use numpy") from error
    kernels: Kernels = module.make_kernels(threads)
    return kernels
