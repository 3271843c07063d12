# SPDX-License-Identifier: Apache-2.0
"""Datagrams of one size, sorted out by the batch: which of them are plain RESULTs, so that nobody looks at each.

    row                                                                         goes to
    RESULT for this worker (replies.py), lacking, of an all-reduce in
    progress and with its op: the first of its position                         `taken`
    ... another of that position, or one that is held (not only as zeros)       `copies`: counted as duplicate
    anything else: early, in place of zeros, another op, refused, STALE, STATE  `single`: `Worker.receive_datagram`

What is sorted out stays right while the batch is worked off: RESULTs of one size neither submit nor fail anything, and
a single one concerns no position that is in `taken`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.ledger import Ledger
from hopsum.protocol.worker_state import HELD, AllReduce, Membership
from hopsum.wire import HOPSUM_BYTES, WIRE_VERSION, Kind, Op, down_bytes
from hopsum.wire._layout import HOPSUM_DTYPE

ROWS_LEAST: Final = 4
"""In fewer rows than these there is nothing to win."""
_DOWN_BYTES: Final = np.array([down_bytes(op) if op in set(Op) else -1 for op in range(256)], np.int64)


class Part(NamedTuple):
    """RESULTs to be taken that came one behind the other, all of one all-reduce; arrays are in the order they came."""

    reduce: AllReduce
    positions: NDArray[np.int64]
    contributors: NDArray[np.uint64]
    values: NDArray[np.uint8]
    """uint8[n, down_bytes(op)], of the rows."""


class Batch(NamedTuple):
    """Rows, sorted out."""

    rows: NDArray[np.uint8]
    positions: NDArray[np.int64]
    """[rows], right where a row is in `taken`; so are these two."""
    contributors: NDArray[np.uint64]
    owner: NDArray[np.int64]
    """[rows], which of `active`."""
    active: list[AllReduce]
    taken: NDArray[np.int64]
    """Row numbers, rising."""
    single: list[int]
    """Row numbers, rising."""
    copies: int

    def taken_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the row numbers in `taken` of rows start..stop-1."""
        first, end = self.taken.searchsorted([start, stop]).tolist()
        return self.taken[first:end]

    def parts(self, numbers: NDArray[np.int64]) -> list[Part]:
        """Return rows, at least one, by all-reduce; in the order of their last rows: so they become complete."""
        owners = self.owner[numbers]
        if (owners == owners[0]).all():
            return [self._part(int(owners[0]), numbers)]
        last = {owner: at for at, owner in enumerate(owners.tolist())}
        return [self._part(owner, numbers[owners == owner]) for owner in sorted(last, key=last.__getitem__)]

    def _part(self, owner: int, numbers: NDArray[np.int64]) -> Part:
        rows = self.rows if len(numbers) == len(self.rows) else self.rows[numbers]
        values = rows[:, HOPSUM_BYTES:]
        return Part(self.active[owner], self.positions[numbers], self.contributors[numbers], values)


def sort_out(rows: NDArray[np.uint8], own: Membership, ledger: Ledger) -> Batch:
    """Sort out datagrams for a worker.

    Args:
        rows: uint8[n, bytes], C-contiguous, one datagram a row, in the order in which they came.
    """
    slots, end = ledger.stream.slots, ledger.stream.end
    headers = rows.view(_record(rows.shape[1]))["hopsum"][:, 0]
    valid = _is_result(headers, rows.shape[1] - HOPSUM_BYTES, own)
    positions = (headers["round"].astype(np.int64) - 1) * slots + headers["slot"]
    contributors = headers["contributors"].astype(np.uint64)
    active = list(ledger.active)
    owner = np.searchsorted([reduce.first for reduce in active], positions, side="right") - 1
    lacking, held = np.zeros(len(rows), np.bool_), valid & (positions < end)
    for number in np.unique(owner[held]).tolist():
        if number < 0:
            continue  # before all that are in progress: delivered
        reduce = active[number]
        inside = np.flatnonzero((owner == number) & (positions < reduce.end) & held)
        state = reduce.held[positions[inside] - reduce.first]
        lacking[inside] = (state == 0) & (headers["op"][inside] == reduce.op)
        held[inside] = state == HELD
    candidates = np.flatnonzero(lacking)
    taken = candidates[_first_of_each(positions[candidates])]
    single = np.flatnonzero(~(lacking | held)).tolist()
    return Batch(rows, positions, contributors, owner, active, taken, single, len(rows) - len(single) - len(taken))


def _is_result(headers: NDArray[Any], payload_bytes: int, own: Membership) -> NDArray[np.bool_]:
    """Return [n]: `split_datagram` and `position_of` (replies.py) take it as a RESULT."""
    everybody = np.uint64((1 << own.workers) - 1)
    contributors = headers["contributors"]
    valid: NDArray[np.bool_] = (
        (headers["version"] == WIRE_VERSION)
        & (headers["kind"] == Kind.RESULT)
        & (headers["epoch"] == own.epoch)
        & (headers["worker"] == own.rank)
        & (headers["length"] == payload_bytes)
        & (_DOWN_BYTES[headers["op"]] == payload_bytes)
        & (contributors >= 1)
        & (contributors <= everybody)
        & (headers["slot"] < own.slots)
        & (headers["round"] >= 1)  # one beyond the last of an epoch names no position that is in `taken` or `copies`
    )
    return valid


def _first_of_each(positions: NDArray[np.int64]) -> NDArray[Any] | slice:
    """Return what selects the first of every position, in the order in which they are."""
    if (positions[1:] > positions[:-1]).all():
        return slice(None)
    return np.sort(np.unique(positions, return_index=True)[1])


@cache
def _record(datagram_bytes: int) -> np.dtype[Any]:
    return np.dtype([("hopsum", HOPSUM_DTYPE), ("payload", "u1", (datagram_bytes - HOPSUM_BYTES,))])
