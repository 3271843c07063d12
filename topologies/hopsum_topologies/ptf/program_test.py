# SPDX-License-Identifier: Apache-2.0
"""The base class of a test of any v1model program, for `hopsum ptf`.

Each test begins on a switch with the program just pushed: no entries, no multicast groups, registers and counters at
zero. Entries are written with p4runtime-shell's classes, packets are built with scapy and sent with ptf's functions::

    from p4runtime_sh.shell import TableEntry
    from ptf.testutils import send_packet, verify_no_other_packets, verify_packet

    class Forwards(ProgramTest):
        def runTest(self):
            entry = TableEntry("ingress.route")(action="ingress.forward")
            entry.match["hdr.ethernet.dst"], entry.action["port"] = "02:00:00:00:00:02", "2"
            entry.insert()
            send_packet(self, 1, packet)
            verify_packet(self, packet, 2)
            verify_no_other_packets(self)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import ptf
from p4runtime_sh import shell
from ptf import testutils

from hopsum_topologies.ptf.reported import ReportedTest

ELECTION_ID: Final = (1, 0)


class ProgramTest(ReportedTest):
    """A test with a `runTest`, or with several methods `test...`."""

    ports: Sequence[int]
    """The switch's ports, 1 to N."""

    def setUp(self) -> None:
        """Push the program and drop earlier frames of the switch."""
        super().setUp()
        given = testutils.test_params_get()
        self.ports = given["ports"]
        shell.setup(
            device_id=given["device_id"],
            grpc_addr=given["address"],
            election_id=ELECTION_ID,
            config=shell.FwdPipeConfig(given["p4info"], given["program"]),
        )
        self.addCleanup(shell.teardown)
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()

    def multicast_group(self, group: int, ports: Sequence[int]) -> None:
        """Make a multicast group of `ports`. The end of the test removes the group.

        bmv2 keeps the groups of programs that were pushed before: an entry that a test forgets sends copies in the
        next one.
        """
        entry = shell.MulticastGroupEntry(group)
        for port in ports:
            entry.add(port, 0)
        entry.insert()
        self.addCleanup(entry.delete)
