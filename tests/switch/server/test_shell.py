# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell, unmodified, drives the switch. Its state is global, so every use is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

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


def run(switch: SwitchServer, script: str) -> None:
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), switch.grpc_address, P4INFO, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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
