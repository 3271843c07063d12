# SPDX-License-Identifier: Apache-2.0
"""What workers of section `accuracy` are told and answer, without torch: the parent has no need of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from hopsum.cli.stage.seat import Seat
from hopsum_topologies.netns import enter_namespace

_MODULE: Final = "hopsum.cli.report.accuracy_worker"


@dataclass(frozen=True, slots=True)
class Plan:
    """What all workers of one crew do."""

    workers: int
    steps: int
    batch: int
    every: int
    """Steps between looks at the test images."""
    folder: Path


class Order(NamedTuple):
    """One training."""

    scheme: str
    seed: int


class Trained(NamedTuple):
    """One training on one rank."""

    points: list[tuple[int, float, float]]
    """Steps, seconds of training so far, test accuracy; of rank 0."""
    step_s: float
    """Mean of the steps after the first."""
    compute_s: float
    """Of a step without its all-reduce, all workers at the same time; median."""
    reduce_s: float | None
    """Of the all-reduce alone; median; None where it has no form of its own."""


def work(seat: Seat, plan: Plan, pipe: Connection) -> None:
    """Be one worker: first enter the namespace, then import and open what is needed."""
    assert seat.namespace is not None
    enter_namespace(seat.namespace)
    import_module(_MODULE).work(seat, plan, pipe)
