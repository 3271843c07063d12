# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a program: the interpreter, machine code, or machine code where that is possible."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from .engine import Engine
from .errors import UnsupportedError
from .program.ir import Program

_log = logging.getLogger(__name__)


class Backend(Enum):
    """How programs run."""

    AUTO = "auto"  # native; the interpreter for programs and machines that it cannot do, with a warning that says why
    INTERPRETER = "interpreter"
    NATIVE = "native"


def engine_maker(backend: Backend) -> Callable[[Program], Engine]:
    """Return what makes an engine for a program; compiled programs are cached in the user's cache folder.

    The result raises UnsupportedError where `NATIVE` cannot run a program or llvmlite is not installed.
    """
    if backend is Backend.INTERPRETER:
        return Engine
    if backend is Backend.NATIVE:
        return _native
    return _native_if_possible


def _native(program: Program) -> Engine:
    try:
        from .native.cache import default_cache
        from .native.engine import NativeEngine
    except (ImportError, OSError) as error:  # OSError: LLVM's library is there and cannot be loaded
        raise UnsupportedError(
            f"the native back end needs numpy and llvmlite (pip install hopsum[switch]): {error}"
        ) from error
    return NativeEngine(program, cache=default_cache())


def _native_if_possible(program: Program) -> Engine:
    try:
        return _native(program)
    except UnsupportedError as error:
        _log.warning("%s runs in the interpreter: %s", program.name, error)
        return Engine(program)
