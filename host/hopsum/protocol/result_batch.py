# SPDX-License-Identifier: Apache-2.0
"""Batches of datagrams of one size, sorted: plain RESULTs are taken together, without a look at each.

    row                                                                         goes to
    RESULT for this worker (result_acceptor.py), lacking, of an all-reduce in
    progress and with its op: the first of its position                         `taken`
    ... another of that position, or one that is held                           `copies`: counted as duplicate
    anything else: early, another op, refused, STALE, STATE                     `single`: `Worker.receive_datagram`

What is sorted out stays right while the batch is worked off: RESULTs of one size neither submit nor fail anything, and
a single one concerns no position that is in `taken`.

A batch is mostly all of one kind, and small: what its calls cost is what a RESULT costs. So `plain_run` looks for just
this first: RESULTs of one all-reduce in the order of the stream, each the one that its slot waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.retransmit_queue import Transmissions
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import AllReduce, Membership, is_run
from hopsum_wire import HOPSUM_BYTES, WIRE_VERSION, Flag, Kind, Op, down_bytes
from hopsum_wire._layout import HOPSUM_DTYPE, HOPSUM_FIELDS

ROWS_LEAST: Final = 4
"""The least rows of a batch. With fewer rows there is nothing to win."""
_HEADER_WORDS: Final = HOPSUM_BYTES // 8
_OP_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "op")
# numpy shifts uint64 by uint64 only: a Python int would make the result float64 or object.
_ONE: Final = np.uint64(1)
_DOWN_BYTES: Final = np.array([down_bytes(op) if op in set(Op) else -1 for op in range(256)], np.int64)


class ResultRun(NamedTuple):
    """A run of consecutive RESULTs of one all-reduce, in arrival order."""

    reduce: AllReduce
    positions: NDArray[np.int64]
    contributors: NDArray[np.uint64]
    values: NDArray[np.uint8]
    """uint8[n, down_bytes(op)], of the rows."""


class ResultBatch(NamedTuple):
    """Rows, sorted out."""

    rows: NDArray[np.uint8]
    positions: NDArray[np.int64]
    """[rows], right where a row is in `taken`, as the next two are."""
    contributors: NDArray[np.uint64]
    owner: NDArray[np.int64]
    """[rows], which of `active`."""
    active: list[AllReduce]
    taken: NDArray[np.int64]
    """Row numbers, rising."""
    single: list[int]
    """Row numbers, rising."""
    copies: int

    def steps(self) -> Iterator[tuple[NDArray[np.int64], int | None]]:
        """Yield in order row numbers in `taken`, perhaps none, and the single row behind them, in the end None."""
        cuts = self.taken.searchsorted(self.single).tolist()
        for start, stop, single in zip([0, *cuts], [*cuts, len(self.taken)], [*self.single, None], strict=True):
            yield self.taken[start:stop], single

    def runs(self, numbers: NDArray[np.int64]) -> list[ResultRun]:
        """Return rows, at least one, by all-reduce, in the order of their last rows, in which they become complete."""
        owners = self.owner[numbers]
        if (owners == owners[0]).all():
            return [self._part(int(owners[0]), numbers)]
        last = {owner: at for at, owner in enumerate(owners.tolist())}
        return [self._part(owner, numbers[owners == owner]) for owner in sorted(last, key=last.__getitem__)]

    def _part(self, owner: int, numbers: NDArray[np.int64]) -> ResultRun:
        rows = self.rows if len(numbers) == len(self.rows) else self.rows[numbers]
        values = rows[:, HOPSUM_BYTES:]
        return ResultRun(self.active[owner], self.positions[numbers], self.contributors[numbers], values)


def plain_run(rows: NDArray[np.uint8], own: Membership, state: StreamState) -> ResultRun | None:
    """Return the whole batch as one run, if all of it is to be taken and no slot comes twice, or else None.

    Args:
        rows: as for `sort_out`, at least one.
    """
    words, op = rows.view(np.uint64)[:, :_HEADER_WORDS] if rows.shape[1] % 8 == 0 else None, int(rows[0, _OP_AT])
    if words is None or _DOWN_BYTES[op] != rows.shape[1] - HOPSUM_BYTES:
        return None
    pattern = result_pattern(own, op)
    if ((words ^ pattern[:_HEADER_WORDS]) & pattern[_HEADER_WORDS:]).any():
        return None
    headers = rows.view(_record(rows.shape[1]))["hopsum"][:, 0]
    slots = headers["slot"].astype(np.int64)
    positions = headers["round"].astype(np.int64) * own.slots + slots + (state.stream.base - own.slots)
    contributors = headers["contributors"].astype(np.uint64)
    reduce = state.find(int(positions[0]))
    if reduce is None or reduce.op != op or positions[-1] >= reduce.end or slots.max() >= own.slots:
        return None
    rising = (positions[1:] > positions[:-1]).all()
    awaited = (state.open_position[slots] == positions).all()  # so not held; and then rising ones are of other slots
    if not (rising and awaited) or (contributors - _ONE >= np.uint64((1 << own.workers) - 1)).any():  # 0 wraps
        return None
    return ResultRun(reduce, positions, contributors, rows[:, HOPSUM_BYTES:])


def sort_out(rows: NDArray[np.uint8], own: Membership, state: StreamState) -> ResultBatch:
    """Sort out datagrams for a worker.

    Args:
        rows: uint8[n, bytes], C-contiguous, one datagram a row, in the order in which they came.
    """
    slots, end = state.stream.slots, state.stream.end
    headers = rows.view(_record(rows.shape[1]))["hopsum"][:, 0]
    valid = _is_result(headers, rows.shape[1] - HOPSUM_BYTES, own)
    positions = headers["round"].astype(np.int64) * slots + headers["slot"] + (state.stream.base - slots)
    contributors = headers["contributors"].astype(np.uint64)
    active = list(state.active)
    owner = np.searchsorted([reduce.first for reduce in active], positions, side="right") - 1
    lacking, held = np.zeros(len(rows), np.bool_), valid & (positions < end)
    for number in np.unique(owner[held]).tolist():
        if number < 0:
            continue  # before all that are in progress: delivered
        reduce = active[number]
        inside = np.flatnonzero((owner == number) & (positions < reduce.end) & held)
        marks = reduce.held[positions[inside] - reduce.first]
        lacking[inside] = ~marks & (headers["op"][inside] == reduce.op)
        held[inside] = marks
    candidates = np.flatnonzero(lacking)
    taken = candidates[_first_of_each(positions[candidates])]
    single = np.flatnonzero(~(lacking | held)).tolist()
    copies = len(rows) - len(single) - len(taken)
    return ResultBatch(rows, positions, contributors, owner, active, taken, single, copies)


def _is_result(headers: NDArray[Any], payload_bytes: int, own: Membership) -> NDArray[np.bool_]:
    """Return [n]: `split_datagram` and `validate_reply` (result_acceptor.py) take it as a RESULT."""
    everybody = np.uint64((1 << own.workers) - 1)
    contributors = headers["contributors"]
    valid: NDArray[np.bool_] = (
        (headers["version"] == WIRE_VERSION)
        & (headers["kind"] == Kind.RESULT)
        & (headers["generation"] == own.generation)
        & (headers["worker"] == own.rank)
        & (headers["length"] == payload_bytes)
        & (_DOWN_BYTES[headers["op"]] == payload_bytes)
        & (contributors >= 1)
        & (contributors <= everybody)
        & (headers["slot"] < own.slots)
        & (
            headers["round"] >= 1
        )  # one beyond the last of a generation names no position that is in `taken` or `copies`
    )
    return valid


def _first_of_each(positions: NDArray[np.int64]) -> NDArray[Any] | slice:
    """Return an index of the first row of each position, in the order of the rows."""
    if (positions[1:] > positions[:-1]).all():
        return slice(None)
    return np.sort(np.unique(positions, return_index=True)[1])


def result_pattern(own: Membership, op: int) -> NDArray[np.uint64]:
    """Return the words of a RESULT's header for this worker, and behind them which bits of these words count."""
    return _pattern(own.generation, own.rank, op)


@cache
def _pattern(generation: int, rank: int, op: int) -> NDArray[np.uint64]:
    both = np.zeros(2, HOPSUM_DTYPE)
    values = {"version": WIRE_VERSION, "kind": Kind.RESULT, "op": op, "worker": rank, "generation": generation}
    for name, value in {**values, "length": down_bytes(op)}.items():
        both[name] = value, np.iinfo(HOPSUM_DTYPE[name]).max
    return both.view(np.uint64)


@cache
def _record(datagram_bytes: int) -> np.dtype[Any]:
    return np.dtype([("hopsum", HOPSUM_DTYPE), ("payload", "u1", (datagram_bytes - HOPSUM_BYTES,))])


# UPDATEs as GSO segments: datagrams of equal size, one a row, which a link sends in one call.
#
# Rows
#     positions                                     rows
#     consecutive, of one all-reduce                a part of its datagrams as they were stamped, no copy
#     of one all-reduce, with gaps (after losses)   a copy
#     with FLUSH                                    a copy: the flag is not among the bytes that W2 freezes


# FLUSH is the only bit of an UPDATE that changes between transmissions (W2, S8).
_FLAGS_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "flags")


def segments_of(transmissions: Transmissions, active: Sequence[AllReduce]) -> Iterator[NDArray[np.uint8]]:
    """Yield read-only uint8[n, bytes], one datagram a row, in the order of `transmissions`.

    Args:
        transmissions: at least one, positions of all-reduces in `active`.
        active: all-reduces in progress, in the order of the stream.
    """
    positions, flush = transmissions
    first, last = int(positions.min()), int(positions.max())
    reduce = next(each for each in active if first < each.end)
    if last < reduce.end and not flush.any():
        yield _rows(reduce.datagrams, positions - reduce.first, flush=False)
        return
    owner = np.searchsorted([reduce.first for reduce in active], positions, side="right") - 1
    cuts = np.flatnonzero((owner[1:] != owner[:-1]) | (flush[1:] != flush[:-1])) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        reduce = active[owner[start]]
        yield _rows(reduce.datagrams, positions[start:stop] - reduce.first, flush=bool(flush[start]))


def _rows(datagrams: NDArray[np.uint8], index: NDArray[np.int64], *, flush: bool) -> NDArray[np.uint8]:
    if is_run(index) and not flush:
        return datagrams[index[0] : index[-1] + 1]
    rows = datagrams[index]
    if flush:
        rows[:, _FLAGS_AT] |= np.uint8(Flag.FLUSH)
    rows.flags.writeable = False
    return rows
