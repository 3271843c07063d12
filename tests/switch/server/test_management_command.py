# SPDX-License-Identifier: Apache-2.0
"""`hopsum switch-ctl` on a switch in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsum_switch import management_command
from hopsum_switch.management import ManagementClient, ManagementError
from hopsum_switch.observe.snapshot import Snapshot
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


def test_snapshots_are_taken_and_compared(run: Run, switch: SwitchServer, tmp_path: Path) -> None:
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.npz")
    assert run("snapshot", before) == (0, "", "")
    switch.dataplane.inject(2, FRAME)
    assert run("snapshot", after) == (0, "", "")
    assert run("compare", before, before) == (0, "", "")
    status, out, _ = run("compare", before, after)
    assert status == 1
    assert out == f"register {REGISTER}[2]: 0x0 -> 0x7\ncounter {COUNTER}[2]: packets 0 -> 1, bytes 0 -> 60\n"


def test_parts_are_taken(run: Run, switch: SwitchServer) -> None:
    switch.dataplane.inject(2, FRAME)
    status, out, _ = run("snapshot", "--name", REGISTER, "--first", "1", "--count", "2")
    assert status == 0
    shown = Snapshot.from_json(json.loads(out))
    assert not shown.counters
    assert (shown.registers[REGISTER].first, shown.registers[REGISTER].values) == (1, [0, 7])


def test_registers_are_written_and_cleared(run: Run, switch: SwitchServer) -> None:
    assert run("write-register", "last_source", "3", "0x1f") == (0, "", "")
    status, out, _ = run("snapshot", "--name", "last_source", "--first", "3", "--count", "1")
    assert status == 0
    assert Snapshot.from_json(json.loads(out)).registers[REGISTER].values == [0x1F]
    assert run("clear-register", REGISTER) == (0, "", "")
    _, out, _ = run("snapshot", "--name", REGISTER)
    assert set(Snapshot.from_json(json.loads(out)).registers[REGISTER].values) == {0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("write-register", "nothing", "0", "1"), "no register or counter 'nothing': there are StationIngress."),
        (("write-register", "received", "0", "1"), "no register or counter 'received'"),
        (("write-register", "last_source", "16", "1"), "index 16 is outside 0..15"),
        (("write-register", "last_source", "-1", "1"), "index -1 is outside 0..15"),
        (("write-register", "last_source", "0", str(1 << 48)), f"{1 << 48} is not a value of 48 bits"),
        (("write-register", "last_source", "0", "-1"), "-1 is not a value of 48 bits"),
        (("clear-register", "nothing"), "no register or counter 'nothing'"),
    ],
)
def test_registers_that_cannot_be_written_are_told(run: Run, arguments: tuple[str, ...], said: str) -> None:
    status, out, errors = run(*arguments)
    assert (status, out) == (2, "")
    assert said in errors


def test_refusals_and_silence_have_a_message(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, errors = run("snapshot", "--name", "nothing")
    assert (status, out) == (2, "")
    assert "no register or counter 'nothing'" in errors
    assert run("compare", str(tmp_path / "a"), str(tmp_path / "b"))[0] == 2
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
                assert taken.registers[REGISTER].values == taken.counters[COUNTER].packets
                seen.append(taken.counters[COUNTER].packets[0])
    finally:
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
