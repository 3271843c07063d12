# SPDX-License-Identifier: Apache-2.0
"""Generations: the names of job incarnations on the wire, never 0 and never the same twice.

    generation = max(last, unix seconds) + 1

The clock covers a lost record of the last one: a controller that starts anew allots generations above all that
an earlier one allotted, as long as that one allotted fewer than one a second.
"""

from __future__ import annotations

from pathlib import Path

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.files import write_atomically

MAX_GENERATION = (1 << 32) - 1


class GenerationAllocator:
    """Allots generations, for all jobs of all switches of one controller.

    `path` keeps the last one over restarts: it is on disk before `allot` returns. Raises ControlPlaneError
    when the file is there and holds no generation.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = 0 if path is None else _read_last(path)

    @property
    def last(self) -> int:
        """Return the highest generation known to be taken, or 0 for none."""
        return self._last

    def observe(self, generation: int) -> None:
        """Count `generation` as taken: it was found on a switch."""
        self._last = max(self._last, generation)

    def allot(self, now: float) -> int:
        """Return the next generation at `now` (unix seconds).

        Raises ControlPlaneError when it does not fit 32 bits, or cannot be recorded: nothing is allotted
        then.
        """
        generation = max(self._last, int(now)) + 1
        if generation > MAX_GENERATION:
            raise ControlPlaneError(
                f"generation {generation} does not fit 32 bits (last {self._last}, clock {int(now)} s)",
                hint="check the clock of this machine",
            )
        if self._path is not None:
            try:
                write_atomically(self._path, f"{generation}\n")
            except OSError as error:
                raise ControlPlaneError(
                    f"generation {generation} cannot be recorded: {error}", hint="make the generation file writable"
                ) from error
        self._last = generation
        return generation


def _read_last(path: Path) -> int:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ControlPlaneError(f"generation file cannot be read: {error}", hint="make it readable") from error
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) > MAX_GENERATION:
        raise ControlPlaneError(
            f"generation file {path} holds {text[:32]!r} instead of a number up to {MAX_GENERATION}",
            hint="remove it: the clock is above the generations of earlier controllers",
        )
    return int(text)
