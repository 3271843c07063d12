# SPDX-License-Identifier: Apache-2.0
"""The machine code of the loop of UDP ports: `ports.udp_kernel` from the cache of compiled programs, or from numba.

As a program (`python -m hopsum_switch.native.loop_code`) it writes the machine code to its standard output.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm

import hopsum_base

from ..ports.udp_layout import Serve
from .compiler import compile_module, default_cache, features, initialise, link_object, target_machine

_log = logging.getLogger(__name__)
_NAME: Final = "serve"
_PR_SET_PDEATHSIG: Final = 1


class LoopCode:
    """The compiled function `serve`. Methods may be called from any thread.

    Compiling takes seconds. A child process compiles, so the start of a switch and its packets do not wait. The machine
    code is kept in the cache, one entry for each processor and version of the sources.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serve: Serve | None = None
        self._waiting: list[Callable[[Serve], None]] = []
        self._compiler: threading.Thread | None = None

    def get(self, ready: Callable[[Serve], None] | None = None) -> Serve | None:
        """Return the function if it is in this process or in the cache. Else return None, and compile it.

        Then another thread calls `ready` with the function. It is not called on a machine without 64-bit little-endian
        Linux, or where numba or LLVM fail, of which a warning gives the reason.
        """
        # The kernel writes structures of 64-bit Linux into the arrays, and the loop reads them as little-endian words.
        if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
            return None
        with self._lock:
            if self._serve is None:
                self._serve = _from_cache()
            if self._serve is None and self._compiler is None:
                self._compiler = threading.Thread(target=self._compile, name="loop-code", daemon=True)
                self._compiler.start()
            if self._serve is None and ready is not None:
                # Under the lock, so `_compile` either finds this function in the list or the caller finds the result.
                self._waiting.append(ready)
            return self._serve

    def wait(self) -> Serve | None:
        """Wait for the function, compiled if necessary, and return it, or None where it cannot be compiled."""
        serve = self.get()
        if serve is None and self._compiler is not None:
            self._compiler.join()
        return self._serve

    def _compile(self) -> None:
        try:
            code = _compiled_elsewhere()
            serve = _callable(code)
            if (store := default_cache()) is not None:
                store.save(_key(), code)
        except Exception as error:  # whatever fails, the ports work without
            _log.warning("UDP ports run without machine code: %s: %s", type(error).__name__, error)
            return
        with self._lock:
            self._serve, waiting = serve, self._waiting
            self._waiting = []
        # Without the lock: `ready` takes the gate of a data plane, whose holder may wait for this lock.
        for ready in waiting:
            ready(serve)


LOOP_CODE: Final = LoopCode()


def main() -> None:
    """Compile, and write the machine code to standard output. End with the parent process."""
    # The child ends with its parent, which may be killed while numba compiles.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    initialise()
    sys.stdout.buffer.write(compile_loop())


def compile_loop() -> bytes:
    """Compile `serve` for this processor in this process, and return the object file. This takes seconds."""
    from ..ports.udp_kernel import compile_serve  # numba takes a second to import

    text, name = compile_serve()
    module = llvm.parse_assembly(text)
    for function in module.functions:  # so that unused ones are removed, with the symbols that they name
        if function.name == name:
            function.name = _NAME
        elif not function.is_declaration:
            function.linkage = llvm.Linkage.internal
    return compile_module(str(module), target_machine())


def _compiled_elsewhere() -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"{last or 'no message'} (exit status {done.returncode})")
    return done.stdout


def _from_cache() -> Serve | None:
    initialise()
    store = default_cache()
    code = None if store is None else store.load(_key())
    return None if code is None else _callable(code)


def _key() -> tuple[str, ...]:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    records = [
        Path(hopsum_base.__file__).with_name(name) for name in ("kernel_structs.py", "record_kernels.py", "records.py")
    ]
    own = [Path(__file__), package / "native" / "memory_layout.py"]
    sources = [*sorted((package / "ports").glob("udp_*.py")), *own, *records]
    for path in sources:
        digest.update(path.read_bytes())
    return (
        _NAME, digest.hexdigest(), llvm.get_host_cpu_name(), features(), llvmlite.__version__, platform.machine(),
    )  # fmt: skip


def _callable(code: bytes) -> Serve:
    linker = link_object(code)
    # A function of numba takes two places before its arguments, for a result and for an exception.
    places: Any = ctypes.create_string_buffer(16)
    first = ctypes.addressof(places)
    # A function of CFUNCTYPE gives the interpreter lock away for the time of the call.
    function = ctypes.CFUNCTYPE(ctypes.c_int)(linker.get_function_address(_NAME))

    def serve(address: int) -> None:
        function(*map(ctypes.c_void_p, (first, first + 8, address)))

    serve.__dict__["keep"] = linker, places
    return serve


if __name__ == "__main__":
    main()
