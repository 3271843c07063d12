# SPDX-License-Identifier: Apache-2.0
"""Admitted senders: rank, port and source address must be one worker's of a live generation."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import altered, lanes32, update
from hopsum_wire import Drop


class UnknownWorker(SwitchCase):
    """Ranks that the job does not have."""

    def runTest(self) -> None:
        job = self.job(3)
        for rank in (3, 63, 64, 256, 0xFFFF):
            self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", worker=rank), Drop.UNKNOWN_WORKER)


class WrongPort(SwitchCase):
    """Right in everything, but through another port."""

    def runTest(self) -> None:
        job = self.job(2)
        for port in (1, 2, 7):
            self.refused(port, update(job, 0, lanes32(1)), Drop.WRONG_PORT)
        self.added(job, 0, lanes32(1))


class WrongSourceAddress(SwitchCase):
    """Another IPv4 source: a neighbouring one, another worker's."""

    def runTest(self) -> None:
        job = self.job(9)
        good = update(job, 0, lanes32(1))
        for source in (0x0A000101 ^ 1, 0x0A000101 ^ 1 << 31, 0x0A000109, 0):
            self.refused(0, altered(good, "ipv4", src=source), Drop.WRONG_SOURCE)
        self.added(job, 0, lanes32(1))


class WrongSourcePort(SwitchCase):
    """Another UDP source port."""

    def runTest(self) -> None:
        job = self.job(2)
        good = update(job, 0, lanes32(1))
        for source in (job.spec.workers[0].udp_port + 1, 0, 24677):
            self.refused(0, altered(good, "udp", src_port=source), Drop.WRONG_SOURCE)
        self.added(job, 0, lanes32(1))


class RankOfANeighbour(SwitchCase):
    """Two workers behind one port: one cannot speak for the other."""

    def runTest(self) -> None:
        job = self.job(9)
        self.assertEqual(job.spec.workers[0].port, job.spec.workers[8].port)
        self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", worker=8), Drop.WRONG_SOURCE)
        self.added(job, 8, lanes32(1))
        self.added(job, 0, lanes32(1))


class SourceMacDoesNotMatter(SwitchCase):
    """Workers may sit behind a router: replies go to the address of the table."""

    def runTest(self) -> None:
        job = self.job(1)
        frame = altered(update(job, 0, lanes32(1)), "ethernet", src=0x02_AA_BB_CC_DD_EE, dst=0x02_11_22_33_44_55)
        # The destination MAC does not matter either: the IPv4 address and the UDP port name the service.
        ((port, reply),) = self.send(0, frame)
        self.assertEqual((port, reply[:6].hex(":")), (0, job.spec.workers[0].mac))


class FirstFailingCheckCounts(SwitchCase):
    """A packet with everything wrong is counted once, under the first reason; mended step by step, the next."""

    def runTest(self) -> None:
        job = self.job(2, slots=4)
        frame = update(job, 1, lanes32(2**31), slot=9, round=0)
        frame = altered(frame, "ipv4", src=1)
        frame = altered(frame, "hopsum", generation=job.generation + 7, worker=40, version=7, kind=9, flags=3, op=99)
        frame = altered(frame, "udp", length=3)
        frame = altered(frame, "ipv4", checksum=0xDEAD)
        # port, reason, and what mends it
        steps: tuple[tuple[int, Drop, str, dict[str, int]], ...] = (
            (0, Drop.BAD_CHECKSUM, "ipv4", {"src": 1}),
            (0, Drop.BAD_VERSION, "hopsum", {"version": 1}),
            (0, Drop.BAD_KIND, "hopsum", {"kind": 1}),
            (0, Drop.BAD_FLAGS, "hopsum", {"flags": 0}),
            (0, Drop.BAD_OP, "hopsum", {"op": 7}),
            (0, Drop.BAD_LENGTH, "udp", {"length": 8 + 32 + 1024}),
            (0, Drop.UNKNOWN_GENERATION, "hopsum", {"generation": job.generation}),
            (0, Drop.UNKNOWN_WORKER, "hopsum", {"worker": 1}),
            (0, Drop.WRONG_PORT, "hopsum", {}),
            (1, Drop.WRONG_SOURCE, "ipv4", {"src": 0x0A000102}),
            (1, Drop.BAD_SLOT, "hopsum", {"slot": 0}),
            (1, Drop.BAD_ROUND, "hopsum", {"round": 1}),
            (1, Drop.BAD_VALUE, "hopsum", {"op": 5}),
        )
        # The order of the checks is part of the protocol: the counters tell an operator what to mend first.
        for port, reason, header, repair in steps:
            self.refused(port, frame, reason)
            frame = altered(frame, header, **repair)
        self.assertEqual(self.send(1, frame), [])
        self.assert_lanes(self.completed(job, 0, lanes32(1)), 2**31 + 1)
