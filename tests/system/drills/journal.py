# SPDX-License-Identifier: Apache-2.0
"""The journals of workers: one JSON object a line, written while they train and read by the drill::

    life     a process, or a later life of it, has joined: generation, whether as a newcomer, its first step
    begin    before an all-reduce: the gradient
    step     after it: what was applied, who contributed, what the error feedback holds, the digest of the model
    failed   an all-reduce that has no result: the error, and whether its vector was given back (`taken`)
    void     the same where workers were replaced: the training continues with the next step
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
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .drill import Check

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
    """A worker's journal, to append to. Each line is on disk before the worker continues: SIGKILL loses none."""

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


# The law of mass. In every step each participant writes the content of its error feedback before and after. It
# delivered the difference and its gradient. Along every direction of the journals, in float64:
#
#     sum over participants (before + gradient - after) + deliveries of ranks that ended = contributors * applied
#
# A rank that ended in the middle of a step, dead or evicted, may have contributed to it: its bit is set. What it
# delivered is what the law lacks then, and must be its gradient and residual up to an error of quantisation. All ranks
# quantise to one range, the largest worker's, so the survivors' residuals say how large that error is. What the ended
# rank's error feedback held, by its last line, is lost, and nothing else may be. An all-reduce without a result
# delivers nothing. Nor does a result that only ranks took which were evicted with it: they forget it with their model,
# and the others, who have their vectors back, sum them again.

# For the rounding of float32, which every element goes through several times: an error of one in 10^5 of the norms of
# what was sent. A contribution that is missing or there twice is an error of about 1.
TOLERANCE: Final = 1e-5
QUANTISATION: Final = 5.0
"""Error of one contribution along one direction, against the norm of a survivor's error of quantisation, at most.

An error of norm s with independent elements has the standard deviation s along a direction of signs.
"""

Entry = Mapping[str, Any]
Journals = Mapping[int, Sequence[Entry]]


def replicas_equal(journals: Journals) -> Check:
    """Compare the digests of the model, and the contributors, after every step that several ranks have done."""
    by_step: dict[int, list[tuple[int, Entry]]] = defaultdict(list)
    for rank, entries in journals.items():
        for entry in entries:
            if entry["kind"] == "step":
                by_step[entry["step"]].append((rank, entry))
    compared = 0
    for step, found in sorted(by_step.items()):
        for what in ("digest", "contributors"):
            if any(entry[what] != found[0][1][what] for _, entry in found):
                ranks = ", ".join(str(rank) for rank, _ in found)
                return Check(False, f"step {step}: ranks {ranks} have different {what}")
        compared += len(found) > 1
    if not compared:
        return Check(False, "no step was done by two ranks: nothing was compared")
    return Check(True, f"the same model and contributors on all ranks after each of {compared} steps")


@dataclass
class Mass:
    """The balance of all gradients of a job."""

    error: float = 0.0
    """The largest violation of the law, against the norms of what was sent in that step."""
    lost_norms: dict[int, float] = field(default_factory=dict)
    """The norms of the error feedback that died with a worker, by rank."""
    trouble: str = ""
    steps: int = 0

    @property
    def check(self) -> Check:
        if self.trouble or not self.steps:
            return Check(False, self.trouble or "no step was done")
        lost = ", ".join(f"rank {rank} (norm {norm:.4g})" for rank, norm in sorted(self.lost_norms.items()))
        told = f"largest error of {self.steps} steps {self.error:.1e}, {TOLERANCE:g} allowed; "
        return Check(self.error <= TOLERANCE, told + (f"lost with {lost}" if lost else "nothing lost"))


@dataclass
class _Part:
    """One rank's contribution to one step."""

    rank: int
    before: NDArray[np.float64]
    gradient: NDArray[np.float64]
    size: float
    after: NDArray[np.float64] | None = None
    """None where its life ended in the middle."""
    entry: Entry | None = None
    """The entry of a step that has a result for it."""
    forgotten: bool = False
    """The life ended before the last step, so the model that had applied the result is gone."""


class _Life:
    """One rank's journal, from line to line."""

    def __init__(self, rank: int, found: Mass) -> None:
        self._rank, self._found = rank, found
        self._open: tuple[int, _Part] | None = None
        self._parts: list[_Part] = []
        self._residual: NDArray[np.float64] = np.zeros(PROBES)
        self._begin()

    def take(self, entry: Entry) -> Iterator[tuple[int, _Part]]:
        """Take the next line. Yield the part that it ends, with its step."""
        kind = entry["kind"]
        if kind == "life":
            yield from self.end(again=True)
            self._begin()
            self._held = True
        elif kind == "begin":
            self._open = entry["step"], _Part(self._rank, self._residual, np.array(entry["gradient"]), entry["size"])
            self._parts.append(self._open[1])
        elif kind in ("step", "void", "failed"):
            self._residual, self._norm = np.array(entry["residual"]), entry["residual_norm"]
            self._failed = kind == "failed"
            if self._open is not None and (kind == "step" or entry["taken"]):
                self._open[1].after = self._residual
                self._open[1].entry = entry if kind == "step" else None
                if self._failed:
                    return
                yield self._open
            self._open = None
        elif kind == "end":
            self._held = False

    def end(self, *, again: bool = False) -> Iterator[tuple[int, _Part]]:
        """Note what is lost with a life that did not come to its end. Yield the part that it was in.

        One whose last all-reduce failed has its error feedback still, unless it begins anew, `again`.
        """
        if self._held and (again or not self._failed):
            lost = self._found.lost_norms
            lost[self._rank] = math.hypot(lost.get(self._rank, 0.0), self._norm)
            for part in self._parts:
                part.forgotten = True
        if self._open is not None:
            if again:
                self._open[1].after = None
            yield self._open

    def _begin(self) -> None:
        self._residual, self._norm, self._held = np.zeros(PROBES), 0.0, False
        self._open = None
        self._parts = []
        self._failed = False


def mass(journals: Journals) -> Mass:
    """Follow every gradient of all ranks, step by step, and check the law of mass."""
    found = Mass()
    by_step: dict[int, list[_Part]] = defaultdict(list)
    for rank, entries in journals.items():
        life = _Life(rank, found)
        for entry in entries:
            for step, part in life.take(entry):
                by_step[step].append(part)
        for step, part in life.end():
            by_step[step].append(part)
    for step, parts in sorted(by_step.items()):
        trouble = _step(found, parts)
        if trouble and not found.trouble:
            found.trouble = f"step {step}: {trouble}"
    return found


def _step(found: Mass, parts: list[_Part]) -> str:
    """Check the law for one step. Return what is wrong beyond its error, which `found` takes."""
    parts = _without_forgotten_results(parts)
    results = [part.entry for part in parts if part.entry is not None]
    bits, applied = 0, np.zeros(PROBES)
    if results:
        found.steps += 1
        applied = np.array(results[0]["applied"])
        bits = int(np.bitwise_or.reduce(np.array(results[0]["contributors"], np.uint64)))
    present = {part.rank for part in parts}
    absent = [rank for rank in range(bits.bit_length()) if bits >> rank & 1 and rank not in present]
    if absent:
        return f"contributions of ranks {absent}, which had not begun it"
    again = {part.rank for part in parts if part.entry is not None}  # the contribution is that of the later life
    ended = [part for part in parts if part.after is None and bits >> part.rank & 1 and part.rank not in again]
    delivered = np.zeros(PROBES)
    for part in parts:
        if part.after is not None:
            delivered += part.before + part.gradient - part.after
    lacking = applied - delivered
    if not ended:
        found.error = max(found.error, float(np.abs(lacking).max()) / max(sum(part.size for part in parts), 1e-30))
        return ""
    left = sum((part.before + part.gradient for part in ended), np.zeros(PROBES)) - lacking
    if np.abs(left).max() > QUANTISATION * len(ended) * _quantisation_norm(parts):
        return f"rank {ended[0].rank} ended in it, and what it has not delivered is more than an error of quantisation"
    return ""


def _without_forgotten_results(parts: list[_Part]) -> list[_Part]:
    """Return the parts of a step without those that took a result which no rank has that is still there.

    Where another rank has the result too, or took part and has not its vector back, all parts count.
    """
    taken = [part for part in parts if part.entry is not None]
    others = [part for part in parts if part.entry is None]
    if not others or not all(part.forgotten for part in taken):
        return parts
    return others


def _quantisation_norm(parts: list[_Part]) -> float:
    """Return the largest norm of what quantisation left to a rank that has the step's result.

    A rank that missed a chunk holds that chunk whole: such a rank counts only where no other has the result.
    """
    results = [(part.rank, part.entry) for part in parts if part.entry is not None]
    whole = [entry for rank, entry in results if all(bits >> rank & 1 for bits in entry["contributors"])]
    return float(max(entry["residual_norm"] for entry in whole or [entry for _, entry in results]))
