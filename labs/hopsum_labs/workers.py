# SPDX-License-Identifier: Apache-2.0
"""A student's `worker.py` on a network of the grader's own: a solution's switch, ports that lose packets.

A worker has real time-outs, because it has to send again. No verdict depends on their length or precision: a correct
worker ends whatever packets are lost, and `DEADLINE_S` ends a wait for a packet that never comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scapy.layers.l2 import Ether

from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import SWITCH_MAC, Aggregation, Quantised, rank_at, total, worker_mac, worker_port
from hopsum_labs.rule_checks import Failed, expect
from hopsum_labs.worker_process import CALL, FRAME, MAX_MESSAGE, RESULT

DEADLINE_S = 60.0
"""The seconds that the workers of a case have together. A correct worker needs a small part of a second."""
EXIT_S = 60.0
"""The seconds that a process has to end after it has closed its socket."""


class Workers:
    """The processes of a case's workers, by rank, which run the `worker.py` at `path`. The context manager ends them.

    Construction starts none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.wires: list[socket.socket] = []

    def start(self, count: int) -> None:
        """Start processes until there are `count`."""
        while len(self.wires) < count:
            # Messages with their bounds, in order; a process that ends closes its end.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # -P: a student's file of the name of a library's module must not be imported in its place.
            command = [sys.executable, "-P", "-m", "hopsum_labs.worker_process"]
            command += [str(theirs.fileno()), str(self._path), str(os.getpid())]
            with theirs:
                # A session of its own: Ctrl-C is for the grader, which then ends the workers without their tracebacks.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            self._processes.append(process)
            self.wires.append(ours)

    def wait_for_exit(self, rank: int) -> str:
        """Wait up to EXIT_S for the end of a process that has closed its socket. Return what it did, for a message."""
        try:
            status = self._processes[rank].wait(EXIT_S)
        except subprocess.TimeoutExpired:
            return "closed the grader's socket before it returned"
        return f"ended its process with status {status} before it returned"

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process, wire in zip(self._processes, self.wires, strict=True):
            # A worker that never returns must not keep the grader from ending.
            process.kill()
            process.wait()
            wire.close()


class Network:
    """A switch with workers at its ports. Every packet to and from it is lost with probability `loss`.

    copies: the number of times that a packet that is not lost arrives at a worker.
    seed: of the losses.
    """

    def __init__(self, switch: Testbed, workers: int, *, loss: float = 0.0, seed: int = 0, copies: int = 1) -> None:
        self._switch, self._workers, self._copies = switch, workers, copies
        self._loss, self._random = loss, random.Random(seed)

    def carry(self, rank: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Let a frame of a rank go to the switch. Return the frames that arrive at workers, each with its rank.

        Raises Failed: the frame does not say that it comes from this rank and is for the switch.
        """
        packet = Ether(frame)
        part = packet.getlayer(Aggregation) or packet.getlayer(Quantised)
        got, wanted = (packet.src, packet.dst, part and part.rank), (worker_mac(rank), SWITCH_MAC, rank)
        expect(got == wanted, f"source, destination and rank have to be {wanted}; rank {rank} sent a packet with {got}")
        if self._is_lost():
            return []
        found = []
        for sent in self._switch.send(worker_port(rank), frame):
            to = rank_at(sent.port)
            if to is not None and to < self._workers and not self._is_lost():
                found += [(to, sent.frame)] * self._copies
        return found

    def _is_lost(self) -> bool:
        return self._random.random() < self._loss


def check_all_reduce(workers: Workers, network: Network, vectors: Sequence[Sequence[int]], when: str) -> None:
    """Call `all_reduce` in every worker with its vector. Raises Failed unless all of them return the sum.

    `when` is the situation, for the message. Processes are started as they are needed.
    """
    wanted = total(vectors)
    for rank, outcome in enumerate(call_workers(workers, network, vectors, when)):
        expect(outcome == wanted, f"{when}: all_reduce of rank {rank} had to return {wanted}; it returned {outcome}")


def call_workers(workers: Workers, network: Network, vectors: Sequence[Sequence[Any]], when: str) -> list[list[Any]]:
    """Call `all_reduce` in every worker with its vector. Return the results by rank, unchecked.

    Starts the processes that are missing.

    Raises Failed where a call fails, a process ends, a worker sends a wrong packet, or after DEADLINE_S seconds.
    """
    workers.start(len(vectors))
    outcomes = dict[int, list[Any]]()
    deadline_s = time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        for rank, vector in enumerate(vectors):
            call = {"rank": rank, "workers": len(vectors), "vector": list(vector)}
            # The end of a worker that has ended since its last call is noticed where its end is read.
            with contextlib.suppress(ConnectionError):
                workers.wires[rank].send(CALL + json.dumps(call).encode())
            selector.register(workers.wires[rank], selectors.EVENT_READ, rank)
        while len(outcomes) < len(vectors):
            ready = selector.select(deadline_s - time.monotonic())
            waiting = ", ".join(str(rank) for rank in range(len(vectors)) if rank not in outcomes)
            expect(
                time.monotonic() < deadline_s,
                f"{when}: all_reduce of rank {waiting} did not return within {DEADLINE_S:g} s",
            )
            for key, _ in ready:
                message = _received(workers, key.data, when)
                if message[:1] == RESULT:
                    outcomes[key.data] = json.loads(message[1:])
                elif message[:1] == FRAME:
                    _deliver(workers, network.carry(key.data, message[1:]))
                else:
                    raise Failed(f"{when}: {message[1:].decode(errors='replace')}")
    return [outcomes[rank] for rank in range(len(vectors))]


def _received(workers: Workers, rank: int, when: str) -> bytes:
    # A process that ends with unread frames in its socket is a reset connection.
    with contextlib.suppress(ConnectionError):
        if message := workers.wires[rank].recv(MAX_MESSAGE):
            return message
    raise Failed(f"{when}: all_reduce of rank {rank} {workers.wait_for_exit(rank)}")


def _deliver(workers: Workers, frames: Sequence[tuple[int, bytes]]) -> None:
    for rank, frame in frames:
        # As at a host whose queue is full, what does not fit is lost: the grader must not wait for a worker that does
        # not receive. A worker that has ended is noticed where its end is read.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            workers.wires[rank].send(FRAME + frame, socket.MSG_DONTWAIT)
