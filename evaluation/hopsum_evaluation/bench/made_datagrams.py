# SPDX-License-Identifier: Apache-2.0
"""Datagrams with codes of a whole job, made before the clock starts, and the RESULTs that they must bring.

Round r of a slot carries payload variant r mod VARIANTS. With three variants neither the sum of the round before, nor
that of two rounds before, which the switch keeps in the same copy, passes for the right sum. Only the round number is
stamped while the clock runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.simulate import simulate_switch
from hopsum_wire import HOPSUM_BYTES, Header, Kind, Op, down_bytes, up_bytes
from hopsum_wire._layout import HOPSUM_DTYPE
from hopsum_wire.datagrams import stamp_datagrams, update_template
from hopsum_wire.payload import SHAPES

VARIANTS: Final = 3
CODES: Final = SHAPES[Op.LOOKUP_ADD8].elements
"""Codes of a datagram, of LOOKUP_ADD8 and of all operations that look sums up again."""
_WORDS: Final = HOPSUM_BYTES // 8


@dataclass(frozen=True, slots=True)
class Pool:
    """The datagrams of a job's workers in all variants.

    op: one with codes.
    updates: uint8[workers, VARIANTS * slots, update_bytes], headers stamped but for the round.
    sums: uint64[VARIANTS * slots, words], the payloads of the RESULTs as they lie in memory.
    """

    generation: int
    slots: int
    op: Op
    updates: NDArray[np.uint8]
    sums: NDArray[np.uint64]

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.updates)

    @property
    def update_bytes(self) -> int:
        """Bytes of an UPDATE datagram."""
        return HOPSUM_BYTES + up_bytes(self.op)

    @property
    def result_bytes(self) -> int:
        """Bytes of a RESULT datagram."""
        return HOPSUM_BYTES + down_bytes(self.op)


def table_of_codes(op: Op, workers: int) -> tuple[int, ...]:
    """Return a table of an operation that looks sums up again: values that fill a lane, and even thresholds."""
    count = 1 << SHAPES[op].code_bits
    most = 127 // workers
    values = np.linspace(-most, most, count).round().astype(int)
    thresholds = np.linspace(0, 128, count, endpoint=False).astype(int)[1:]
    return (*values.tolist(), *thresholds.tolist())


def make_pool(
    generation: int, workers: int, slots: int, table: tuple[int, ...], seed: int, op: Op = Op.LOOKUP_ADD8
) -> Pool:
    """Draw the datagrams of a job with random codes, and sum them by its lookup table. Return both as a pool.

    `table` is that of operation `op`.
    """
    rng = np.random.default_rng(seed)
    count = VARIANTS * slots
    payloads = [rng.integers(0, 256, (count, up_bytes(op)), dtype=np.uint8) for _ in range(workers)]
    sums, _ = simulate_switch(op, payloads, table)
    return Pool(generation, slots, op, stamp_pool(generation, slots, op, payloads), sums.view(np.uint64))


def stamp_pool(generation: int, slots: int, op: Op, payloads: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return datagrams, uint8[workers, VARIANTS * slots, bytes]: headers of round 1 before the payloads.

    `payloads` has one array of [VARIANTS * slots, bytes] a worker.
    """
    numbers = np.tile(np.arange(slots), VARIANTS)
    return np.stack(
        [
            stamp_datagrams(
                update_template(op=op, generation=generation, worker=rank),
                slots=numbers, rounds=1, counts=CODES, payloads=payload,
            )
            for rank, payload in enumerate(payloads)
        ]
    )  # fmt: skip


def row_of(slots: NDArray[np.int64], rounds: NDArray[np.int64], slots_of_job: int) -> NDArray[np.int64]:
    """Return the rows of a pool's arrays that have these rounds of these slots. A job has `slots_of_job` slots."""
    rows: NDArray[np.int64] = rounds % VARIANTS * slots_of_job + slots
    return rows


def headers_of(datagrams: NDArray[np.uint8]) -> NDArray[Any]:
    """Return a view of the headers of uint8[n, bytes] as [n] of HOPSUM_DTYPE. Writes to it change the datagrams."""
    headers: NDArray[Any] = datagrams[:, :HOPSUM_BYTES].view(HOPSUM_DTYPE)[:, 0]
    return headers


class WrongResultError(Exception):
    """A RESULT differs from what the workers sent: the figures would be worthless."""


class Checker:
    """The check of one worker's RESULTs against the sums of a pool, in every header field and every lane."""

    def __init__(self, pool: Pool, rank: int) -> None:
        header = Header(
            kind=Kind.RESULT, op=pool.op, generation=pool.generation, worker=rank, count=CODES,
            contributors=(1 << pool.workers) - 1, length=down_bytes(pool.op),
        )  # fmt: skip
        # Fields with all bits set here may have any value. The rest must be equal to those of `header`.
        anything = Header(kind=0, version=0, op=0, slot=0xFFFF, round=0xFFFFFFFF, length=0)
        self._pool = pool
        self._fixed = np.frombuffer(header.pack(), np.uint64)
        self._mask = ~np.frombuffer(anything.pack(), np.uint64)

    def check(self, results: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Compare RESULT datagrams, uint8[n, result_bytes]. Return their slots and rounds.

        Raises WrongResultError: a field or a lane is wrong.
        """
        headers = headers_of(results)
        slots, rounds = headers["slot"].astype(np.int64), headers["round"].astype(np.int64)
        words = results.view(np.uint64)
        header_ok = not ((words[:, :_WORDS] ^ self._fixed) & self._mask).any()
        if not header_ok or int(slots.max(initial=0)) >= self._pool.slots:
            raise WrongResultError(f"a RESULT's header is not the job's: {self._first_wrong(results)}")
        expected = self._pool.sums.take(row_of(slots, rounds, self._pool.slots), axis=0)
        if not np.array_equal(words[:, _WORDS:], expected):
            row = int(np.flatnonzero((words[:, _WORDS:] != expected).any(axis=1))[0])
            raise WrongResultError(f"the sum of slot {slots[row]}, round {rounds[row]} is not numpy's")
        return slots, rounds

    def _first_wrong(self, results: NDArray[np.uint8]) -> Header:
        words = results.view(np.uint64)[:, :_WORDS]
        wrong = ((words ^ self._fixed) & self._mask).any(axis=1)
        row = int(np.argmax(wrong)) if wrong.any() else int(headers_of(results)["slot"].argmax())
        return Header.unpack(results[row].tobytes())
