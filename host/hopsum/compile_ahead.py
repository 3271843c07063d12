# SPDX-License-Identifier: Apache-2.0
"""Compilation in another process, so that the first sum does not wait for machine code.

All backends make the same bytes. So a program begins with numpy's kernels, a child compiles the others into numba's
cache, and the program takes them from there between two all-reduces. The child outlives a short program: the next one
finds the cache filled.

    python -P -m hopsum.compile_ahead MODULE:FUNCTION '{"KEYWORD": VALUE}'
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from hopsum.codec.backends import COMPILED_VARIABLE, compiled_is_wanted
from hopsum_base.linux import unsupported_reason

WAIT: Final = "wait"
"""The value of HOPSUM_COMPILED with which a program waits for all machine code before its first sum."""
_NICE: Final = 5
"""The child leaves the processor to the training as far as that needs it."""
_log: Final = logging.getLogger(__name__)


def compiles_in_child() -> bool:
    """Return whether the program begins with numpy's kernels while a child process compiles the others.

    False without numba, not on Linux, and with HOPSUM_COMPILED=0 (never compiled) or "wait" (compiled before the first
    sum).
    """
    if not compiled_is_wanted() or os.environ.get(COMPILED_VARIABLE) == WAIT or unsupported_reason():
        return False
    return find_spec("numba") is not None


class _Work(NamedTuple):
    function: str
    arguments: dict[str, Any]
    then: Callable[[], None]
    what: str


_lock: Final = threading.Lock()
_waiting: Final[deque[_Work]] = deque()
_is_working = False


def compile_ahead(function: str, arguments: dict[str, Any], then: Callable[[], None], what: str) -> None:
    """Let a child process call a function that compiles, and take over the result afterwards. Returns at once.

    One child runs at a time. Further calls wait for it.

    Args:
        function: as MODULE:FUNCTION.
        arguments: its keyword arguments, of the types that JSON has.
        then: called in another thread once the cache is filled, and not where the child fails. What it raises is
            logged, and nothing changes.
        what: the work in words, for the log.
    """
    global _is_working
    with _lock:
        _waiting.append(_Work(function, arguments, then, what))
        if _is_working:
            return
        _is_working = True
    threading.Thread(target=_work, name="hopsum-compile", daemon=True).start()


def is_compiling() -> bool:
    """Return whether work of `compile_ahead` is not finished: a child compiles, or work waits for its turn."""
    with _lock:
        return _is_working


def _work() -> None:
    global _is_working
    while True:
        with _lock:
            if not _waiting:
                _is_working = False
                return
            work = _waiting.popleft()
        begun = time.monotonic()
        try:
            _run_child(work)
            work.then()
        except Exception as error:  # whatever it was: numpy's kernels make the same bytes
            _log.warning(
                "%s: compiled code could not be made in the background (%s): numpy's kernels are used; "
                "%s=%s compiles before the first sum, and shows the error",
                work.what, error, COMPILED_VARIABLE, WAIT,
            )  # fmt: skip
        else:
            _log.info("%s: compiled code from now on, after %.0f s", work.what, time.monotonic() - begun)


def _run_child(work: _Work) -> None:
    """Run the child process, and wait for it. Raises RuntimeError with the last line that it wrote if it fails."""
    environment = os.environ | {COMPILED_VARIABLE: WAIT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", __name__, work.function, json.dumps(work.arguments)]
    # A file, not a pipe: this program may end first, and what the child writes then must not fail.
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        status = child.wait()
        if status:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"the compiling process ended with status {status}")


def _main() -> None:
    import fcntl  # here: Windows has none, and begins with what it compiles itself

    function, arguments = sys.argv[1:]
    module, _, name = function.partition(":")
    os.nice(_NICE)
    # One process of a user compiles at a time: the ranks of a host need the same code, and find it in the cache then.
    path = os.path.join(tempfile.gettempdir(), f"hopsum-compile-{os.geteuid()}.lock")
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        getattr(import_module(module), name)(**json.loads(arguments))


if __name__ == "__main__":
    _main()
