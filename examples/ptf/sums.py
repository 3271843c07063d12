# SPDX-License-Identifier: Apache-2.0
"""PTF tests of the course's first level: a switch that adds eight 32-bit integers of each worker, over Ethernet.

    hopsum ptf PROGRAM.json examples/ptf

Frames that enter at different ports may overtake each other on the way to the program. So no test depends on who
completed a sum: the rank in a result may be either.
"""

from __future__ import annotations

import struct

from p4runtime_sh.shell import TableEntry
from ptf.mask import Mask
from ptf.testutils import send_packet, verify_no_other_packets, verify_packet
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from hopsum_topologies.ptf.program_test import ProgramTest

TYPE_AGGREGATION = 0x88B5
CONTRIBUTION, RESULT = 1, 2
SWITCH_MAC, BROADCAST = "02:00:00:00:00:fe", "ff:ff:ff:ff:ff:ff"
ALL_WORKERS = 1
RANK_BYTE = 15


class Sums(ProgramTest):
    """Two workers, rank 0 at port 1 and rank 1 at port 2."""

    def setUp(self) -> None:
        """Write what the level's control plane writes."""
        super().setUp()
        job = TableEntry("MyIngress.job")(action="MyIngress.set_job", is_default=True)
        job.action["workers"] = "2"
        job.modify()
        self.multicast_group(ALL_WORKERS, (1, 2))

    def contribute(self, rank: int, values: list[int], chunk: int = 0) -> None:
        """Send a worker's values."""
        mac = f"02:00:00:00:01:{rank:02x}"
        send_packet(self, rank + 1, frame(CONTRIBUTION, rank, chunk, values, mac, SWITCH_MAC))

    def verify_sums(self, values: list[int], chunk: int = 0) -> None:
        """Take the result, which both workers get. Fail if anything else comes."""
        result = Mask(frame(RESULT, 0, chunk, values, SWITCH_MAC, BROADCAST))
        result.set_do_not_care(8 * RANK_BYTE, 8)
        for port in (1, 2):
            verify_packet(self, result, port)
        verify_no_other_packets(self)


class TwoWorkers(Sums):
    """The second contribution completes the sum."""

    def runTest(self) -> None:
        self.contribute(0, [1, 2, 3, 4, 5, 6, 7, 8])
        verify_no_other_packets(self)
        self.contribute(1, [10, 20, 30, 40, 50, 60, 70, 80])
        self.verify_sums([11, 22, 33, 44, 55, 66, 77, 88])


class NextRound(Sums):
    """The first contribution of a round replaces what the round before left."""

    def runTest(self) -> None:
        for chunk, value in enumerate((5, 7)):
            self.contribute(1, [value] * 8, chunk)
            self.contribute(0, [value] * 8, chunk)
            self.verify_sums([2 * value] * 8, chunk=chunk)


class WrapsAround(Sums):
    """Sums are modulo 2**32."""

    def runTest(self) -> None:
        self.contribute(0, [2**32 - 1] * 8)
        self.contribute(1, [2] * 8)
        self.verify_sums([1] * 8)


def frame(kind: int, rank: int, chunk: int, values: list[int], source: str, destination: str) -> Packet:
    """Return a frame of the level: header, eight values."""
    header = struct.pack(">BBBBI8I", kind, rank, 0, 0, chunk, *values)
    return Ether(dst=destination, src=source, type=TYPE_AGGREGATION) / Raw(header)
