# SPDX-License-Identifier: Apache-2.0
"""Frames that a program sends round for ever, at a switch process: it answers, counts them and ends when it is told."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hopsum_switch.management import ManagementClient
from hopsum_switch.ports.unix import open_peer

from ..core.builder import assign, build, field, hexstr, primitive
from .controller import DEADLINE_S, wait_until

pytestmark = pytest.mark.system
ROUND, STRAIGHT = b"\x00" + bytes(59), b"\x01" + bytes(59)


def fill(peer: socket.socket) -> None:
    """Send frames that go round until the switch's queue is full."""
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            peer.send(ROUND)


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_frames_that_go_round_for_ever_stop_neither_requests_nor_signals(tmp_path: Path, backend: str) -> None:
    builder = build()
    builder.primitives += [
        primitive("_jump_if_zero", field("h", "a"), hexstr(0)),
        assign(field("standard_metadata", "egress_spec"), hexstr(2)),
    ]
    program, p4info, ports = tmp_path / "loop.json", tmp_path / "loop.p4info.txtpb", [tmp_path / "p1", tmp_path / "p2"]
    program.write_text(builder.text())
    p4info.touch()
    arguments = ["--grpc", f"unix:{tmp_path / 'grpc'}", "--metrics", "0", "--backend", backend]
    arguments += ["--program", str(program), "--p4info", str(p4info)]
    arguments += ["--unix", f"1={ports[0]}", "--unix", f"2={ports[1]}"]
    process = subprocess.Popen([sys.executable, "-m", "hopsum_switch", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            url = process.stdout.readline().split()[1]
            address = process.stdout.readline().split()[1].removeprefix("grpc=")
            with (
                ManagementClient(address, timeout_s=DEADLINE_S) as management,
                open_peer(str(ports[0])) as peer,
                open_peer(str(ports[1])) as receiver,
            ):
                for drops in range(1, 6):
                    fill(peer)
                    wait_until(lambda drops=drops: management.stats()["dropped"].get("steps", 0) >= drops)
                with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
                    assert 'dropped_frames_total{port="none",reason="steps"}' in response.read().decode()
                peer.settimeout(DEADLINE_S)
                receiver.settimeout(DEADLINE_S)
                peer.send(STRAIGHT)
                assert receiver.recv(100) == STRAIGHT
                fill(peer)
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
        finally:
            if process.poll() is None:
                process.kill()
