# SPDX-License-Identifier: Apache-2.0
"""A worker process of the demo: opens its socket, says where it is, sums what it is told to.

Messages to the parent: ("bound", (ip, port)) · ("progress", op, chunks) · ("sums", op, results, seconds) ·
("statistics", LinkStatistics, WorkerStatistics) · ("failed", traceback). From the parent: one Assignment.
"""

from __future__ import annotations

import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from hopsum.cli.demo.vectors import EXERCISES, PIECE_CHUNKS, Exercise
from hopsum.protocol.worker import Timing
from hopsum.transport.link import UdpLink
from hopsum.transport.udp import UdpTransport


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker runs and how it reaches the switch."""

    rank: int
    port: int
    """Switch port."""
    mac: str
    ip: str
    switch: tuple[str, int]
    """Where it sends to: IPv4 address and UDP port."""
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the controller allotted, and what to sum."""

    epoch: int
    workers: int
    slots: int
    elements: int
    seed: int
    deadline_s: float


def run(seat: Seat, parent_pid: int, pipe: Connection) -> None:
    """Be one worker, from its socket to its statistics; failures go to the parent as text."""
    from hopsum_topologies.launch import die_with_parent
    from hopsum_topologies.netns import enter_namespace

    try:
        die_with_parent(parent_pid)
        if seat.namespace is not None:
            enter_namespace(seat.namespace)
        link = UdpLink((seat.ip, 0), seat.switch)
        pipe.send(("bound", link.local))
        assignment: Assignment = pipe.recv()
        transport = UdpTransport(
            link.local,
            seat.switch,
            epoch=assignment.epoch,
            rank=seat.rank,
            workers=assignment.workers,
            slots=assignment.slots,
            timing=Timing(retransmit_s=0.25, deadline_s=assignment.deadline_s),
            link=link,
        )
        with transport:
            for exercise in EXERCISES:
                _sum(exercise, seat.rank, assignment, transport, pipe)
            statistics = transport.statistics
            pipe.send(("statistics", statistics.link, statistics.worker))
    except (EOFError, BrokenPipeError):  # the parent has gone: so do we
        os._exit(1)
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def _sum(exercise: Exercise, rank: int, plan: Assignment, transport: UdpTransport, pipe: Connection) -> None:
    payloads = exercise.payloads(exercise.values(rank, plan.elements, plan.seed))
    results = []
    start = time.perf_counter()
    for first in range(0, len(payloads), PIECE_CHUNKS):
        piece = payloads[first : first + PIECE_CHUNKS]
        results.append(transport.allreduce(exercise.op, piece).results)
        pipe.send(("progress", exercise.op, len(piece)))
    elapsed_s = time.perf_counter() - start
    pipe.send(("sums", exercise.op, np.concatenate(results), elapsed_s))
