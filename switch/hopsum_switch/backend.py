# SPDX-License-Identifier: Apache-2.0
"""The choice of the engine for a program: the interpreter, or machine code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial

from .engine import Engine
from .errors import UnsupportedError
from .interp.observer import Observer
from .program.ir import ProgramIR

_log = logging.getLogger(__name__)


class Backend(Enum):
    """The choice of the engine for programs: the interpreter, native code, or AUTO.

    AUTO takes native code where it can. Otherwise AUTO logs a warning and takes the interpreter.
    """

    AUTO = "auto"
    INTERPRETER = "interpreter"
    NATIVE = "native"


def engine_maker(backend: Backend, *, seed: int = 0, observer: Observer | None = None) -> Callable[[ProgramIR], Engine]:
    """Return a function that makes an engine for a program. Compiled programs are cached in the user's cache folder.

    Every engine starts the stream of `random()` at `seed`. An `observer` selects the interpreter, because machine code
    reports no events. Where native code cannot run a program or llvmlite is not installed, the function raises
    UnsupportedError for `NATIVE`. For `AUTO` it logs a warning and makes an interpreter. Raises UnsupportedError for an
    observer together with `NATIVE`.
    """
    if observer is not None:
        if backend is Backend.NATIVE:
            raise UnsupportedError("native code cannot be observed: choose the interpreter for a trace")
        return partial(Engine, seed=seed, observer=observer)
    if backend is Backend.INTERPRETER:
        return partial(Engine, seed=seed)
    return partial(_native if backend is Backend.NATIVE else _native_if_possible, seed=seed)


def _native(program: ProgramIR, *, seed: int) -> Engine:
    try:
        from .native.compiler import default_cache
        from .native.native_engine import NativeEngine
    # OSError: LLVM's library is there and cannot be loaded.
    except (ImportError, OSError) as error:
        raise UnsupportedError(
            f"the native back end needs numpy and llvmlite (pip install hopsum[switch]): {error}"
        ) from error
    return NativeEngine(program, seed=seed, cache=default_cache())


def _native_if_possible(program: ProgramIR, *, seed: int) -> Engine:
    try:
        return _native(program, seed=seed)
    except UnsupportedError as error:
        _log.warning("%s runs in the interpreter: %s", program.name, error)
        return Engine(program, seed=seed)
