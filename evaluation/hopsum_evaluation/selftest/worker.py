# SPDX-License-Identifier: Apache-2.0
"""A worker process: opens its socket, says where it is, sums what it is told to.

Messages to the parent: ("bound", (ip, port)) · ("progress", op, chunks) · ("sums", op, results, seconds) ·
("statistics", LinkStatistics, WorkerStatistics). From the parent: one Assignment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.transport import Transport
from hopsum_evaluation.link_options import view_of
from hopsum_evaluation.selftest.vectors import PIECE_CHUNKS, Exercise
from hopsum_topologies.seat import LinkKind, Seat, open_seat_link


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the controller allotted, and what to sum."""

    generation: int
    workers: int
    slots: int
    elements: int
    seed: int
    deadline_s: float
    exercises: tuple[Exercise, ...]


class LinkPlan(NamedTuple):
    """The link of every worker, and where its packets are shown."""

    kind: LinkKind
    pcap: Path | None
    """Folder for each worker's packets."""
    show: bool
    """Print every packet."""


def work(seat: Seat, plan: LinkPlan, pipe: Connection) -> None:
    """Be one worker, from its socket to its statistics."""
    link = open_seat_link(seat, plan.kind, view_of(plan.pcap, seat.rank, show=plan.show))
    pipe.send(("bound", link.local))
    assignment: Assignment = pipe.recv()
    switch = f"switch {seat.switch[0]}:{seat.switch[1]}"
    membership = Membership(assignment.generation, seat.rank, assignment.workers, assignment.slots, switch)
    with Transport(link, membership, Timing(retransmit_s=0.25, deadline_s=assignment.deadline_s)) as transport:
        for exercise in assignment.exercises:
            _sum(exercise, seat.rank, assignment, transport, pipe)
        statistics = transport.statistics
        pipe.send(("statistics", statistics.link, statistics.worker))


def _sum(exercise: Exercise, rank: int, plan: Assignment, transport: Transport, pipe: Connection) -> None:
    payloads = exercise.payloads(exercise.values(rank, plan.elements, plan.seed))
    results = []
    start = time.perf_counter()
    for first in range(0, len(payloads), PIECE_CHUNKS):
        piece = payloads[first : first + PIECE_CHUNKS]
        results.append(transport.allreduce(exercise.op, piece).results)
        pipe.send(("progress", exercise.op, len(piece)))
    elapsed_s = time.perf_counter() - start
    pipe.send(("sums", exercise.op, np.concatenate(results), elapsed_s))
