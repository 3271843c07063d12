# SPDX-License-Identifier: Apache-2.0
"""`hopsum switch-ctl` on a switch in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from hopsum_switch import management_command
from hopsum_switch.management import ManagementClient, ManagementError
from hopsum_switch.server import SwitchServer

from .controller import DEADLINE_S

FRAME = bytes(11) + b"\x07\x12\x34" + bytes(46)
REGISTER, COUNTER = "StationIngress.last_source", "StationIngress.received"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(switch: SwitchServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = management_command.main(["--grpc", switch.grpc_address, *arguments])
        return status, *capsys.readouterr()

    return run


def test_ports_and_stats_are_shown(run: Run, switch: SwitchServer) -> None:
    switch.dataplane.inject(2, FRAME)
    status, out, _ = run("ports")
    assert (status, json.loads(out)["2"]["received"]) == (0, 1)
    status, out, _ = run("stats")
    assert (status, json.loads(out)["packets"]) == (0, 1)


def test_parts_are_taken(run: Run, switch: SwitchServer) -> None:
    switch.dataplane.inject(2, FRAME)
    status, out, _ = run("snapshot", "--name", REGISTER, "--first", "1", "--count", "2")
    assert status == 0
    shown = json.loads(out)
    assert not shown["counters"]
    assert shown["registers"][REGISTER] == {"bits": 48, "first": 1, "values": ["0x0", "0x7"]}


def test_refusals_and_silence_have_a_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, errors = run("snapshot", "--name", "nothing")
    assert (status, out) == (2, "")
    assert "no register or counter 'nothing'" in errors
    monkeypatch.setattr(management_command, "_TIMEOUT_S", 0.1)
    status, _, errors = run("--grpc", "127.0.0.1:1", "stats")
    assert status == 2
    assert "hopsum switch-ctl: error: Stats:" in errors


def test_a_switch_without_a_program_has_no_state(empty_switch: SwitchServer) -> None:
    with (
        ManagementClient(empty_switch.grpc_address, timeout_s=DEADLINE_S) as client,
        pytest.raises(ManagementError, match="no program is loaded"),
    ):
        client.snapshot()


def test_snapshots_fall_between_packets(switch: SwitchServer) -> None:
    """A packet writes its register before another thread may look, or not at all: both sides agree always."""
    stop = threading.Event()

    def traffic() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            switch.dataplane.inject(3, bytes(6) + number.to_bytes(6, "big") + bytes(48))

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        with ManagementClient(switch.grpc_address, timeout_s=DEADLINE_S) as client:
            seen = []
            for _ in range(20):
                taken = client.snapshot([REGISTER, COUNTER], first=3, count=1)
                packets = taken["counters"][COUNTER]["packets"]
                assert taken["registers"][REGISTER]["values"] == [hex(count) for count in packets]
                seen.append(packets[0])
    finally:
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
