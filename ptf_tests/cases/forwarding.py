# SPDX-License-Identifier: Apache-2.0
"""Everything that is not for the service is forwarded as it is."""

from __future__ import annotations

from hopsum_controlplane.addresses import mac_to_int
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import BROADCAST_MAC, PORTS, UNKNOWN_MAC, station_mac
from hopsum_ptf.frames import altered, lanes32, plain, resized, update
from hopsum_wire import Drop

STATION = mac_to_int(station_mac(6))
SENDER = mac_to_int(station_mac(1))


class KnownAddress(SwitchCase):
    """To its port, from any port, its own too, at any size."""

    def runTest(self) -> None:
        for size in (1, 46, 64, 1500):
            self.forwarded(1, plain(STATION, SENDER, bytes(i % 251 for i in range(size))), [6])
        for port in PORTS:
            self.forwarded(port, plain(STATION, SENDER, bytes(50)), [6])


class UnknownAddress(SwitchCase):
    """Dropped and counted; no flooding of what is unknown."""

    def runTest(self) -> None:
        # A switch that floods unknown addresses would carry a worker's frames to all others.
        for address in (UNKNOWN_MAC, 0, 0x01_00_5E_00_00_01, STATION ^ 1 << 47):
            self.refused(1, plain(address, SENDER, bytes(50)), Drop.NO_ROUTE)


class Broadcast(SwitchCase):
    """To all ports but the one that it came from."""

    def runTest(self) -> None:
        for port in PORTS:
            frame = plain(BROADCAST_MAC, SENDER, bytes(28), ethertype=0x0806)
            self.forwarded(port, frame, [other for other in PORTS if other != port])


class HopsumToAnotherAddress(SwitchCase):
    """Somebody else's aggregation service: forwarded bit for bit, whatever is in it."""

    def runTest(self) -> None:
        job = self.job(2)
        foreign = altered(update(job, 0, lanes32(1)), "ipv4", dst=0x0A0000FD)
        to_station = altered(foreign, "ethernet", dst=STATION)
        for frame in (to_station, to_station[:200], altered(to_station, "hopsum", version=9, length=7)):
            self.forwarded(0, frame, [6])
        self.forwarded(0, altered(to_station, "ipv4", checksum=0x1111), [6])
        self.refused(0, foreign, Drop.NO_ROUTE)
        self.added(job, 0, lanes32(1))


class OtherTrafficToTheSwitch(SwitchCase):
    """The switch's address with another UDP port, protocol, a fragment, options: not for the service."""

    def runTest(self) -> None:
        job = self.job(2)
        good = altered(update(job, 0, lanes32(1)), "ethernet", dst=STATION)
        self.forwarded(0, altered(good, "udp", dst_port=24676), [6])
        for fields in (
            {"protocol": 6},
            {"flags": 1},
            {"flags": 3},
            {"fragment_offset": 1},
            {"ihl": 6},
            {"ihl": 4},
            {"version": 6},
            {"version": 0},
        ):
            self.forwarded(0, altered(good, "ipv4", **fields), [6])
        self.forwarded(0, altered(good, "ethernet", ethertype=0x86DD), [6])
        self.forwarded(0, altered(good, "ethernet", ethertype=0x8100), [6])
        self.added(job, 0, lanes32(1))


class ReplyOfAnotherSwitch(SwitchCase):
    """A RESULT on its way to a host of ours passes through."""

    def runTest(self) -> None:
        job = self.job(2)
        result = altered(update(job, 0, lanes32(1)), "hopsum", kind=2, contributors=3)
        passing = altered(altered(result, "udp", src_port=24677, dst_port=24677), "ipv4", dst=0x0A000209)
        self.forwarded(3, altered(passing, "ethernet", dst=STATION), [6])
        self.forwarded(3, resized(altered(passing, "ethernet", dst=STATION), b""), [6])
