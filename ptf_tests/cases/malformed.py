# SPDX-License-Identifier: Apache-2.0
"""Packets for the service that are not well formed."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import HOPSUM_AT, PAYLOAD_AT, altered, codes, lanes32, resized, update
from hopsum_wire import Drop, Kind, Op

TABLE = tuple(range(16))


class UnknownVersion(SwitchCase):
    """Another version of the wire format, whatever else the packet says."""

    def runTest(self) -> None:
        job = self.job(2)
        for version in (0, 2, 255):
            self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", version=version), Drop.BAD_VERSION)


class BadKind(SwitchCase):
    """Only UPDATE and PROBE come from a worker."""

    def runTest(self) -> None:
        job = self.job(2)
        for kind in (0, Kind.RESULT, Kind.STALE, Kind.STATE, 6, 255):
            self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", kind=kind), Drop.BAD_KIND)


class BadFlags(SwitchCase):
    """Any bit but FLUSH, with FLUSH or without."""

    def runTest(self) -> None:
        job = self.job(2)
        for flags in (2, 3, 4, 128, 129, 254, 255):
            self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", flags=flags), Drop.BAD_FLAGS)


class Ipv4ChecksumError(SwitchCase):
    """Any wrong checksum, 0 included."""

    def runTest(self) -> None:
        job = self.job(2)
        good = update(job, 0, lanes32(1))
        right = int.from_bytes(good[24:26], "big")
        for checksum in (right ^ 1, right ^ 0x8000, ~right & 0xFFFF, 0):
            self.refused(0, altered(good, "ipv4", checksum=checksum), Drop.BAD_CHECKSUM)
        self.added(job, 0, lanes32(1))


class OtherIpv4FieldsDoNotMatter(SwitchCase):
    """Type of service, identification, time to live: taken as they come, and not handed on."""

    def runTest(self) -> None:
        job = self.job(1)
        frame = altered(update(job, 0, lanes32(1)), "ipv4", tos=0xB8, identification=0x1234, ttl=1, flags=0)
        ((_, reply),) = self.send(0, frame)
        self.assertEqual((reply[15], reply[18:20], reply[20], reply[22]), (0, b"\0\0", 0x40, 64))


class UdpChecksumIsNotLookedAt(SwitchCase):
    """It is for hosts; replies carry none."""

    def runTest(self) -> None:
        job = self.job(1)
        ((_, reply),) = self.send(0, altered(update(job, 0, lanes32(1)), "udp", checksum=0x1234))
        self.assertEqual(reply[40:42], b"\0\0")


class TruncatedPayload(SwitchCase):
    """The frame ends before the payload that its header announces."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        for payload, op in ((lanes32(1), Op.ADD32), (lanes32(1), Op.MAX32), (codes(1), Op.LOOKUP_ADD8)):
            whole = update(job, 0, payload, op=op)
            for size in (PAYLOAD_AT, PAYLOAD_AT + 1, PAYLOAD_AT + 256, PAYLOAD_AT + 511, len(whole) - 1):
                self.refused(0, whole[:size], Drop.TRUNCATED)
        self.added(job, 0, lanes32(1))


class TruncatedHeader(SwitchCase):
    """The frame ends inside the hopsum header, or before it."""

    def runTest(self) -> None:
        job = self.job(2)
        whole = update(job, 0, lanes32(1))
        for size in (HOPSUM_AT, HOPSUM_AT + 1, HOPSUM_AT + 4, PAYLOAD_AT - 1):
            self.refused(0, whole[:size], Drop.TRUNCATED)


class TruncatedBelow(SwitchCase):
    """Without whole IPv4 and UDP headers a frame is not for the service: forwarded, or without a route."""

    def runTest(self) -> None:
        job = self.job(2)
        whole = update(job, 0, lanes32(1))
        station = altered(whole, "ethernet", dst=0x02_00_00_00_01_05)
        # Below the headers of the service the frame is ordinary traffic of layer 2.
        for size in (15, 33, 34, 41):
            self.refused(0, whole[:size], Drop.NO_ROUTE)
            self.forwarded(0, station[:size], [5])


class PaddedFrame(SwitchCase):
    """Bytes behind the datagram (an Ethernet trailer) are nobody's: accepted, and not sent on."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        for rank, trailer in ((0, b"\xff"), (1, bytes(range(200)))):
            frame = update(job, rank, codes(7), op=Op.LOOKUP_ADD8) + trailer
            outputs = self.send(job.spec.workers[rank].port, frame)
        self.assertEqual([len(frame) for _, frame in outputs], [PAYLOAD_AT + 1024] * 2)
        # STALE has no payload: the trailer of its UPDATE must not come back either.
        self.added(job, 0, codes(7), op=Op.LOOKUP_ADD8, round=3)
        outputs = self.send(1, update(job, 1, codes(7), op=Op.LOOKUP_ADD8, round=1) + bytes(20))
        self.assertEqual([len(frame) for _, frame in outputs], [PAYLOAD_AT])


class OversizePayload(SwitchCase):
    """All lengths agree, but the payload is not the operation's."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        wide, narrow = update(job, 0, lanes32(1)), update(job, 0, codes(1), op=Op.LOOKUP_ADD8)
        for frame, sizes in ((wide, (0, 512, 1020, 1025, 1028, 1400)), (narrow, (0, 511, 513, 1024))):
            for size in sizes:
                self.refused(0, resized(frame, bytes(size)), Drop.BAD_LENGTH)
        self.added(job, 0, lanes32(1))


class InconsistentLengths(SwitchCase):
    """IPv4, UDP and hopsum lengths that do not fit each other."""

    def runTest(self) -> None:
        job = self.job(2)
        good = update(job, 0, lanes32(1))
        total, udp = len(good) - 14, len(good) - 34
        for value in (0, 20, total - 1, total + 1, 0xFFFF):
            self.refused(0, altered(good, "ipv4", total_length=value), Drop.BAD_LENGTH)
        for value in (0, 8, udp - 1, udp + 1, 0xFFFF, 0xFFF0):
            self.refused(0, altered(good, "udp", length=value), Drop.BAD_LENGTH)
        for value in (0, 512, 1023, 0xFFFF, 0xFFD8):
            self.refused(0, altered(good, "hopsum", length=value), Drop.BAD_LENGTH)
        both = altered(altered(good, "udp", length=udp - 4), "ipv4", total_length=total - 4)
        self.refused(0, both, Drop.BAD_LENGTH)
        self.added(job, 0, lanes32(1))


class FieldsThatArriveSet(SwitchCase):
    """`held` and `contributors` of an UPDATE mean nothing, and do not come back."""

    def runTest(self) -> None:
        job = self.job(2)
        odd = {"held": 0xDEADBEEF, "contributors": 2**64 - 1}
        self.send(0, altered(update(job, 0, lanes32(1)), "hopsum", **odd))
        self.send(1, altered(update(job, 1, lanes32(2)), "hopsum", **odd))
        self.assert_lanes(self.answered(job, 0, lanes32(1)), 3)
