# SPDX-License-Identifier: Apache-2.0
"""From the command `hopsum switch` to its line `ready`, the program loaded and compiled, and the memory it then needs.

Cold: nothing in the cache of compiled programs. Warm: the program is there. Memory is read after traffic over all
slots of a large job, in a process that compiled and in one that loaded from the cache.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_controlplane.artifacts import compiled_program
from hopsum_evaluation.bench.placement import memory
from hopsum_evaluation.bench.sockets import load_on
from hopsum_topologies.switch_testbed import native_testbed
from hopsum_topologies.tempdirs import make_temporary_directory

MEMORY_SLOTS = 1024
NATIVE = ("--backend", "native")
RESEND_S = 2.0
_START_S = 120.0
_STOP_S = 10.0


class StartError(Exception):
    """The switch did not come up. The message has what it said."""


class Startup:
    """Cold and warm starts, each with a cache of its own. The context manager removes both."""

    def __init__(self) -> None:
        self._folder = make_temporary_directory("bench")

    def cold(self) -> float:
        """Return the seconds of a start with an empty cache."""
        with self._empty_cache() as environment:
            return start_s(environment)

    def warm(self) -> float:
        """Return the seconds of a start with the program in the cache. The first call is cold."""
        return start_s(self._environment("warm"))

    def memory(self, workers: int, table: tuple[int, ...], seed: int, seconds: float) -> dict[str, int]:
        """Return resident bytes now and at most, of a warm process and of one that compiled."""
        found: dict[str, int] = {}
        warm = self._resident(self._environment("warm"), workers, table, seed, seconds)
        with self._empty_cache() as environment:
            cold = self._resident(environment, workers, table, seed, seconds)
        for name in ("rss", "peak"):
            found |= {f"native.{name}_bytes": warm[name], f"native.{name}_bytes_cold": cold[name]}
        return found

    def __enter__(self) -> Startup:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def _environment(self, name: str) -> dict[str, str]:
        cache = Path(self._folder.name) / name
        cache.mkdir(exist_ok=True)
        return {**os.environ, "XDG_CACHE_HOME": str(cache)}

    @contextmanager
    def _empty_cache(self) -> Iterator[dict[str, str]]:
        with TemporaryDirectory(dir=self._folder.name) as cache:
            yield {**os.environ, "XDG_CACHE_HOME": cache}

    def _resident(
        self, environment: dict[str, str], workers: int, table: tuple[int, ...], seed: int, seconds: float
    ) -> dict[str, int]:
        with (
            native_testbed(workers, extra=NATIVE, environment=environment) as testbed,
            load_on(testbed, table, MEMORY_SLOTS, seed, resend_s=RESEND_S) as load,
        ):
            load.run(seconds)
            return memory(testbed.pid)


def start_s(environment: dict[str, str]) -> float:
    """Start a switch process, wait for `ready`, end it, and return how long it took to be ready.

    Raises StartError.
    """
    json, p4info = compiled_program()
    command = [sys.executable, "-m", "hopsum_cli.main", "switch", "--program", str(json), "--p4info", str(p4info)]
    command += ["--grpc", "127.0.0.1:0", "--udp", "1=127.0.0.1:0", "--die-with-parent", str(os.getpid()), *NATIVE]
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            heard = select.select([process.stdout], [], [], _START_S)[0]
            line = process.stdout.readline() if heard else b""
            took_s = time.perf_counter() - started
        finally:
            process.terminate()
            try:
                _, complaint = process.communicate(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
    if not line.startswith(b"ready"):
        said = complaint.decode(errors="replace").strip() or "it said nothing"
        raise StartError(f"the switch was not ready after {took_s:.1f} s: {said}")
    return took_s
