# SPDX-License-Identifier: Apache-2.0
"""Trees of switches: a leaf closes its rounds and sends partial sums up, a spine completes them and answers leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum_controlplane.job_spec import Job, ParentEndpoint
from hopsum_oracle.switch_config import TREE_OPS
from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.case_places import make_leaf, make_parent, make_workers
from hopsum_ptf.frames import (
    PAYLOAD_AT,
    altered,
    codes,
    from_relative,
    hopsum_header,
    lanes32,
    payload,
    payload_of,
    resized,
    update,
)
from hopsum_ptf.port_links import OutputFrame
from hopsum_wire import Drop, Event, Flag, Kind, Op, State, down_bytes
from hopsum_wire.payload import lanes as lanes_of
from hopsum_wire.payload import pack_codes

FLUSH = Flag.FLUSH
CODES = Op.LOOKUP_ADD_LOOKUP4
TABLE = tuple(range(0, 32, 2))


class TreeCase(SwitchCase):
    """The base of leaf and spine cases: sends packets, each with the events that it must cause, and checks answers."""

    def leaf_job(self, workers: int = 2, *, first: int = 0, total: int = 4, **options: Any) -> Job:
        """Make the job of a leaf: consecutive ranks from `first` on, the spine behind port 7."""
        members = tuple(replace(one, rank=first + one.rank) for one in make_workers(workers, ports=range(7)))
        return self.job(members, parent=make_parent(first, workers=total), **options)

    def spine_job(self, *below: Iterable[int], workers: int = 0, **options: Any) -> Job:
        """Make the job of a spine: a leaf for each of `below`, behind ports 1, 2, ..., numbered by its first rank."""
        ranks = [tuple(members) for members in below]
        leaves = tuple(make_leaf(members[0], members, port=1 + at) for at, members in enumerate(ranks))
        return self.job(make_workers(workers), leaves=leaves, **options)

    def send_partial(
        self, job: Job, number: int, values: bytes, by: Iterable[int], *events: Event, **header: int
    ) -> list[OutputFrame]:
        """Send a PARTIAL of leaf `number`, require these events, and return the frames that left."""
        leaf = next(leaf for leaf in job.spec.leaves if leaf.number == number)
        outputs = self.send(leaf.port, from_relative(job, leaf, Kind.PARTIAL, values, by=by, **header))
        self.assertEqual(self.outcome.events, events)
        return outputs

    def send_result(
        self, job: Job, values: bytes, by: Iterable[int], *events: Event, **header: int
    ) -> list[OutputFrame]:
        """Send a RESULT of the parent, require these events, and return the frames that left."""
        frame = from_relative(job, self.parent(job), Kind.RESULT, values, by=by, **header)
        outputs = self.send(self.parent(job).port, frame)
        self.assertEqual(self.outcome.events, events)
        return outputs

    def send_checked_update(
        self, job: Job, rank: int, values: bytes, *events: Event, **header: int
    ) -> list[OutputFrame]:
        """Send an UPDATE of a worker, require these events, and return the frames that left."""
        worker = next(worker for worker in job.spec.workers if worker.rank == rank)
        outputs = self.send(worker.port, self.update_of(job, rank, values, **header))
        self.assertEqual(self.outcome.events, events)
        return outputs

    def update_of(self, job: Job, rank: int, values: bytes, **header: int) -> bytes:
        """Return the frame of a worker's UPDATE."""
        return update(job, rank, values, **header)

    def parent(self, job: Job) -> ParentEndpoint:
        """Return the parent of a leaf's job."""
        assert job.spec.parent is not None
        return job.spec.parent

    def assert_partial_sent(
        self, job: Job, outputs: list[OutputFrame], by: Iterable[int], *, op: int = Op.ADD32, flags: int = 0
    ) -> NDArray[Any]:
        """Check that `outputs` is one PARTIAL to the parent, with the ranks `by` as contributors. Return its lanes."""
        ((port, frame),) = outputs
        header = hopsum_header(frame)
        self.assertEqual(
            (port, header.kind, header.worker), (self.parent(job).port, Kind.PARTIAL, self.parent(job).number)
        )
        self.assertEqual((header.contributors, header.flags, header.op), (_bits(by), flags, op))
        return lanes_of(op, np.frombuffer(payload_of(frame), np.uint8))

    def assert_result_sent(
        self, job: Job, outputs: list[OutputFrame], by: Iterable[int], *, op: int = Op.ADD32
    ) -> NDArray[Any]:
        """Check that `outputs` are a RESULT of the ranks `by` to every worker and leaf of the job. Return its lanes."""
        children = [
            *((one.port, one.rank) for one in job.spec.workers),
            *((one.port, one.number) for one in job.spec.leaves),
        ]
        headers = [(port, hopsum_header(frame)) for port, frame in outputs]
        self.assertEqual(sorted((port, header.worker) for port, header in headers), sorted(children))
        said = {(header.kind, header.contributors, header.flags, header.op) for _, header in headers}
        self.assertEqual(said, {(Kind.RESULT, _bits(by), 0, op)})
        return lanes_of(op, np.frombuffer(payload_of(outputs[0].frame), np.uint8))


class LeafSendsItsSumUp(TreeCase):
    """The last worker below a leaf: one PARTIAL to the parent, nothing to the workers; STATE says CLOSED."""

    def runTest(self) -> None:
        job = self.leaf_job(3, first=4, total=8)
        self.assertEqual(self.send_checked_update(job, 4, lanes32(1), Event.ADDED), [])
        self.send_checked_update(job, 6, lanes32(10), Event.ADDED)
        outputs = self.send_checked_update(job, 5, lanes32(100), Event.ADDED, Event.CLOSED)
        # T4: the parent knows the leaf by its first rank, and takes the contributors from the packet.
        self.assert_lanes(self.assert_partial_sent(job, outputs, (4, 5, 6)), 111)
        self.holds(job, job.spec.workers[0], State.CLOSED, held=1, by=(4, 5, 6))


class LeafPassesTheResultDown(TreeCase):
    """The parent's RESULT: to all workers, with the final contributors; late and repeated UPDATEs get it again."""

    def runTest(self) -> None:
        job = self.leaf_job()
        self.send_checked_update(job, 0, lanes32(1), Event.ADDED)
        self.assert_partial_sent(job, self.send_checked_update(job, 1, lanes32(2), Event.ADDED, Event.CLOSED), (0, 1))
        # T1: from here on the leaf answers with the final values and contributors.
        outputs = self.send_result(job, lanes32(77), range(4), Event.TAKEN)
        self.assert_lanes(self.assert_result_sent(job, outputs, range(4)), 77)
        ((_, frame),) = self.send_checked_update(job, 1, lanes32(2), Event.ANSWERED)
        self.assertEqual(hopsum_header(frame).contributors, 0b1111)
        self.holds(job, job.spec.workers[0], State.FINAL, held=1, by=range(4))
        # T2: a leaf that has the final result of the round takes no other.
        self.assertEqual(self.send_result(job, lanes32(77), range(4), Event.KNOWN), [])


class ClosedLeafSendsAgain(TreeCase):
    """A repeated UPDATE, of any worker, with or without FLUSH: the same PARTIAL, with that packet's FLUSH."""

    def runTest(self) -> None:
        job = self.leaf_job(3, quorum=2)
        self.send_checked_update(job, 0, lanes32(1), Event.ADDED)
        self.send_checked_update(job, 1, lanes32(2), Event.ADDED, Event.CLOSED)
        # T3: the spine may lack the partial sum, so every packet of the closed round sends it again.
        for rank, flags in ((0, 0), (1, FLUSH), (2, 0), (2, FLUSH)):
            outputs = self.send_checked_update(job, rank, lanes32(1), Event.RESENT, flags=flags)
            self.assert_lanes(self.assert_partial_sent(job, outputs, (0, 1), flags=flags), 3)


class ClosedLeafAddsNobody(TreeCase):
    """However it closed: a worker that was not there yet makes it send the same bytes again, and nothing is added."""

    def runTest(self) -> None:
        job = self.leaf_job(3, quorum=2)
        late, added, closed = job.spec.workers[2], (Event.ADDED,), (Event.ADDED, Event.CLOSED)
        ways = {
            "its quorum is in": (((0, 0), added), ((1, 0), closed)),
            "FLUSH in the first packet": (((0, FLUSH), closed),),
            "FLUSH in another one": (((0, 0), added), ((1, FLUSH), closed)),
            "FLUSH in a duplicate": (((0, 0), added), ((0, FLUSH), (Event.CLOSED,))),
        }
        for slot, way in enumerate(ways.values()):
            for (rank, flags), events in way:
                first = self.send_checked_update(job, rank, lanes32(1 + rank), *events, slot=slot, flags=flags)
            inside = {rank for (rank, _), _ in way}
            self.assert_lanes(
                self.assert_partial_sent(job, first, inside, flags=flags), sum(1 + rank for rank in inside)
            )
            # S4 and T3: a closed copy takes nothing more. The bytes must be those that the spine may have added.
            for rank in (2, 2, 0):
                again = self.send_checked_update(job, rank, lanes32(1 + rank), Event.RESENT, slot=slot, flags=flags)
                self.assertEqual(again, first)
            self.holds(job, late, State.CLOSED, held=1, by=inside, slot=slot)


class ResultOfARoundThatIsOpen(TreeCase):
    """It comes before the leaf's workers: theirs are answered with it, and never added (T1)."""

    def runTest(self) -> None:
        job = self.leaf_job()
        self.send_checked_update(job, 0, lanes32(5), Event.ADDED)
        self.assert_result_sent(job, self.send_result(job, lanes32(9), (2, 3), Event.TAKEN), (2, 3))
        # The contributors are those of the RESULT: the worker that asks is not among them.
        ((_, frame),) = self.send_checked_update(job, 1, lanes32(5), Event.ANSWERED)
        self.assertEqual(hopsum_header(frame).contributors, 0b1100)
        self.assert_result_sent(job, self.send_result(job, lanes32(8), (2,), Event.TAKEN, round=2), (2,))
        ((_, frame),) = self.send_checked_update(job, 0, lanes32(5), Event.ANSWERED, round=2)
        self.assertEqual(payload_of(frame), lanes32(8))


class LateResultOfAnOlderRound(TreeCase):
    """It is not taken for the round that the slot holds by now (T2); a newer one over an open round is a fault."""

    def runTest(self) -> None:
        job = self.leaf_job()
        self.send_checked_update(job, 0, lanes32(1), Event.ADDED, round=3)
        self.assertEqual(self.send_result(job, lanes32(9), range(4), Event.KNOWN, round=1), [])
        self.assert_partial_sent(
            job, self.send_checked_update(job, 1, lanes32(2), Event.ADDED, Event.CLOSED, round=3), (0, 1)
        )
        # Round 3 has no result yet, so no correct tree has one of round 5 (W1): the switch counts a fault.
        self.assert_result_sent(
            job, self.send_result(job, lanes32(9), (2, 3), Event.FAULT, Event.TAKEN, round=5), (2, 3)
        )
        self.send_checked_update(job, 0, lanes32(1), Event.STALE, round=3)


class FlushGoesUp(TreeCase):
    """A flushed leaf closes at min_quorum, with its first packet or a duplicate, and its PARTIAL has the flag."""

    def runTest(self) -> None:
        job = self.leaf_job(3, min_quorum=2)
        self.send_checked_update(job, 0, lanes32(1), Event.ADDED, flags=FLUSH)
        # S8: the flag travels on, so that the spine may close at its own min_quorum.
        outputs = self.send_checked_update(job, 1, lanes32(2), Event.ADDED, Event.CLOSED, flags=FLUSH)
        self.assert_partial_sent(job, outputs, (0, 1), flags=FLUSH)
        for rank in (0, 1):
            self.send_checked_update(job, rank, lanes32(1), Event.ADDED, slot=1)
        self.assert_partial_sent(
            job, self.send_checked_update(job, 0, lanes32(1), Event.CLOSED, slot=1, flags=FLUSH), (0, 1), flags=FLUSH
        )


class LookupsHappenOnceOnTheWay(TreeCase):
    """Codes become lanes at the leaf; PARTIAL and RESULT carry lanes under the same operation."""

    def runTest(self) -> None:
        leaf = self.leaf_job(table=TABLE)
        lookup = int(Op.LOOKUP_ADD8)
        self.send_checked_update(leaf, 0, codes(3), Event.ADDED, op=lookup)
        outputs = self.send_checked_update(leaf, 1, codes(15), Event.ADDED, Event.CLOSED, op=lookup)
        self.assert_lanes(self.assert_partial_sent(leaf, outputs, (0, 1), op=lookup), TABLE[3] + TABLE[15])
        sums = payload(Op.ADD8, 99)
        self.assert_lanes(
            self.assert_result_sent(
                leaf, self.send_result(leaf, sums, range(4), Event.TAKEN, op=lookup), range(4), op=lookup
            ),
            99,
        )
        spine = self.spine_job((0, 1), (2, 3))
        # A spine must not look up again: its leaves have done so, and lanes are no codes.
        self.send_partial(spine, 0, payload(Op.ADD8, 200), (0, 1), Event.ADDED, op=lookup)
        outputs = self.send_partial(spine, 2, payload(Op.ADD8, 50), (2, 3), Event.ADDED, Event.COMPLETED, op=lookup)
        self.assert_lanes(self.assert_result_sent(spine, outputs, range(4), op=lookup), 250)


class StaleIsPassedDown(TreeCase):
    """As it came, to every worker; the leaf's copies stay as they are."""

    def runTest(self) -> None:
        job = self.leaf_job()
        self.send_checked_update(job, 0, lanes32(1), Event.ADDED)
        above = self.parent(job)
        stale = from_relative(job, above, Kind.STALE, by=(2, 3), round=1, held=3)
        outputs = self.send(above.port, stale)
        self.assertEqual(self.outcome.events, (Event.RELAYED,))
        said = [hopsum_header(frame) for _, frame in outputs]
        self.assertEqual(sorted(header.worker for header in said), [0, 1])
        self.assertEqual(
            {(h.kind, h.round, h.held, h.contributors, h.length) for h in said}, {(Kind.STALE, 1, 3, 0b1100, 0)}
        )
        # T6 saves a timeout of the workers, and changes no register.
        self.holds(job, job.spec.workers[0], State.COLLECTING, held=1, by=(0,))


class SpineCompletesWithItsLeaves(TreeCase):
    """Contributors are the workers in the partial sums; RESULT goes to every leaf, to its service's port."""

    def runTest(self) -> None:
        job = self.spine_job((0, 1, 2), (3, 4), (63,))
        # T4: the bit of a leaf is that of its first rank. 63 is the top bit of the bitmap.
        self.send_partial(job, 3, lanes32(10), (3, 4), Event.ADDED)
        self.send_partial(job, 0, lanes32(1), (0, 2), Event.ADDED)
        outputs = self.send_partial(job, 63, lanes32(100), (63,), Event.ADDED, Event.COMPLETED)
        self.assert_lanes(self.assert_result_sent(job, outputs, (0, 2, 3, 4, 63)), 111)


class SpineAnswersItsLeaves(TreeCase):
    """A second partial sum changes nothing, with any contributors: ignored, answered if complete, STALE if older."""

    def runTest(self) -> None:
        job = self.spine_job((0, 1), (2, 3))
        self.send_partial(job, 0, lanes32(1), (0,), Event.ADDED)
        # Another partial sum of the same leaf may have more workers in it. Only the first one counts (T4).
        self.assertEqual(self.send_partial(job, 0, lanes32(3), (0, 1), Event.DUPLICATE), [])
        outputs = self.send_partial(job, 2, lanes32(10), (2, 3), Event.ADDED, Event.COMPLETED)
        self.assert_lanes(self.assert_result_sent(job, outputs, (0, 2, 3)), 11)
        ((port, frame),) = self.send_partial(job, 2, lanes32(10), (2, 3), Event.ANSWERED)
        header = hopsum_header(frame)
        self.assertEqual((port, header.worker, header.contributors), (2, 2, 0b1101))
        self.send_partial(job, 2, lanes32(5), (2,), Event.ADDED, round=3)
        ((port, frame),) = self.send_partial(job, 0, lanes32(5), (1,), Event.STALE, round=1)
        self.assertEqual((port, hopsum_header(frame).held), (1, 3))


class SpineWithAWorkerOfItsOwn(TreeCase):
    """Children of both kinds count alike; FLUSH of a leaf closes at the spine's min_quorum."""

    def runTest(self) -> None:
        job = self.spine_job((8, 9), (4, 5), workers=1, min_quorum=2)
        self.send_partial(job, 8, lanes32(1), (8, 9), Event.ADDED, flags=FLUSH)
        outputs = self.send_checked_update(job, 0, lanes32(10), Event.ADDED)
        self.assertEqual(outputs, [])
        outputs = self.send_partial(job, 8, lanes32(1), (8, 9), Event.COMPLETED, flags=FLUSH)
        self.assert_lanes(self.assert_result_sent(job, outputs, (0, 8, 9)), 11)


class AMiddleSwitchHasBoth(TreeCase):
    """Leaves below and a parent above: partial sums of partial sums go up, the result goes down to the leaves."""

    def runTest(self) -> None:
        leaves = (make_leaf(0, (0, 1), port=1), make_leaf(2, (2, 3), port=2))
        job = self.job((), leaves=leaves, parent=make_parent(0, workers=8))
        self.send_partial(job, 2, lanes32(2), (2, 3), Event.ADDED)
        outputs = self.send_partial(job, 0, lanes32(1), (1,), Event.ADDED, Event.CLOSED)
        self.assert_lanes(self.assert_partial_sent(job, outputs, (1, 2, 3)), 3)
        self.assert_result_sent(job, self.send_result(job, lanes32(50), range(8), Event.TAKEN), range(8))


class StrangersToTheTree(TreeCase):
    """PARTIAL, RESULT and STALE are kinds of relatives: refused of anybody else, and of them at the wrong place."""

    def runTest(self) -> None:
        leaf, spine, flat = self.leaf_job(), self.spine_job((0, 1), (2, 3)), self.job(2)
        above, below = self.parent(leaf), spine.spec.leaves[0]
        result = from_relative(leaf, above, Kind.RESULT, lanes32(1), by=range(4))
        partial = from_relative(spine, below, Kind.PARTIAL, lanes32(1), by=(0, 1))
        # A job without relatives refuses the kind before it looks at the sender.
        for frame, port in ((result, above.port), (partial, below.port)):
            self.refused(port, altered(frame, "hopsum", generation=flat.generation), Drop.BAD_KIND)
            self.refused(port + 8 & 7 ^ 1, frame, Drop.WRONG_PORT)
            self.refused(port, altered(frame, "ipv4", src=1), Drop.WRONG_SOURCE)
            self.refused(port, altered(frame, "udp", src_port=9), Drop.WRONG_SOURCE)
            self.refused(port, altered(frame, "hopsum", slot=4), Drop.BAD_SLOT)
            self.refused(port, altered(frame, "hopsum", round=0), Drop.BAD_ROUND)
            self.refused(port, altered(frame, "hopsum", op=0), Drop.BAD_OP)
            self.refused(port, frame[:-1], Drop.TRUNCATED)
        self.refused(below.port, altered(partial, "hopsum", kind=int(Kind.RESULT)), Drop.BAD_KIND)
        self.refused(above.port, altered(result, "hopsum", kind=int(Kind.PARTIAL)), Drop.BAD_KIND)
        self.refused(above.port, altered(result, "hopsum", flags=FLUSH), Drop.BAD_FLAGS)
        self.refused(below.port, altered(partial, "hopsum", worker=1), Drop.BAD_KIND)


class WhoMayBeInAPartialSum(TreeCase):
    """Somebody, and nobody but the workers below that leaf; and no top bit under MAX32."""

    def runTest(self) -> None:
        job = self.spine_job((0, 1), (2, 3))
        below = job.spec.leaves[0]
        # A contributor below another leaf could be counted twice.
        for by in ((), (2,), (0, 1, 2), (0, 63)):
            self.refused(below.port, from_relative(job, below, Kind.PARTIAL, lanes32(1), by=by), Drop.BAD_CONTRIBUTORS)
        top = from_relative(job, below, Kind.PARTIAL, payload(Op.MAX32, 1 << 31), by=(0,), op=Op.MAX32)
        self.refused(below.port, top, Drop.BAD_VALUE)
        self.send_partial(job, 0, lanes32(1), (1,), Event.ADDED)


class EveryOperationInATree(TreeCase):
    """Sum, maximum and union of partial sums, at the spine, each under its own operation."""

    def runTest(self) -> None:
        job = self.spine_job((0, 1), (2, 3), table4=TABLES["table4"])
        wide = {Op.LOOKUP_ADD8: Op.ADD8, Op.LOOKUP_ADD16: Op.ADD16, CODES: Op.ADD8}
        # The sum 11 is the code 9: nine thresholds, from 36 to 68 in steps of 4, are at most 69.
        others = {Op.OR: 7, Op.MAX32: 6, CODES: 9}
        for round_, (op, expected) in enumerate(((op, others.get(op, 11)) for op in Op if op in TREE_OPS), 1):
            lane_op = wide.get(op, op)
            self.send_partial(job, 0, payload(lane_op, 5), (0, 1), Event.ADDED, op=op, round=round_)
            outputs = self.send_partial(
                job, 2, payload(lane_op, 6), (2, 3), Event.ADDED, Event.COMPLETED, op=op, round=round_
            )
            self.assert_lanes(self.assert_result_sent(job, outputs, range(4), op=op), expected)


class ResultsOfCodesInATree(TreeCase):
    """PARTIAL has sums. The root looks them up again; a leaf keeps the codes that come down, and passes them on."""

    def runTest(self) -> None:
        self.require(CODES)
        rng = np.random.default_rng(8)
        table, codes_up = TABLES["table4"], rng.integers(0, 16, (4, 1024), dtype=np.uint8)
        values, thresholds = np.asarray(table[:16]), table[16:]
        leaves = [self.leaf_job(first=first, table4=table) for first in (0, 2)]
        root = self.spine_job((0, 1), (2, 3), table4=table)
        for first, leaf in zip((0, 2), leaves, strict=True):
            self.send_checked_update(leaf, first, codes(codes_up[first]), Event.ADDED, op=CODES)
            outputs = self.send_checked_update(
                leaf, first + 1, codes(codes_up[first + 1]), Event.ADDED, Event.CLOSED, op=CODES
            )
            sums = values[codes_up[first : first + 2]].sum(axis=0)
            up = self.assert_partial_sent(leaf, outputs, (first, first + 1), op=CODES)
            self.assert_lanes(up.view(np.int8), sums)
            self.assertEqual(len(outputs[0].frame), PAYLOAD_AT + 1024)
            done = (Event.ADDED, Event.COMPLETED) if first else (Event.ADDED,)
            outputs = self.send_partial(root, first, up.tobytes(), (first, first + 1), *done, op=CODES)
        expected = np.searchsorted(thresholds, values[codes_up].sum(axis=0) + 128 >> 1, side="right")
        self.assert_lanes(self.assert_result_sent(root, outputs, range(4), op=CODES), expected)
        down = payload_of(outputs[0].frame)
        again = self.send_partial(root, 0, bytes(1024), (0,), Event.ANSWERED, op=CODES)
        self.assertEqual(payload_of(again[0].frame), down)
        for first, leaf in zip((0, 2), leaves, strict=True):
            outputs = self.send_result(leaf, down, range(4), Event.TAKEN, op=CODES)
            self.assert_lanes(self.assert_result_sent(leaf, outputs, range(4), op=CODES), expected)
            again = self.send_checked_update(leaf, first, codes(codes_up[first]), Event.ANSWERED, op=CODES)
            self.assertEqual({payload_of(output.frame) for output in (*outputs, *again)}, {down})


class CodesOfARoundThatALeafDoesNotKnow(TreeCase):
    """The parent's RESULT opens a round at a leaf: its codes are kept, and answered to a latecomer."""

    def runTest(self) -> None:
        self.require(CODES)
        leaf = self.leaf_job(table4=TABLES["table4"])
        down = pack_codes((np.arange(1024) * 7 // 3 % 16).astype(np.uint8)).tobytes()
        self.send_result(leaf, down, range(4), Event.TAKEN, op=CODES)
        outputs = self.send_checked_update(leaf, 1, codes(3), Event.ANSWERED, op=CODES)
        self.assertEqual(payload_of(outputs[0].frame), down)
        self.send_result(leaf, down, range(4), Event.KNOWN, op=CODES)


class RootWithoutThresholds(TreeCase):
    """A root without a table for them adds sums that come up. What completes them is dropped and counted."""

    def runTest(self) -> None:
        self.require(CODES)
        root = self.spine_job((0, 1), (2, 3))
        self.send_partial(root, 0, payload(Op.ADD8, 5), (0, 1), Event.ADDED, op=CODES)
        last = from_relative(root, root.spec.leaves[1], Kind.PARTIAL, payload(Op.ADD8, 6), by=(2, 3), op=CODES)
        for _ in range(2):
            self.refused(root.spec.leaves[1].port, last, Drop.NO_TABLE)
        self.send_partial(root, 0, payload(Op.ADD8, 5), (0, 1), Event.ADDED, op=Op.ADD8, round=2)


class SumsAndCodesOfTheOtherSize(TreeCase):
    """A PARTIAL of codes, a RESULT of sums, a RESULT of codes of another operation, one that is cut: dropped.

    Trees have no sums that become codes of 3 or 2 bits: BAD_OP.
    """

    def runTest(self) -> None:
        self.require(CODES)
        table = TABLES["table4"]
        leaf, root = self.leaf_job(table4=table), self.spine_job((0, 1), (2, 3), table4=table)
        above, below = self.parent(leaf), root.spec.leaves[0]
        short, long = bytes(range(256)) * 2, bytes(1024)
        for op, values in ((CODES, long), (Op.LOOKUP_ADD8, short), (Op.ADD32, short)):
            result = from_relative(leaf, above, Kind.RESULT, values, by=range(4), op=op)
            self.refused(above.port, result, Drop.BAD_LENGTH)
        partial = from_relative(root, below, Kind.PARTIAL, short, by=(0,), op=CODES)
        self.refused(below.port, partial, Drop.BAD_LENGTH)
        right = from_relative(leaf, above, Kind.RESULT, short, by=range(4), op=CODES)
        self.refused(above.port, right[:-1], Drop.TRUNCATED)
        for op in (0, 8, 10, 11, 12):
            self.refused(above.port, altered(right, "hopsum", op=op), Drop.BAD_OP)
            self.refused(below.port, altered(resized(partial, long), "hopsum", op=op), Drop.BAD_OP)
        for op in (Op.LOOKUP_ADD_LOOKUP3, Op.LOOKUP_ADD_LOOKUP2):
            result = from_relative(leaf, above, Kind.RESULT, bytes(down_bytes(op)), by=range(4), op=op)
            self.refused(above.port, result, Drop.BAD_OP)
            self.refused(above.port, from_relative(leaf, above, Kind.STALE, op=op, held=3), Drop.BAD_OP)
            worker = leaf.spec.workers[0]
            self.refused(worker.port, update(leaf, 0, payload(op, 1), op=op), Drop.NO_TABLE)
        wrong = resized(update(leaf, 0, codes(1), op=CODES), bytes(768))
        self.refused(leaf.spec.workers[0].port, wrong, Drop.BAD_LENGTH)
        self.assert_result_sent(leaf, self.send(above.port, right), range(4), op=CODES)


def _bits(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks)
