# SPDX-License-Identifier: Apache-2.0
"""A student's `worker.py` on a network of the grader's own: a solution's switch, ports that lose packets.

A worker has real time-outs, because it has to send again. No verdict depends on their length or precision: a correct
worker ends whatever packets are lost, and `DEADLINE_S` ends a wait for a packet that never comes.
"""

from __future__ import annotations

import importlib.util
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from scapy.layers.l2 import Ether

from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import total, worker_port
from hopsum_labs.rule_checks import Failed, expect

DEADLINE_S = 60.0
"""The seconds that the workers of a case have together. A correct worker needs a small part of a second."""
_LOOK_EVERY_S = 0.05
AllReduce = Callable[["Port", int, int, Sequence[int]], Sequence[int]]


class PortClosed(Exception):  # noqa: N818 - ends the threads of workers that wait for ever
    """The case has ended. This error ends a worker's thread."""


class Port:
    """The port of a worker, for `all_reduce` of `worker.py`: scapy packets from the Ethernet header on."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self._rank = network, rank
        self.arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, packet: Any) -> None:
        """Send a packet to the switch."""
        self._network.carry(self._rank, bytes(packet))

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next packet, or None when no packet came for `timeout_s`. Without `timeout_s`, wait."""
        try:
            frame = self.arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if frame is None:
            raise PortClosed
        return Ether(frame)


class Network:
    """A switch with workers at its ports. Every packet to and from it is lost with probability `loss`."""

    def __init__(self, switch: Testbed, workers: int, *, loss: float = 0.0, seed: int = 0) -> None:
        self.ports = [Port(self, rank) for rank in range(workers)]
        self._switch, self._loss, self._random = switch, loss, random.Random(seed)
        self._lock = threading.Lock()
        self._is_closed = False

    def carry(self, rank: int, frame: bytes) -> None:
        """Let a frame go to the switch, and the switch's frames to the workers."""
        # One frame at a time: the engine belongs to one thread, and workers call from threads of their own.
        with self._lock:
            if self._is_closed:
                raise PortClosed
            if self._is_lost():
                return
            for sent in self._switch.send(worker_port(rank), frame):
                if not self._is_lost():
                    self.ports[sent.port - worker_port(0)].arrived.put(sent.frame)

    def close(self) -> None:
        """End the threads that use a port."""
        with self._lock:
            self._is_closed = True
        for port in self.ports:
            # None wakes a worker that waits for a frame.
            port.arrived.put(None)

    def _is_lost(self) -> bool:
        return self._random.random() < self._loss


def load_worker(path: Path) -> AllReduce:
    """Import a student's `worker.py` and return its `all_reduce`. Raises Failed: it cannot be imported, or has none."""
    spec = importlib.util.spec_from_file_location("student_worker", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Failed(f"{path} is not there")
    # Never in sys.modules: the globals of a worker must not outlive its case.
    module = ModuleType(spec.name)
    try:
        spec.loader.exec_module(module)
        all_reduce: AllReduce = module.all_reduce
    except Exception as error:
        raise Failed(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return all_reduce


def run(all_reduce: AllReduce, network: Network, vectors: Sequence[Sequence[int]], when: str) -> None:
    """Let every worker call `all_reduce` with its vector. All workers must return the sum. Raises Failed."""
    wanted = total(vectors)
    for rank, outcome in enumerate(outcomes_of(all_reduce, network, vectors, when)):
        expect(outcome == wanted, f"{when}: all_reduce of rank {rank} had to return {wanted}; it returned {outcome}")


def outcomes_of(
    all_reduce: AllReduce, network: Network, vectors: Sequence[Sequence[Any]], when: str
) -> list[list[Any]]:
    """Let every worker call `all_reduce` with its vector. Return the results. Raises Failed where one fails."""
    outcomes: list[Any] = [None] * len(vectors)

    def work(rank: int) -> None:
        try:
            outcomes[rank] = list(all_reduce(network.ports[rank], rank, len(vectors), vectors[rank]))
        except PortClosed:
            pass
        except Exception as error:
            outcomes[rank] = error

    # Daemons: a worker that never returns must not keep the grader from ending.
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(vectors))]
    for thread in threads:
        thread.start()
    _await(threads, outcomes)
    # Closed ports wake the workers that still wait, with PortClosed.
    network.close()
    for rank, outcome in enumerate(outcomes):
        error = f"{type(outcome).__name__}: {outcome}"
        expect(not isinstance(outcome, Exception), f"{when}: all_reduce of rank {rank} raised {error}")
        expect(outcome is not None, f"{when}: all_reduce of rank {rank} did not return within {DEADLINE_S:g} s")
    return outcomes


def _await(threads: Sequence[threading.Thread], outcomes: Sequence[Any]) -> None:
    """Wait until all threads have ended, until the deadline, or until one has failed and the others wait."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s and not any(isinstance(outcome, Exception) for outcome in outcomes):
        alive = [thread for thread in threads if thread.is_alive()]
        if not alive:
            return
        alive[0].join(_LOOK_EVERY_S)
