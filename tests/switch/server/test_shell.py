# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell, unmodified, drives the switch. Its state is global, so every use is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from .controller import P4INFO, PROGRAM, Controller

pytestmark = [pytest.mark.system, pytest.mark.shell]

# The shell's threads would keep a failed script alive: hence the hook.
PREAMBLE = """
import os, sys, traceback
sys.excepthook = lambda *error: (traceback.print_exception(*error), os._exit(1))
from p4runtime_sh import shell as sh
address, p4info, program = sys.argv[1:4]
"""


def run(switch: SwitchServer, script: str, said: str = "") -> str:
    """Return what a script prints; `said` is a part of its stderr, which is empty without it."""
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), switch.grpc_address, P4INFO, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
    return done.stdout


def test_tables_groups_and_counters_through_the_shell(empty_switch: SwitchServer) -> None:
    run(
        empty_switch,
        """
    sh.setup(1, address, (0, 1), config=sh.FwdPipeConfig(p4info, program))
    entry = sh.TableEntry("l2")(action="forward")
    entry.match["h.ethernet.dst"] = "00:00:00:00:0a:0b"
    entry.action["port"] = "3"
    entry.insert()
    try:
        entry.insert()
    except Exception as error:
        assert type(error).__name__ == "P4RuntimeWriteException" and "ALREADY_EXISTS" in str(error), error
    else:
        raise SystemExit("inserted twice")

    (got,) = sh.TableEntry("l2").read()
    assert str(got) == str(entry), (str(got), str(entry))
    entry.action["port"] = "4"
    entry.modify()
    got.counter_data  # asks for it
    (got,) = got.read()
    assert got.action.msg().params[0].value == bytes([4])
    assert got.counter_data.packet_count == 0
    assert next(sh.DirectCounterEntry("forwarded").read()).packet_count == 0

    rule = sh.TableEntry("classes")(action="mark", priority=7)
    rule.match["h.ipv4.src"] = "10.0.0.0&&&255.0.0.0"
    rule.match["h.ipv4.ttl"] = "0..63"
    rule.match["h.ipv4.protocol"] = "17"
    rule.action["tos"] = "42"
    rule.insert()
    route = sh.TableEntry("routes")(action="forward")
    route.match["h.ipv4.dst"] = "10.1.0.0/16"
    route.action["port"] = "5"
    route.insert()
    assert [str(e) for e in sh.TableEntry("classes").read()] == [str(rule)]
    assert [str(e) for e in sh.TableEntry("routes").read()] == [str(route)]

    default = sh.TableEntry("l2")(action="flood", is_default=True)
    default.action["group"] = "9"
    default.modify()
    assert "flood" in str(next(sh.TableEntry("l2")(is_default=True).read()))

    group = sh.MulticastGroupEntry(9).add(1, 1).add(2, 2)
    group.insert()
    (read,) = sh.MulticastGroupEntry(9).read()
    assert str(read) == str(group)
    assert len(list(sh.MulticastGroupEntry().read())) == 1
    group.delete()
    assert list(sh.MulticastGroupEntry().read()) == []

    cell = sh.CounterEntry("received")
    cell.index = 4
    cell.packet_count = 11
    cell.modify()
    assert [c.packet_count for c in cell.read()] == [11]
    assert sum(c.packet_count for c in sh.CounterEntry("received").read()) == 11

    sh.TableEntry("l2").read(lambda e: e.delete())
    assert list(sh.TableEntry("l2").read()) == []
    assert sh.APIVersion() == "1.4.1"
    sh.teardown()
    """,
    )
    with Controller(empty_switch.grpc_address) as controller:
        assert len(controller.read_tables()) == 1 + 1 + 2


class Mirror(MemoryPort):
    """A cable whose far end sends every frame back."""

    def send(self, frame: bytes) -> None:
        super().send(frame)
        self.inject(frame)


def test_packets_through_the_shell(switch: SwitchServer) -> None:
    switch.dataplane.bind(4, Mirror())
    run(
        switch,
        """
    sh.setup(1, address, (0, 1))
    incoming = sh.PacketIn()
    lldp = bytes(12) + bytes.fromhex("88cc") + b"from the shell"
    sh.PacketOut(lldp, egress_port="4").send()
    while not (found := list(incoming.sniff(timeout=0.05))):
        pass
    assert found[0].packet.payload == lldp, found
    assert [m.value for m in found[0].packet.metadata] == [bytes([4]), bytes([1])], found
    sh.teardown()
    """,
    )


def test_mastership_through_the_client(switch: SwitchServer) -> None:
    printed = run(
        switch,
        """
    from p4runtime_sh.p4runtime import P4RuntimeClient
    first = P4RuntimeClient(1, address, (0, 5))
    second = P4RuntimeClient(1, address, (1, 0))
    told = first.get_stream_packet("arbitration", timeout=60)
    print(told.arbitration.status.code, told.arbitration.election_id.high)
    third = P4RuntimeClient(1, address, (0, 1))
    second.set_fwd_pipe_config(p4info, program)
    try:
        first.set_fwd_pipe_config(p4info, program)
    except Exception as error:
        print(error)
    assert second.get_p4info().tables
    for client in (first, second, third):
        client.tear_down()
    """,
    )
    lines = printed.splitlines()
    assert lines[0] == "6 1"
    assert lines[1] == "You are not the primary client, you only have read access to the server"
    assert "PERMISSION_DENIED" in lines[2]


def test_another_device_id_ends_the_client(switch: SwitchServer) -> None:
    script = """
    from p4runtime_sh.p4runtime import P4RuntimeClient
    try:
        P4RuntimeClient(2, address, (0, 1))
    except SystemExit as error:
        print("exit", error.code, flush=True)
        os._exit(0)
    """
    assert run(switch, script, said="NOT_FOUND") == "exit 1\n"
