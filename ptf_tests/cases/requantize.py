# SPDX-License-Identifier: Apache-2.0
"""Results that are codes: LOOKUP_ADD_LOOKUP4, 3 and 2 sum in lanes of 8 bits, and look the finished sums up again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum_controlplane import Job
from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.frames import PAYLOAD_AT, lanes32, payload, payload_of, resized, update
from hopsum_wire import Drop, Event, Flag, Op, State, up_bytes
from hopsum_wire.payload import SHAPES

OPS = {Op.LOOKUP_ADD_LOOKUP4: "table4", Op.LOOKUP_ADD_LOOKUP3: "table3", Op.LOOKUP_ADD_LOOKUP2: "table2"}
"""The operations of these cases, and the names of their tables."""
TABLES_OF_MANY = {
    "table4": (*[0] * 15, 1, *range(36, 96, 4)),
    "table3": (*[0] * 7, 1, *range(40, 96, 8)),
    "table2": (0, 0, 0, 1, 50, 65, 77),
}
"""Tables that the controller takes for any number of workers."""
FLUSH = Flag.FLUSH


def thresholds_of(rng: np.random.Generator, bits: int) -> tuple[int, ...]:
    """Draw thresholds for codes of so many bits. Some may be equal."""
    return tuple(sorted(rng.integers(1, 128, (1 << bits) - 1).tolist()))


def codes_of(sums: NDArray[np.int64], thresholds: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the codes of sums: how many thresholds are at most the upper seven bits of the biased sum."""
    found: NDArray[np.int64] = np.sum((sums[:, None] + 128) >> 1 >= np.asarray(thresholds), axis=1)
    return found


class _Requantized(SwitchCase):
    """What these cases say."""

    def values(self, op: Op) -> NDArray[np.int64]:
        """Return the values of the op's codes in TABLES."""
        return np.asarray(TABLES[OPS[op]][: 1 << SHAPES[op].code_bits])

    def expected(self, op: Op, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes of sums by the thresholds in TABLES."""
        return codes_of(sums, TABLES[OPS[op]][1 << SHAPES[op].code_bits :])

    def all_add(self, job: Job, op: Op, codes: NDArray[Any], **header: int) -> NDArray[Any]:
        """All workers send their row of codes. Return the codes of the RESULT."""
        for rank, row in enumerate(codes[:-1]):
            self.added(job, rank, payload(op, row), op=op, **header)
        return self.completed(job, len(codes) - 1, payload(op, codes[-1]), op=op, **header)


class EverySumAndManyThresholds(_Requantized):
    """All sums of -128..127, with thresholds of all kinds. An answer is made anew, by the thresholds of the moment."""

    def runTest(self) -> None:
        rng = np.random.default_rng(42)
        # Workers count a sum out in digits, one value of the table each: the largest values that still fit go first.
        digits = {
            Op.LOOKUP_ADD_LOOKUP4: (4, (0, 1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192)),
            Op.LOOKUP_ADD_LOOKUP3: (12, (0, 1, 4, 16, 64)),
            Op.LOOKUP_ADD_LOOKUP2: (17, (0, 1, 6, 36)),
        }
        for op, name in OPS.items():
            self.require(op)
            (workers, steps), bits = digits[op], SHAPES[op].code_bits
            unsigned = rng.permutation(1024) % 256
            codes, rest = np.zeros((workers, 1024), np.int64), unsigned.copy()
            for row in codes:
                row[:] = np.searchsorted(steps, rest, side="right") - 1
                rest -= np.take(steps, row)
            self.assertFalse(rest.any(), "the workers are too few for these digits")
            values = tuple(step - (step >> 7 << 8) for step in (*steps, *[0] * ((1 << bits) - len(steps))))
            sums = unsigned - (unsigned >> 7 << 8)
            job = self.job(workers, **{name: TABLES_OF_MANY[name]})
            some, count = thresholds_of(rng, bits), (1 << bits) - 1
            self.set_tables(job, **{name: (*values, *some)})
            self.assert_lanes(self.all_add(job, op, codes), codes_of(sums, some))
            even = tuple(range(128 >> bits, 128, 128 >> bits))
            for thresholds in (even, count * (1,), count * (127,), *(thresholds_of(rng, bits) for _ in range(4))):
                self.set_tables(job, **{name: (*values, *thresholds)})
                again = self.answered(job, 0, payload(op, codes[0]), op=op)
                self.assert_lanes(again, codes_of(sums, thresholds))


class EveryCodeInEveryPlace(_Requantized):
    """One worker, all codes in every rotation, values of all kinds of bit patterns, a threshold between any two."""

    def runTest(self) -> None:
        patterns = (-127, -120, -97, -86, -64, -51, -32, -1, 1, 16, 42, 63, 85, 96, 119, 127)
        for op, name in OPS.items():
            self.require(op)
            bits = SHAPES[op].code_bits
            values = np.random.default_rng(bits).permutation(np.asarray(patterns)[:: 1 << (4 - bits)])
            # With each value but the lowest as a threshold, the code of a value is its rank.
            thresholds = (np.sort(values)[1:] + 128) >> 1
            job = self.job(1, **{name: (*values.tolist(), *thresholds.tolist())})
            for rotation in range(1 << bits):
                codes = (np.arange(1024) + np.arange(1024) // 128 + rotation) % (1 << bits)
                found = self.completed(job, 0, payload(op, codes), op=op, round=rotation + 1)
                self.assert_lanes(found, np.argsort(np.argsort(values))[codes])


class SumsOfManyWorkers(_Requantized):
    """2 to 17 workers with random codes of random tables: whatever the controller takes."""

    def runTest(self) -> None:
        rng = np.random.default_rng(7)
        for workers in (2, 3, 5, 9, 17):
            for op, name in OPS.items():
                self.require(op)
                bits, most = SHAPES[op].code_bits, 127 // workers
                values, thresholds = rng.integers(-most, most + 1, 1 << bits), thresholds_of(rng, bits)
                job = self.job(workers, **{name: (*values.tolist(), *thresholds)})
                codes = rng.integers(0, 1 << bits, (workers, 1024))
                sums = values[codes].sum(axis=0)
                self.assert_lanes(self.all_add(job, op, codes), codes_of(sums, thresholds))


class EveryReplyIsOfEqualBytes(_Requantized):
    """Completed, closed by a flush, answered to a duplicate and to a latecomer: equal payloads; STALE has none."""

    def runTest(self) -> None:
        rng = np.random.default_rng(3)
        for op, name in OPS.items():
            self.require(op)
            job = self.job(3, quorum=3, min_quorum=1, **{name: TABLES[name]})
            mine, others = rng.integers(0, 1 << SHAPES[op].code_bits, (2, 1024))
            expected = self.expected(op, self.values(op)[mine] + self.values(op)[others])
            self.added(job, 0, payload(op, mine), op=op)
            self.added(job, 1, payload(op, others), op=op)
            outputs = self.send_update(job, 1, payload(op, others), op=op, flags=FLUSH)
            self.assertEqual(self.outcome.events, (Event.COMPLETED,))
            for rank in (0, 2):
                self.assert_lanes(self.answered(job, rank, payload(op, mine), op=op), expected)
                outputs += self.send_update(job, rank, payload(op, mine), op=op)
            self.assertEqual({payload_of(output.frame) for output in outputs}, {payload(op, expected)})
            self.assertEqual({len(output.frame) for output in outputs}, {PAYLOAD_AT + up_bytes(op)})
            self.holds(job, job.spec.workers[0], State.FINAL, held=1, by=[0, 1], op=op)
            for rank in range(3):
                self.send_update(job, rank, payload(op, rank), op=op, round=3)
            self.stale(job, 2, payload(op, mine), op=op, round=1, held=3)


class TablesOfTwoJobs(_Requantized):
    """Equal codes in two jobs are other sums and other codes; a job without a table drops and counts such packets."""

    def runTest(self) -> None:
        for op, name in OPS.items():
            self.require(op)
            bits = SHAPES[op].code_bits
            turned = (*(-self.values(op)).tolist(), *thresholds_of(np.random.default_rng(5), bits))
            first, second, plain = (self.job(2, **tables) for tables in ({name: TABLES[name]}, {name: turned}, {}))
            codes = np.arange(2048).reshape(2, 1024) * 5 // 3 % (1 << bits)
            sums = self.values(op)[codes].sum(axis=0)
            for job in (first, second):
                self.added(job, 0, payload(op, codes[0]), op=op)
                self.refused(0, update(plain, 0, payload(op, codes[0]), op=op), Drop.NO_TABLE)
                self.refused(1, update(job, 1, lanes32(1)), Drop.OP_MISMATCH)
            for job, table in ((second, turned), (first, TABLES[name])):
                found = self.completed(job, 1, payload(op, codes[1]), op=op)
                own = sums if job is first else -sums
                self.assert_lanes(found, codes_of(own, table[1 << bits :]))


class LookupsOfAllKindsByTurns(_Requantized):
    """A job with all tables: each round by its own operation, and no other one joins it."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLES["table"], **{name: TABLES[name] for name in OPS.values()})
        turns = [op for op in (Op.LOOKUP_ADD8, *OPS) if op in self.operations]
        self.require(Op.LOOKUP_ADD_LOOKUP4)
        for round_ in range(1, 9):
            op, other = (turns[(round_ + more) % len(turns)] for more in (0, 1))
            codes = np.arange(1024) * round_ % (1 << SHAPES[op].code_bits)
            self.added(job, 0, payload(op, codes), op=op, round=round_)
            self.refused(1, update(job, 1, payload(other, 1), op=other, round=round_), Drop.OP_MISMATCH)
            found = self.completed(job, 1, payload(op, codes), op=op, round=round_)
            if op is Op.LOOKUP_ADD8:
                self.assert_lanes(found, 2 * np.take(TABLES["table"], codes))
            else:
                self.assert_lanes(found, self.expected(op, 2 * self.values(op)[codes]))


class CodesOfAnotherSize(_Requantized):
    """Payloads of the other operations, and cut ones; the retired operation, with any payload."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLES["table"], **{name: TABLES[name] for name in OPS.values()})
        for op in OPS:
            self.require(op)
            right = update(job, 0, payload(op, 1), op=op)
            for other in Op:
                if up_bytes(other) != up_bytes(op):
                    self.refused(0, resized(right, bytes(up_bytes(other))), Drop.BAD_LENGTH)
            self.refused(0, right[:-1], Drop.TRUNCATED)
            self.refused(0, resized(right, payload(op, 1)[:-1]), Drop.BAD_LENGTH)
        self.added(job, 0, payload(Op.LOOKUP_ADD_LOOKUP2, 1), op=Op.LOOKUP_ADD_LOOKUP2)
