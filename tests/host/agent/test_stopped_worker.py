# SPDX-License-Identifier: Apache-2.0
"""A worker process that is stopped (SIGSTOP) in the middle of an all-reduce, for longer than several retransmissions.

With quorum n the others wait, and finish when it goes on. With quorum n - 1 they go on without it, and it has from its
peers what it missed. All replicas are equal either way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_oracle.aggregator import Aggregator, PacketOutcome
from hopsum_topologies.free_port import free_port
from hopsum_wire import Event, Header, Kind, Op

from ...support.diagnosis_rig import PickySwitch, membership
from ...support.server import LOCALHOST, job_for
from .stepping_worker import RETRANSMIT_S

pytestmark = pytest.mark.system
WORKERS, STEPS, ELEMENTS, SLOTS, GENERATION = 3, 3, 10_000, 16, 41
STOPPED, STOPPED_AT = 2, 4
"""The rank that is stopped, and by how many of its chunks: in the middle of the first all-reduce."""
WAIT_S = 60.0
PATIENCE_RETRANSMITS = 10
WORKER = Path(__file__).with_name("stepping_worker.py")


class Switch(Aggregator):
    """Whose replies to a worker that is stopped are lost, as they are once its socket's buffer is full."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = threading.Event()

    def receive(self, port: int, ip: int, udp_port: int, data: bytes | memoryview) -> PacketOutcome:
        outcome = super().receive(port, ip, udp_port, data)
        if not self.loses.is_set():
            return outcome
        kept = tuple(output for output in outcome.outputs if output.worker.rank != STOPPED)
        return replace(outcome, outputs=kept)


class Crew:
    """The worker processes, the switch that stops one of them, and what they say."""

    def __init__(self, stack: ExitStack, folder: Path, quorum: int) -> None:
        self.said: list[list[dict[str, Any]]] = [[] for _ in range(WORKERS)]
        self._sent: set[tuple[int, int]] = set()
        self.aggregator = Switch()
        self.stopped = self.aggregator.loses
        self._has_stopped = False
        switch = stack.enter_context(PickySwitch(self.aggregator, self._hear))
        addresses = [(LOCALHOST, free_port(socket.SOCK_DGRAM)) for _ in range(WORKERS)]
        job = job_for(addresses, generation=GENERATION, slots=SLOTS, table=tuple(range(16)))
        self.aggregator.add_job(replace(job, quorum=quorum))
        document = membership(addresses, switch.address, generation=GENERATION, slots=SLOTS, window=8, quorum=quorum)
        for entry in document["workers"]:
            entry["side_port"] = free_port()
            document["side_key"] = bytes(range(32)).hex()
        path = folder / "job.json"
        path.write_text(json.dumps(document))
        self.processes = [self._start(stack, rank, path) for rank in range(WORKERS)]

    def _start(self, stack: ExitStack, rank: int, path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKER), str(rank), str(path), str(ELEMENTS), str(STEPS)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)  # also ends one that is stopped
        reader = threading.Thread(target=self._read, args=(rank, process))
        reader.start()
        stack.callback(reader.join)
        stack.callback(process.kill)
        return process

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said[rank].append(json.loads(line))

    def _hear(self, header: Header) -> Header | None:
        """Stop the worker from the switch's thread, with its own UPDATE on the way; others' chunks are lost before."""
        if self._has_stopped or header.kind != Kind.UPDATE or header.op != Op.ADD32:
            return header
        if header.worker != STOPPED:
            return None  # no sum is complete before: whoever starts last is in the first all-reduce too
        self._sent.add((header.slot, header.round))
        if len(self._sent) == STOPPED_AT:
            os.kill(self.processes[STOPPED].pid, signal.SIGSTOP)
            self.stopped.set()
            self._has_stopped = True
        return header

    def go_on(self) -> None:
        self.stopped.clear()
        os.kill(self.processes[STOPPED].pid, signal.SIGCONT)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < give_up, f"no {what}; said so far: {self.said}"
            dead = [rank for rank, process in enumerate(self.processes) if process.poll() not in (None, 0)]
            assert not dead, f"ranks {dead} ended; said so far: {self.said}"
            time.sleep(0.002)

    def finish(self) -> None:
        self.wait_for(lambda: all(len(said) == STEPS + 1 for said in self.said), "end of all ranks")
        assert [process.wait(WAIT_S) for process in self.processes] == [0] * WORKERS

    def digests(self) -> list[set[str]]:
        """Return the different results of each step."""
        return [{said[step]["digest"] for said in self.said} for step in range(STEPS)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Crew]]:
    with ExitStack() as stack:
        yield lambda quorum: Crew(stack, tmp_path, quorum)


def test_with_all_needed_the_others_wait_and_then_finish(start: Callable[[int], Crew]) -> None:
    crew = start(WORKERS)
    assert crew.stopped.wait(WAIT_S)
    before = crew.aggregator.job_events[0, Event.DUPLICATE]
    sent_again = (WORKERS - 1) * PATIENCE_RETRANSMITS
    duplicates = lambda: crew.aggregator.job_events[0, Event.DUPLICATE] - before  # noqa: E731
    crew.wait_for(lambda: duplicates() >= sent_again, "retransmissions of those that wait")
    assert crew.said == [[]] * WORKERS, "nobody finishes without the one that is stopped"
    crew.go_on()
    crew.finish()
    assert [len(found) for found in crew.digests()] == [1] * STEPS
    assert {step["fewest"] for said in crew.said for step in said[:STEPS]} == {WORKERS}


def test_with_one_less_the_others_go_on_and_it_recovers_from_them(start: Callable[[int], Crew]) -> None:
    crew = start(WORKERS - 1)
    assert crew.stopped.wait(WAIT_S)
    until = time.monotonic() + PATIENCE_RETRANSMITS * RETRANSMIT_S
    others = [crew.said[rank] for rank in range(WORKERS) if rank != STOPPED]
    crew.wait_for(lambda: all(others) and time.monotonic() > until, "all-reduce without the one that is stopped")
    assert crew.said[STOPPED] == []
    crew.go_on()
    crew.finish()
    assert [len(found) for found in crew.digests()] == [1] * STEPS
    stopped = crew.said[STOPPED]
    assert stopped[0]["left_out"] > 0
    assert stopped[-1]["repaired"] > 0
    came_out = sum(step["came_out"] for step in stopped[:STEPS])
    put_in, left = (sum(said[-1][what] for said in crew.said) for what in ("put_in", "residual"))
    assert came_out + left == pytest.approx(put_in, abs=1e-2), "what it could not give stays with it"
