# SPDX-License-Identifier: Apache-2.0
"""The base of all cases: a switch with an empty program, an oracle to compare it with, and sentences to write cases in.

Every frame goes to the switch and to the oracle, and the switch must send the oracle's frames bit for bit, through the
same ports, and no others. The sentences (`added`, `completed`, `stale`, ...) also state the outcome that the case
expects of both, so that a rule missing in both is noticed. At the end of a case the counters must be the oracle's.

A case is a subclass with a `runTest`. It may use `self.job(...)` as often as it likes.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import ptf
from numpy.typing import ArrayLike, NDArray
from ptf import testutils

from hopsum_controlplane import Job, JobSpec, SwitchController, WorkerEndpoint
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.entries import Delete, Insert
from hopsum_controlplane.tables import forward
from hopsum_oracle.aggregator import AggregatorConfig
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_ptf import control, frames
from hopsum_ptf.case_places import BROADCAST_MAC, PORTS, SWITCH, barrier_mac, make_workers, station_mac
from hopsum_ptf.port_links import Links, OutputFrame
from hopsum_ptf.recording import Exchange, Recording, multiset
from hopsum_ptf.targets import TARGETS
from hopsum_topologies.ptf.case_results import Result
from hopsum_topologies.ptf.reported import ReportedTest
from hopsum_wire import Drop, Event, Header, Kind, Op, State, down_bytes, up_bytes
from hopsum_wire.payload import TABLE_NAMES
from hopsum_wire.payload import lanes as lanes_of

TABLES: Final[dict[str, tuple[int, ...]]] = {
    "table": (0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 19, 20),
    "table16": (0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 19, 20),
    "table4": (*range(-15, 16, 2), *range(36, 96, 4)),
    "table3": (*range(-14, 18, 4), *range(40, 96, 8)),
    "table2": (-20, -3, 4, 25, 50, 65, 77),
}
"""A table of each operation that looks up, by its name in a JobSpec, for up to five workers."""


@functools.cache
def _device() -> Device:
    """Connect once for all cases of this process."""
    parameters = testutils.test_params_get()
    device = TARGETS[parameters["target"]].open_device(parameters["address"], parameters["device_id"])
    atexit.register(device.close)
    return device


@functools.cache
def _pipeline() -> PipelineConfig:
    return TARGETS[testutils.test_params_get()["target"]].load_pipeline()


class SwitchCase(ReportedTest):
    """One case on one switch."""

    recorded = True
    """Flag: every run of the case gives the same packets. A case that draws random numbers in the switch does not."""

    def setUp(self) -> None:
        """Push the program, make controller, oracle and links of the case, and write forwarding for all ports."""
        super().setUp()
        self.maxDiff = None
        self._jobs_made = 0
        self.observers: dict[int, tuple[WorkerEndpoint, ...]] = {}
        """The observers of jobs, by generation."""
        self._recording = Recording(self.case_name())
        self.device = _device()
        if testutils.test_param_get("record"):
            self.device = control.RecordingDevice(_device(), self._recording)
        # A push gives empty tables and registers, so no case sees what the one before left.
        self.device.set_pipeline_config(_pipeline())
        self.controller = SwitchController(self.device, SWITCH, clock=lambda: control.CLOCK_S)
        self.links = Links(ptf.dataplane_instance, PORTS)
        self._forwarding()

    def tearDown(self) -> None:
        """Fail the case if the switch's counters are not the oracle's, or a packet is left on a link."""
        # A frame that nothing explains would be taken as an answer by the next case.
        self.links.check_empty()
        counters = control.read_counters(self.device)
        self._recording.counters = counters
        expected = control.oracle_counters(*self._counted())
        self.assertEqual(counters, expected, "counters of the switch (first) and of the oracle (second)")
        super().tearDown()

    # ---- what the target can do ---------------------------------------------------------------------------

    @property
    def operations(self) -> tuple[Op, ...]:
        """Return the operations of this target: bmv2 has no room for the result of LOOKUP_ADD16."""
        can = self.device.capabilities
        # LOOKUP_ADD16 grows from codes to lanes by more than bmv2's buffer has in front of a frame.
        limit = can.max_growth_bytes
        return tuple(op for op in Op if op in can.ops and (limit is None or down_bytes(op) - up_bytes(op) <= limit))

    def require(self, op: Op) -> None:
        """Skip the case, by raising SkipTest, on a target without this operation."""
        if op not in self.operations:
            target, limit = self.device.capabilities.target, self.device.capabilities.max_growth_bytes
            if op not in self.device.capabilities.ops:
                self.skipTest(f"{op.name}: no operation of the program of {target}")
            self.skipTest(f"{op.name}: a frame in {target} grows by {limit} bytes at most, p4/README.md says why")

    # ---- what there is ------------------------------------------------------------------------------------

    def job(self, workers: int | Sequence[WorkerEndpoint] = 3, *, slots: int = 4, **options: Any) -> Job:
        """Make a job through the controller and in the oracle. No other job has the addresses of its workers.

        `workers` is their number, or their endpoints.
        `options` are lookup tables by name, and those of a JobSpec: quorum, min_quorum, leaves, parent. On a target
        without an operation the job has no table for it.
        """
        asked = {op: options.pop(name) for op, name in TABLE_NAMES.items() if name in options}
        tables = {TABLE_NAMES[op]: table for op, table in asked.items() if op in self.operations}
        if isinstance(workers, int):
            # Every job has addresses of its own: S1 separates jobs by generation, and a shared address would hide a
            # fault.
            workers = make_workers(workers, job=self._jobs_made)
        spec = JobSpec(f"job {self._jobs_made}", tuple(workers), slots, tables, **options)
        self._jobs_made += 1
        job = self.controller.create_job(spec)
        self.oracle.add_job(control.oracle_job(job))
        return job

    def observe(self, job: Job, observer: WorkerEndpoint) -> None:
        """Add an observer to a job, on the switch and in the oracle. The controller has no observers."""
        self.device.write([Insert(entry) for entry in control.observer_entries(job, observer)])
        self.observers[job.generation] = (*self.observers.get(job.generation, ()), observer)
        known = self.oracle.jobs[job.generation]
        self.oracle.jobs[job.generation] = replace(known, observers=(*known.observers, control.oracle_member(observer)))

    def end_job(self, job: Job) -> None:
        """End a job and its observers, through the controller and in the oracle. The registers keep their values."""
        self.controller.delete_job(job)
        for observer in self.observers.pop(job.generation, ()):
            self.device.write([Delete(entry) for entry in control.observer_entries(job, observer)])
        self.oracle.remove_job(job.generation)

    def set_quorum(self, job: Job, quorum: int) -> None:
        """Change the quorum of a running job, on the switch and in the oracle. The controller never does (rule E1)."""
        self.device.write([control.quorum_update(job, quorum)])
        self.oracle.jobs[job.generation] = replace(self.oracle.jobs[job.generation], quorum=quorum)

    def set_tables(self, job: Job, **tables: Any) -> None:
        """Give a job tables that the controller would refuse because sums may leave their lanes.

        `tables` are those of a JobSpec by name. The job had a table of each of these names before.
        """
        self.device.write(control.table_updates(job, tables))
        self.oracle.jobs[job.generation] = replace(self.oracle.jobs[job.generation], **tables)

    # ---- one frame ----------------------------------------------------------------------------------------

    def send(self, port: int, frame: bytes) -> list[OutputFrame]:
        """Send a frame to the switch and to the oracle, and return the frames that came out of the switch, by port.

        Fails the case if they are not the oracle's. `self.outcome` is the oracle's outcome. Records the frame.
        """
        # The oracle goes first: its prediction says at which ports to wait for frames.
        self.outcome, predicted = self.oracle.explain_frame(port, frame)
        expected = [OutputFrame(*output) for output in predicted]
        outputs = self.links.exchange(port, frame, [output.port for output in expected])
        self.record(port, frame, outputs)
        if multiset(outputs) != multiset(expected):
            self.fail(_difference(port, frame, outputs, expected))
        return outputs

    def record(self, port: int, frame: bytes, outputs: Sequence[OutputFrame]) -> None:
        """Add a frame and its outcome to the recording. `send` calls this."""
        self._recording.steps.append(Exchange(port, frame, tuple(outputs)))

    def send_update(self, job: Job, rank: int, payload: bytes, **header: int) -> list[OutputFrame]:
        """Send a worker's UPDATE through its port, and return as `send` does.

        `header` has op, slot, round, count and flags, by default those of `frames.update`. The sentences below take the
        same arguments.
        """
        return self.send(job.spec.workers[rank].port, frames.update(job, rank, payload, **header))

    # ---- sentences ----------------------------------------------------------------------------------------

    def added(self, job: Job, rank: int, payload: bytes, **header: int) -> None:
        """Send an UPDATE that must enter the sum. No packet leaves."""
        self._silent(job, rank, payload, header, Event.ADDED)

    def added_over_unfinished(self, job: Job, rank: int, payload: bytes, **header: int) -> None:
        """Send an UPDATE that must open a newer round over one that is not complete: a fault. No packet leaves."""
        self._silent(job, rank, payload, header, Event.FAULT, Event.ADDED)

    def ignored(self, job: Job, rank: int, payload: bytes, **header: int) -> None:
        """Send an UPDATE that must be a duplicate while the round collects. No packet leaves."""
        self._silent(job, rank, payload, header, Event.DUPLICATE)

    def completed(self, job: Job, rank: int, payload: bytes, **header: int) -> NDArray[Any]:
        """Send an UPDATE that must complete the round: RESULT to every worker of the job. Return its lanes."""
        return self._completes(job, rank, payload, header, Event.ADDED, Event.COMPLETED)

    def completed_over_unfinished(self, job: Job, rank: int, payload: bytes, **header: int) -> NDArray[Any]:
        """Send an UPDATE that must open a newer round over an unfinished one and complete it. Return its lanes."""
        return self._completes(job, rank, payload, header, Event.FAULT, Event.ADDED, Event.COMPLETED)

    def closed(self, job: Job, rank: int, payload: bytes, **header: int) -> NDArray[Any]:
        """Send a duplicate with FLUSH that must complete the round as it is: RESULT to every worker. Return its lanes.

        The caller sets FLUSH in `flags`.
        """
        return self._completes(job, rank, payload, header, Event.COMPLETED)

    def answered(self, job: Job, rank: int, payload: bytes, **header: int) -> NDArray[Any]:
        """Send an UPDATE of a round that must be complete already: RESULT to this worker alone. Return its lanes."""
        outputs = self.send_update(job, rank, payload, **header)
        self.assertEqual(self.outcome.events, (Event.ANSWERED,))
        ((port, reply, lanes),) = self._results(outputs, header)
        self.assertEqual((port, reply.worker), (job.spec.workers[rank].port, rank))
        return lanes

    def stale(self, job: Job, rank: int, payload: bytes, *, held: int, **header: int) -> Header:
        """Send an UPDATE to a slot that must be at a later round, `held`: STALE to this worker alone.

        Returns the header of STALE.
        """
        outputs = self.send_update(job, rank, payload, **header)
        self.assertEqual(self.outcome.events, (Event.STALE,))
        ((port, frame),) = outputs
        reply = frames.hopsum_header(frame)
        self.assertEqual(len(frame), frames.PAYLOAD_AT)
        self.assertEqual((port, reply.worker), (job.spec.workers[rank].port, rank))
        self.assertEqual((reply.kind, reply.held, reply.round), (Kind.STALE, held, header.get("round", 1)))
        return reply

    def state(self, job: Job, asker: WorkerEndpoint, **header: int) -> Header:
        """Send a PROBE of a worker or an observer, which alone must get STATE. Return the header of STATE.

        `header` has slot, round and count of the PROBE.
        """
        outputs = self.send(asker.port, frames.probe(job, asker, **header))
        self.assertEqual(self.outcome.events, (Event.PROBED,))
        ((port, frame),) = outputs
        reply = frames.hopsum_header(frame)
        self.assertEqual(len(frame), frames.PAYLOAD_AT)
        self.assertEqual((port, reply.worker, reply.kind), (asker.port, asker.rank, Kind.STATE))
        self.assertEqual((reply.slot, reply.round), (header.get("slot", 0), header.get("round", 1)))
        return reply

    def holds(
        self, job: Job, asker: WorkerEndpoint, what: State, *, held: int = 0, by: Collection[int] = (),
        op: int = Op.ADD32, **header: int,
    ) -> None:  # fmt: skip
        """Send a PROBE, and require this state of the copy: round `held`, operation `op`, and the ranks in `by`.

        `header` is that of `state`.
        """
        reply = self.state(job, asker, **header)
        expected = (what, held, sum(1 << rank for rank in by), 0 if what is State.EMPTY else op)
        self.assertEqual((reply.count, reply.held, reply.contributors, reply.op), expected)

    def replied(self, port: int, frame: bytes) -> bytes:
        """Send a frame. One frame, and no other, must come back through the same port. Return that frame."""
        ((out, reply),) = self.send(port, frame)
        self.assertEqual((out, self.outcome.events), (port, ()))
        return reply

    def refused(self, port: int, frame: bytes, reason: Drop) -> None:
        """Send a frame. Nothing must come out, and the drop must be counted under this reason."""
        outputs = self.send(port, frame)
        self.assertEqual((self.outcome.drop, outputs), (reason, []))

    def forwarded(self, port: int, frame: bytes, to: Sequence[int]) -> None:
        """Send a frame. It must leave unchanged through these ports, and no others."""
        self.assertEqual(self.send(port, frame), [OutputFrame(out, frame) for out in sorted(to)])

    def assert_lanes(self, lanes: NDArray[Any], expected: ArrayLike) -> None:
        """Fail the case unless lanes have the expected values. A scalar stands for all lanes."""
        np.testing.assert_array_equal(lanes, np.broadcast_to(np.asarray(expected), lanes.shape))

    # ---- inside -------------------------------------------------------------------------------------------

    def _counted(self) -> tuple[dict[Drop, int], dict[tuple[int, Event], int]]:
        """Return the oracle's drops and job_events without those that the target's program does not count."""
        target = self.device.capabilities.target
        no_drops = control.UNCOUNTED_DROPS.get(target, frozenset())
        no_events = control.UNCOUNTED_EVENTS.get(target, frozenset())
        return (
            {reason: packets for reason, packets in self.oracle.drops.items() if reason not in no_drops},
            {key: packets for key, packets in self.oracle.job_events.items() if key[1] not in no_events},
        )

    def _forwarding(self) -> None:
        stations = {station_mac(port): port for port in PORTS}
        barriers = {barrier_mac(port): port for port in PORTS}
        entries = [*forward.broadcast(PORTS), *forward.l2({**stations, **barriers})]
        self.device.write([Insert(entry) for entry in entries])
        config = AggregatorConfig(
            mac=mac_to_int(SWITCH.mac),
            ip=ipv4_to_int(SWITCH.ip),
            forwarding={mac_to_int(mac): port for mac, port in stations.items()},
            floods={BROADCAST_MAC: PORTS},
        )
        self.oracle = FrameAggregator(config)

    def _completes(self, job: Job, rank: int, payload: bytes, header: dict[str, int], *events: Event) -> NDArray[Any]:
        outputs = self.send_update(job, rank, payload, **header)
        self.assertEqual(self.outcome.events, events)
        received = self._results(outputs, header)
        everybody = [(worker.port, worker.rank) for worker in job.spec.workers]
        self.assertEqual(sorted((port, reply.worker) for port, reply, _ in received), sorted(everybody))
        return received[0][2]

    def _silent(self, job: Job, rank: int, payload: bytes, header: dict[str, int], *events: Event) -> None:
        outputs = self.send_update(job, rank, payload, **header)
        self.assertEqual((self.outcome.events, outputs), (events, []))

    def _results(
        self, outputs: Sequence[OutputFrame], header: dict[str, int]
    ) -> list[tuple[int, Header, NDArray[Any]]]:
        received = []
        for port, frame in outputs:
            reply = frames.hopsum_header(frame)
            self.assertEqual((reply.kind, reply.round, reply.held), (Kind.RESULT, header.get("round", 1), 0))
            self.assertEqual(reply.flags, 0)
            payload = np.frombuffer(frames.payload_of(frame), np.uint8)
            received.append((port, reply, lanes_of(header.get("op", Op.ADD32), payload)))
        return received

    def report(self, result: Result) -> None:
        """Write the recording of a case that passed, where one is wanted, and report as every test does."""
        folder = testutils.test_param_get("record")
        if folder and result.outcome == "ok" and self.recorded:
            self._recording.save(Path(folder))
        super().report(result)


def _difference(port: int, frame: bytes, outputs: Sequence[OutputFrame], expected: Sequence[OutputFrame]) -> str:
    lines = [f"sent into port {port}: {frames.describe(frame)}"]
    for title, some, others in (("missing", expected, outputs), ("unexpected", outputs, expected)):
        rest = list(others)
        for output in some:
            if output in rest:
                rest.remove(output)
            else:
                lines.append(f"{title} on port {output.port}: {frames.describe(output.frame)}")
    return "\n".join(lines)
