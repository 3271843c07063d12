# SPDX-License-Identifier: Apache-2.0
"""The journals of workers: one JSON object a line, written while they train and read by the drill::

    life     a process, or a later life of it, has joined: generation, whether as a newcomer, its first step
    begin    before an all-reduce: the gradient
    step     after it: what was applied, who contributed, what the error feedback holds, the digest of the model
    failed   an all-reduce that has no result: the error, and whether its vector was given back (`taken`)
    void     the same where workers were replaced: the training goes on with the next step
    end      the last step is done
    raised   a UserCodeError is on its way up; `closed`: it has left the connection's `with` statement
    forked   a child was forked and has ended: its exit status
    log      what the library logged

A vector is written as its products with a few directions (`Probes`): sums of vectors can be compared without keeping
them.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PROBES: Final = 4


class Probes:
    """Directions by which vectors are compared: ones, whose product is the sum, and random signs.

    A difference in one element shows along all of them. One in several along each random one at least half the time.
    """

    def __init__(self, elements: int, seed: int) -> None:
        signs = np.random.default_rng([seed, 7]).choice([-1.0, 1.0], size=(PROBES, elements))
        signs[0] = 1.0
        self._signs = signs

    def of(self, vector: NDArray[Any]) -> list[float]:
        return [float(value) for value in self._signs @ vector.astype(np.float64)]


class Journal:
    """A worker's journal, to append to. Each line is on disk before the worker goes on, so that SIGKILL loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line. `at` is the machine's monotonic clock."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "at": time.monotonic(), **fields}) + "\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a journal, or none where there is no file. A last line that was cut off is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def digest(vector: NDArray[np.float32]) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()[:32]


def norm(vector: NDArray[Any]) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
