# SPDX-License-Identifier: Apache-2.0
"""The test harness of Intel's model as a process: commands in, what it says and the frames that leave out.

The harness reads its script from its standard input, line by line, so that one process serves a whole case. It says
nothing when a command has worked. So every group of commands ends with one that the harness does not know: its
complaint about that one is the sign that all before it are done.

Frames that leave are lines of the harness's observation log, which it writes line by line.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from hopsum_model.chips import ModelError

_MARK: Final = "hopsum-mark"
# So few that what the harness says about them fits into a pipe that nobody reads yet.
_COMMANDS_AT_ONCE: Final = 200
_PLACE = re.compile(r"^<[\w-]+>:\d+: ")
_COUNTER = re.compile(r"^counter .*\(physical (\d+)\):.* packets=(\d+)")


class LeftFrame(NamedTuple):
    """A frame that left the chip."""

    port: int
    frame: bytes


def parse_observed(line: str) -> LeftFrame:
    """Return the frame of one line of the observation log: a port, and the frame in hexadecimal digits."""
    port, _, digits = line.strip().partition(" ")
    return LeftFrame(int(port), bytes.fromhex(digits))


def parse_counters(lines: Iterable[str]) -> dict[int, int]:
    """Return the packets of a counter by cell, from the harness's lines about its cells. Other lines are left out."""
    # It tells two values. The one that it reads through the pipeline was seen to be 0 where the memory had 2.
    return {int(found[1]): int(found[2]) for found in map(_COUNTER.match, lines) if found}


def complaints(lines: Iterable[str]) -> list[str]:
    """Return the complaints among the lines of the harness, without the place in its script."""
    return [_PLACE.sub("", line) for line in lines if _PLACE.match(line)]


class Harness:
    """One running harness. Construction starts it. `wait_until_ready` waits for its program. `close` ends it.

    command: the harness's program and its arguments.
    folder: its working directory, which gets its observation log.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._observed_path = folder / "observed"
        self._observed_path.touch()
        self._marks = itertools.count(1)
        self._process = subprocess.Popen(
            [*command[:1], "--observation-log", str(self._observed_path), *command[1:], "-"],
            # One pipe for both outputs keeps the order of complaints and answers.
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        self._said = _pipe(self._process.stdout)
        self._commands = _pipe(self._process.stdin)
        self._observed = self._observed_path.open()

    def wait_until_ready(self) -> list[str]:
        """Wait until the program is loaded. Return the harness's lines until then. Raises ModelError when it ends."""
        return self.run([])

    def run(self, commands: Sequence[str]) -> list[str]:
        """Run commands and wait for them. Return the harness's lines and complaints. Raises ModelError when it ends."""
        return [line for part in _parts(commands) for line in self._run(part)]

    def run_checked(self, commands: Sequence[str]) -> list[str]:
        """Run commands and wait for them. Return the harness's lines. Raises ModelError when it complains or ends."""
        said = self.run(commands)
        if found := complaints(said):
            raise ModelError(f"the harness complains: {'; '.join(found[:5])} ({len(found)} in all)")
        return said

    def _run(self, commands: Sequence[str]) -> list[str]:
        mark = f"{_MARK}-{next(self._marks)}"
        said: list[str] = []
        with suppress(BrokenPipeError):  # below are its last words
            self._commands.write("".join(f"{line}\n" for line in (*commands, mark)).encode())
            self._commands.flush()
        for line in iter(self._said.readline, b""):
            text = line.decode(errors="replace").rstrip("\n")
            # The complaint about the mark: everything before it has been read and done.
            if text.endswith(f"Unknown command {mark}"):
                return said
            said.append(text)
        raise ModelError(f"the harness ended: {' | '.join(said[-10:])}")

    def drain_frames(self) -> list[LeftFrame]:
        """Return the frames that have left since the last call. Does not wait."""
        return [parse_observed(line) for line in self._observed if line.strip()]

    def close(self) -> None:
        """End the process of the harness."""
        self._process.kill()
        self._process.wait()
        for end in (self._said, self._observed, self._commands):
            with suppress(BrokenPipeError):
                end.close()


def _parts(commands: Sequence[str]) -> list[Sequence[str]]:
    return [commands[at : at + _COMMANDS_AT_ONCE] for at in range(0, max(len(commands), 1), _COMMANDS_AT_ONCE)]


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "Popen made no pipe"
    return end
