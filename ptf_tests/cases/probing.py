# SPDX-License-Identifier: Apache-2.0
"""PROBE and STATE: what a slot copy holds, for workers and observers; asking changes nothing."""

from __future__ import annotations

from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.case_places import make_observer
from hopsum_ptf.frames import PAYLOAD_AT, altered, lanes32, payload, probe, resized, update
from hopsum_wire import Drop, Flag, Op, State


class EmptySlot(SwitchCase):
    """Nothing has been there: EMPTY, whichever round and slot is asked about."""

    def runTest(self) -> None:
        job = self.job(2)
        for asker in job.spec.workers:
            for slot, round_ in ((0, 1), (3, 2), (1, 2**32 - 1)):
                self.holds(job, asker, State.EMPTY, slot=slot, round=round_)
        self.added(job, 0, lanes32(1))


class FromEmptyToComplete(SwitchCase):
    """Everybody sees the same copy fill; STATE has no payload, and the count of the PROBE means nothing."""

    def runTest(self) -> None:
        job = self.job(3)
        zero, one, two = job.spec.workers
        self.added(job, 2, lanes32(1))
        for asker in (zero, one, two):
            self.holds(job, asker, State.COLLECTING, held=1, by=[2], count=0xFFFF)
        self.added(job, 0, lanes32(1))
        self.holds(job, one, State.COLLECTING, held=1, by=[0, 2])
        self.completed(job, 1, lanes32(1))
        self.holds(job, one, State.FINAL, held=1, by=[0, 1, 2])
        self.holds(job, one, State.EMPTY, round=2)


class OperationOfTheRound(SwitchCase):
    """STATE names the operation of the round, as its first packet did."""

    def runTest(self) -> None:
        job = self.job(2, **TABLES)
        for round_, op in enumerate(self.operations, 1):
            self.added(job, 0, payload(op, 1), op=op, round=round_)
            self.holds(job, job.spec.workers[1], State.COLLECTING, held=round_, by=[0], op=op, round=round_)
            self.completed(job, 1, payload(op, 1), op=op, round=round_)


class OlderAndNewerRounds(SwitchCase):
    """A round names its copy by its parity; the answer says which round that holds."""

    def runTest(self) -> None:
        job = self.job(2)
        asker = job.spec.workers[1]
        self.added(job, 0, lanes32(1), round=5)
        # Odd rounds are in one copy of a slot, even ones in the other (N2).
        for round_ in (1, 3, 5, 7, 2**32 - 1):
            self.holds(job, asker, State.COLLECTING, held=5, by=[0], round=round_)
        for round_ in (2, 4, 6):
            self.holds(job, asker, State.EMPTY, round=round_)


class LeftoversOfAnotherGeneration(SwitchCase):
    """What the job before left in the slot is not this job's: EMPTY."""

    def runTest(self) -> None:
        before = self.job(2)
        self.added(before, 0, lanes32(1))
        self.completed(before, 1, lanes32(1))
        self.added(before, 0, lanes32(1), round=2)
        self.end_job(before)
        job = self.job(2)
        self.assertEqual(job.slot_base, before.slot_base)
        # S2: a copy with the tag of another generation is empty.
        for round_ in (1, 2):
            self.holds(job, job.spec.workers[0], State.EMPTY, round=round_)
        self.refused(0, probe(before, before.spec.workers[0]), Drop.UNKNOWN_GENERATION)


class LateWorkersAreNotInTheSum(SwitchCase):
    """Contributors, not who was seen."""

    def runTest(self) -> None:
        job = self.job(3, quorum=2)
        self.added(job, 0, lanes32(1))
        self.completed(job, 2, lanes32(1))
        self.answered(job, 1, lanes32(1))
        # STATE words an error about the sum (P2), so it names the workers in the sum. Worker 1 was only seen.
        self.holds(job, job.spec.workers[1], State.FINAL, held=1, by=[0, 2])


class AskingChangesNothing(SwitchCase):
    """PROBEs between all packets of a round, of both copies and of strangers' rounds; the sums are as without."""

    def runTest(self) -> None:
        job = self.job(3)
        for round_ in (1, 2, 3):
            for rank in range(3):
                for asked in (round_, round_ + 1, round_ + 2):
                    self.state(job, job.spec.workers[rank], round=asked)
                if rank < 2:
                    self.added(job, rank, lanes32(rank + 1), round=round_)
            self.assert_lanes(self.completed(job, 2, lanes32(3), round=round_), 6)
            self.assert_lanes(self.answered(job, 0, lanes32(1), round=round_), 6)


class FromAnObserver(SwitchCase):
    """Somebody who is no worker asks about any slot, and is answered at its own address and port."""

    def runTest(self) -> None:
        observers = (make_observer(), make_observer(rank=65535, port=2))
        job = self.job(2)
        for observer in observers:
            self.observe(job, observer)
        self.added(job, 1, lanes32(1), slot=3)
        for observer in observers:
            self.holds(job, observer, State.COLLECTING, held=1, by=[1], slot=3)
            self.holds(job, observer, State.EMPTY, slot=2)
        self.completed(job, 0, lanes32(1), slot=3)
        for observer in observers:
            self.holds(job, observer, State.FINAL, held=1, by=[0, 1], slot=3)


class ObserversMayOnlyAsk(SwitchCase):
    """Their UPDATEs are dropped, whatever they are, and close nothing."""

    def runTest(self) -> None:
        observer = make_observer()
        job = self.job(2, table=tuple(range(16)))
        self.observe(job, observer)
        self.added(job, 0, lanes32(1))
        # OBSERVER comes before all checks of the payload and of the round.
        for op in (Op.ADD32, Op.LOOKUP_ADD8, Op.LOOKUP_ADD16, Op.OR):
            for flags in (0, Flag.FLUSH):
                frame = update(job, observer, payload(op, 1), op=op, flags=flags)
                self.refused(observer.port, frame, Drop.OBSERVER)
        self.refused(observer.port, update(job, observer, b"\xff" * 1024, op=Op.MAX32), Drop.OBSERVER)
        self.holds(job, observer, State.COLLECTING, held=1, by=[0])


class RefusedQuestions(SwitchCase):
    """A PROBE passes the same checks as an UPDATE, and has no flag, no operation and no payload."""

    def runTest(self) -> None:
        job, observer = self.job(2), make_observer()
        self.observe(job, observer)
        for asker in (job.spec.workers[0], observer):
            good, port = probe(job, asker), asker.port
            refusals: tuple[tuple[dict[str, int], Drop], ...] = (
                ({"version": 2}, Drop.BAD_VERSION),
                ({"flags": 1}, Drop.BAD_FLAGS),
                ({"flags": 2}, Drop.BAD_FLAGS),
                ({"op": Op.ADD32}, Drop.BAD_OP),
                ({"op": 9}, Drop.BAD_OP),
                ({"length": 1024}, Drop.BAD_LENGTH),
                ({"generation": job.generation + 1}, Drop.UNKNOWN_GENERATION),
                ({"worker": 66}, Drop.UNKNOWN_WORKER),
                ({"slot": job.slots}, Drop.BAD_SLOT),
                ({"round": 0}, Drop.BAD_ROUND),
            )
            for fields, reason in refusals:
                self.refused(port, altered(good, "hopsum", **fields), reason)
            self.refused(port, resized(good, bytes(1024)), Drop.BAD_LENGTH)
            self.refused(port, altered(good, "udp", length=41), Drop.BAD_LENGTH)
            self.refused(port, altered(good, "ipv4", checksum=1), Drop.BAD_CHECKSUM)
            self.refused(port, good[: PAYLOAD_AT - 1], Drop.TRUNCATED)
            self.refused(port ^ 1, good, Drop.WRONG_PORT)
            self.refused(port, altered(good, "ipv4", src=0x0A000909), Drop.WRONG_SOURCE)
            self.refused(port, altered(good, "udp", src_port=9), Drop.WRONG_SOURCE)
            self.holds(job, asker, State.EMPTY)


class ForeignAskers(SwitchCase):
    """Nobody asks for a rank that is another's, and no job's observer asks about another job."""

    def runTest(self) -> None:
        one, two, observer = self.job(2), self.job(2), make_observer()
        self.observe(one, observer)
        self.observe(two, make_observer(job=1, rank=65))
        self.refused(7, altered(probe(one, observer), "hopsum", generation=two.generation), Drop.UNKNOWN_WORKER)
        self.refused(
            7, altered(probe(one, observer), "hopsum", generation=two.generation, worker=65), Drop.WRONG_SOURCE
        )
        self.refused(0, altered(probe(one, one.spec.workers[0]), "hopsum", worker=64), Drop.WRONG_PORT)
        self.refused(7, altered(probe(one, observer), "hopsum", worker=0), Drop.WRONG_PORT)


class PaddedQuestion(SwitchCase):
    """Bytes behind the PROBE do not come back."""

    def runTest(self) -> None:
        job = self.job(1)
        ((_, reply),) = self.send(0, probe(job, job.spec.workers[0]) + b"trailer")
        self.assertEqual(len(reply), PAYLOAD_AT)
