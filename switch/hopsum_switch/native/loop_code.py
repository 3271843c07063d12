# SPDX-License-Identifier: Apache-2.0
"""The machine code of the loop of UDP ports: `ports.udp_kernel` from the cache of compiled programs, or from numba."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm

from ..ports.udp_layout import Serve
from .cache import default_cache
from .compiler import features, initialise, load, machine, translate

_log = logging.getLogger(__name__)
_NAME: Final = "serve"


@cache
def loop_code() -> Serve | None:
    """Return the compiled `serve`, or None where this machine cannot have it.

    The code is made once for a machine and a version of the sources, which takes seconds, and then kept. A machine
    cannot have it that is no Linux of 64 bits, or where numba or LLVM fail; then a warning says why.
    """
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return None
    initialise()
    store = default_cache()
    try:
        code = None if store is None else store.load(_key())
        if code is None:
            code = _compile()
            if store is not None:
                store.save(_key(), code)
        return _callable(code)
    except Exception as error:  # whatever they raise, the ports work without
        _log.warning("UDP ports run without machine code: %s: %s", type(error).__name__, error)
        return None


def _key() -> tuple[str, ...]:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in (*sorted((package / "ports").glob("udp_*.py")), Path(__file__), package / "native" / "layout.py"):
        digest.update(path.read_bytes())
    return (
        _NAME, digest.hexdigest(), llvm.get_host_cpu_name(), features(), llvmlite.__version__, platform.machine(),
    )  # fmt: skip


def _compile() -> bytes:
    from ..ports.udp_kernel import compile_serve  # numba takes a second to import

    text, name = compile_serve()
    module = llvm.parse_assembly(text)
    for function in module.functions:  # what is not called any more goes, with the symbols that it names
        if function.name == name:
            function.name = _NAME
        elif not function.is_declaration:
            function.linkage = llvm.Linkage.internal
    return translate(str(module), machine())


def _callable(code: bytes) -> Serve:
    linker = load(code)
    # A function of numba takes two places before its arguments, for a result and for an exception.
    places: Any = ctypes.create_string_buffer(16)
    first = ctypes.addressof(places)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(linker.get_function_address(_NAME))

    def serve(*addresses: int) -> None:
        function(*map(ctypes.c_void_p, (first, first + 8, *addresses)))

    serve.__dict__["keep"] = linker, places
    return serve
