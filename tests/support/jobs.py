# SPDX-License-Identifier: Apache-2.0
"""Jobs, updates and payloads that several tests use."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Worker
from hopsum_oracle.aggregator import JobConfig, WorkerConfig
from hopsum_wire import Event, Header, Kind, Op, up_bytes
from hopsum_wire.payload import SHAPES, TABLE_NAMES

Error = TypeVar("Error", bound=BaseException)
TABLE16 = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)
TABLE4 = (-14, -12, -10, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 10, 12, 14, *range(36, 96, 4))
"""Values, then thresholds, for nine workers. TABLE3 and TABLE2 likewise."""
TABLE3 = (-14, -9, -5, -1, 1, 5, 9, 14, *range(48, 83, 5))
TABLE2 = (-13, -4, 4, 13, 57, 64, 71)
RESULT_TABLES: dict[str, tuple[int, ...]] = {"table4": TABLE4, "table3": TABLE3, "table2": TABLE2}
TABLES: dict[int, tuple[int, ...]] = {
    Op.LOOKUP_ADD8: TABLE,
    Op.LOOKUP_ADD16: TABLE16,
    Op.LOOKUP_ADD_LOOKUP4: TABLE4,
    Op.LOOKUP_ADD_LOOKUP3: TABLE3,
    Op.LOOKUP_ADD_LOOKUP2: TABLE2,
}
"""The tables of all operations that look up."""


OF_TREES = {Event.CLOSED, Event.RESENT, Event.TAKEN, Event.KNOWN, Event.RELAYED}
"""What a switch without parent never counts."""


def spec_options(**options: Any) -> dict[str, Any]:
    """Return fields of a JobSpec for options among which lookup tables have their own names, None for no table."""
    tables = {name: options.pop(name) for name in TABLE_NAMES.values() if name in options}
    return {**options, "tables": {name: table for name, table in tables.items() if table is not None}}


def worker(rank: int) -> WorkerConfig:
    return WorkerConfig(rank, 10 + rank, 0x020000000100 + rank, 0x0A000001 + rank, 5000 + rank)


def job(generation: int = 7, workers: int = 2, *, quorum: int | None = None, **changes: Any) -> JobConfig:
    tables = {"table": TABLE, "table16": TABLE16, **RESULT_TABLES}
    settings: dict[str, Any] = {"job_index": 0, "slot_base": 0, "slots": 4, **tables}
    settings.update(changes)
    members = tuple(worker(rank) for rank in range(workers))
    return JobConfig(generation, workers=members, quorum=quorum or workers, **settings)


def update(rank: int = 0, **changes: int) -> Header:
    settings: dict[str, int] = {"op": Op.ADD32, "generation": 7, "round": 1, "count": 256, **changes}
    length = settings.pop("length", up_bytes(settings["op"]) if settings["op"] in SHAPES else 0)
    return Header(**{"kind": Kind.UPDATE, "worker": rank, "length": length, **settings})


def probe(rank: int = 0, **changes: int) -> Header:
    return Header(**{"kind": Kind.PROBE, "worker": rank, "generation": 7, "round": 1, **changes})


def words(*values: int) -> NDArray[np.uint8]:
    """Payload of 32-bit lanes: these first, then zeros."""
    lanes = np.zeros(256, ">u4")
    lanes[: len(values)] = values
    return lanes.view(np.uint8)


def done(worker: Worker) -> AllReduceDone:
    """Return the next event, an all-reduce that is done."""
    event = worker.next_event()
    assert isinstance(event, AllReduceDone)
    return event


def failed(worker: Worker) -> AllReduceFailed:
    """Return the next event, an all-reduce that failed."""
    event = worker.next_event()
    assert isinstance(event, AllReduceFailed)
    return event


def error_of(worker: Worker, kind: type[Error]) -> Error:
    """Return the error of the next event, which is of a kind."""
    error = failed(worker).error
    assert isinstance(error, kind)
    return error
