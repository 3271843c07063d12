# SPDX-License-Identifier: Apache-2.0
"""The run behind docs/walkthrough.md: one all-reduce of two workers through the compiled program, packet by packet.

The embedded switch's interpreter runs in this process, and a Trace watches it. Nothing depends on a clock or on chance:
the controller's clock stands still, the codec's random bits follow from seed, step and rank, and its numbers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.base import ReductionContext
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.table import LookupTable
from hopsum.codec.thc import Thc
from hopsum_controlplane import Job, JobSpec, SwitchController
from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.entries import MulticastGroup, TableEntry
from hopsum_ptf.control import CLOCK_S, load_pipeline
from hopsum_ptf.frames import hopsum_header, payload_of, update
from hopsum_ptf.links import OutputFrame
from hopsum_ptf.recording import Exchange
from hopsum_ptf.testbed import SWITCH, make_workers
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.observe.trace import Record, Trace
from hopsum_switch.server import SwitchServer

TABLES: Final = ("switch_address", "jobs", "workers", "lookup", "rewrite")
"""The tables that the controller writes for the job, in the order in which a packet meets them."""
SLOTS: Final = 4
SEED, STEP = 1, 1

TABLE: Final = LookupTable((0, 5, 8, 10, 12, 13, 14, 15, 17, 18, 19, 20, 22, 24, 27, 32), 0.0455002638963584)
"""The lookup table. It truncates beyond 2, so that its values are eighths of the range."""
REPEATED: Final = (
    (2.0, -1.375, 1.0, -0.75, 0.5, -0.375, 0.375, 0.125),
    (1.5, -1.125, 0.5, -0.75, 0.625, 0.125, -0.375, 0.0),
)
"""The repeated values by rank. Rank 0 has root mean square 1 and rank 1 has less, so the range is 1."""
REPETITIONS: Final = 128

Process = Callable[[int, bytes], Sequence[tuple[int, bytes]]]


@dataclass(frozen=True)
class Walk:
    """The whole run."""

    job: Job
    entries: tuple[TableEntry, ...]
    groups: tuple[MulticastGroup, ...]
    ranges: tuple[Exchange, ...]
    """The UPDATEs of both workers, MAX32."""
    updates: tuple[Exchange, ...]
    """The UPDATEs of the slot that the page shows: worker 0, worker 0 again, worker 1, worker 0 late."""
    traces: tuple[Record, ...]
    """The traces of `updates`."""
    gradients: NDArray[np.float32]
    """The gradients of both workers, [2, elements]."""
    means: NDArray[np.float32]
    """The mean as each worker decodes it, [2, elements]."""


def run() -> Walk:
    """Return the run on the interpreter."""
    records: list[Record] = []
    make_engine = engine_maker(Backend.INTERPRETER, observer=Trace(records.append))
    with SwitchServer(make_engine=make_engine) as server, NativeDevice(server.grpc_address) as device:
        job = install(device)
        engine: Any = server.dataplane.engine
        ranges, updates, gradients, means = all_reduce(job, engine.process)
        entries = tuple(entry for table in TABLES for entry in device.read_table(table))
        return Walk(
            job=job,
            entries=entries,
            groups=tuple(device.read_groups()),
            ranges=ranges,
            updates=updates,
            traces=tuple(records[-len(updates) :]),
            gradients=gradients,
            means=means,
        )


def install(device: Device) -> Job:
    """Load the program, and let the controller make the job."""
    device.set_pipeline_config(load_pipeline())
    controller = SwitchController(device, SWITCH, clock=lambda: CLOCK_S)
    return controller.create_job(JobSpec("walkthrough", make_workers(len(REPEATED)), SLOTS, table=TABLE.switch_values))


def all_reduce(
    job: Job, process: Process
) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...], NDArray[np.float32], NDArray[np.float32]]:
    """Let both workers sum through `process`. Return the exchanges of ranges and codes, the gradients and the means."""
    codec = Thc(len(REPEATED), table=TABLE, rotation="none", kernels=load_kernels("numpy"))
    gradients = np.tile(np.array(REPEATED, np.float32), REPETITIONS)
    workers = [codec.start(x, ReductionContext(SEED, STEP, rank)) for rank, x in enumerate(gradients)]
    ranges = _send(job, workers, process, slot=0, order=(0, 1))
    _take(workers, ranges[-1])
    updates = _send(job, workers, process, slot=1, order=(0, 0, 1, 0))
    _take(workers, updates[2])
    return ranges, updates, gradients, np.stack([_mean(worker) for worker in workers])


def _send(
    job: Job, workers: Sequence[RangeReduction], process: Process, *, slot: int, order: Sequence[int]
) -> tuple[Exchange, ...]:
    """Send the current chunk of the workers, one after the other, in the slot's first round."""
    exchanges = []
    for rank in order:
        phase = workers[rank].phase
        assert phase is not None, "the all-reduce goes on"
        count = int(phase.counts()[0])
        frame = update(job, rank, phase.payloads[0].tobytes(), op=phase.op, slot=slot, count=count)
        port = job.spec.workers[rank].port
        outputs = sorted(OutputFrame(out, bytes(sent)) for out, sent in process(port, frame))
        exchanges.append(Exchange(port, frame, tuple(outputs)))
    return tuple(exchanges)


def _take(workers: Sequence[RangeReduction], completed: Exchange) -> None:
    """Hand every worker its RESULT."""
    for _, frame in completed.out:
        header = hopsum_header(frame)
        lanes = np.frombuffer(payload_of(frame), np.uint8)[None]
        workers[header.worker].take(lanes, np.array([header.contributors], np.uint64))


def _mean(worker: RangeReduction) -> NDArray[np.float32]:
    assert worker.mean is not None, "all phases are over"
    return worker.mean
