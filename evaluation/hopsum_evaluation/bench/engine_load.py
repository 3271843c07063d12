# SPDX-License-Identifier: Apache-2.0
"""An engine of the embedded switch by itself: frames and replies in memory, every reply compared."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hopsum_controlplane import Job, JobSpec, SwitchController, WorkerEndpoint
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_evaluation.bench.made_datagrams import CODES, VARIANTS, Pool, WrongResultError, headers_of, make_pool
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import Batch, NativeEngine, Outputs
from hopsum_switch.program import load_program
from hopsum_switch.server import SwitchServer
from hopsum_topologies.local_cluster import SWITCH
from hopsum_wire import HOPSUM_BYTES, HOPSUM_UDP_PORT, Header, Kind, Op, down_bytes
from hopsum_wire.datagrams import update_template
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame, stamp_frames
from hopsum_wire.payload import TABLE_NAMES

_LOWER_BYTES = FRAME_OVERHEAD_BYTES - HOPSUM_BYTES


class EngineRun(ABC):
    """An engine of the embedded switch with a job, and a round of UPDATE frames for each call.

    The switch is a whole one, with its P4Runtime server, so that the control plane makes the job as anywhere. Only its
    ports are left out. Between calls, while no clock runs, all replies are compared with the frames that numpy makes.

    name: of the engine.
    frames: number of UPDATEs of a call, worker by worker as bursts arrive.
    """

    name: str

    def __init__(self, engine: Engine, job: Job, pool: Pool) -> None:
        self._engine = engine
        self._updates = [_updates(job, pool, variant) for variant in range(VARIANTS)]
        self._expected = [_results(job, pool, variant) for variant in range(VARIANTS)]
        self._round = 0
        self._least_s = float("inf")
        self.frames = len(self._updates[0])
        self.ports = np.repeat([worker.port for worker in job.spec.workers], job.slots).astype(np.uint64)

    def run(self, seconds: float) -> float:
        """Let the engine work for so many seconds, call by call, one call at least. Return UPDATEs per second.

        The time between calls, for comparison, does not count. Raises WrongResultError: a reply is not what it must be.
        """
        spent_s, calls = 0.0, 0
        while spent_s < seconds or not calls:
            self._round += 1
            variant = self._round % VARIANTS
            # Only the round number differs between the rounds of a variant: a stamp makes the next round.
            for frames in (self._updates[variant], self._expected[variant]):
                headers_of(frames[:, _LOWER_BYTES:])["round"] = self._round
            took_s = self._call(variant)
            spent_s += took_s
            self._least_s = min(self._least_s, took_s)
            replies = self._replies()
            if replies != self._expected[variant].tobytes():
                raise WrongResultError(f"{self.name}: the replies to round {self._round} are not numpy's")
            calls += 1
        return calls * self.frames / spent_s

    def effort(self) -> dict[str, float]:
        """Return nanoseconds per UPDATE: `least_ns_per_packet` and `copy_ns_per_packet`.

        The first is of the fastest call of `run` so far, infinite before one. The second is the time to copy a call's
        frames and replies, measured now.
        """
        return {
            "least_ns_per_packet": round(1e9 * self._least_s / self.frames, 1),
            "copy_ns_per_packet": round(1e9 * self._copy_s() / self.frames, 1),
        }

    def _copy_s(self, times: int = 50) -> float:
        sources = (self._updates[0], self._expected[0])
        targets = [np.empty_like(source) for source in sources]
        took = []
        for _ in range(times):
            start = time.perf_counter()
            for source, target in zip(sources, targets, strict=True):
                np.copyto(target, source)
            took.append(time.perf_counter() - start)
        return min(took)

    @abstractmethod
    def _call(self, variant: int) -> float:
        """Process a round. Return the seconds that the engine took."""

    @abstractmethod
    def _replies(self) -> bytes:
        """Join the replies to the last round, slot by slot, the replies of a slot in the order of ranks."""


class InterpreterRun(EngineRun):
    """Frame by frame through `Engine.process`, as any engine can."""

    name = "interpreter"

    def __init__(self, engine: Engine, job: Job, pool: Pool) -> None:
        super().__init__(engine, job, pool)
        self._outputs: list[bytes] = []

    def _call(self, variant: int) -> float:
        frames = [frame.tobytes() for frame in self._updates[variant]]
        ports = self.ports.tolist()
        start = time.perf_counter()
        self._outputs = [
            output.frame
            for port, frame in zip(ports, frames, strict=True)
            for output in self._engine.process(port, frame)
        ]
        return time.perf_counter() - start

    def _replies(self) -> bytes:
        return b"".join(self._outputs)


class NativeRun(EngineRun):
    """All frames of a round in one call of native code."""

    name = "native"

    def __init__(self, engine: NativeEngine, job: Job, pool: Pool) -> None:
        super().__init__(engine, job, pool)
        self._native = engine
        size = self._updates[0].shape[1]
        offsets, lengths = np.arange(self.frames) * size, np.full(self.frames, size)
        self._batches = [
            Batch(frames.reshape(-1), self.ports, offsets.astype(np.uint64), lengths.astype(np.uint64))
            for frames in self._updates
        ]
        # Before each frame the native code asks for room for one more group of replies, also before the last one.
        room = self.frames + pool.workers
        self._outputs = Outputs(room, 2 * room * self._expected[0].shape[-1])

    def _call(self, variant: int) -> float:
        start = time.perf_counter()
        done = self._native.process_batch(self._batches[variant], self._outputs)
        took_s = time.perf_counter() - start
        if done != self.frames:
            raise WrongResultError(f"{self.name}: a call took {done} of {self.frames} frames")
        return took_s

    def _replies(self) -> bytes:
        return self._outputs.data[: int(self._outputs.lengths[: self._outputs.count].sum())].tobytes()


@contextmanager
def engine_runs(
    backend: Backend, workers: int, slots: int, tables: Mapping[Op, tuple[int, ...]], seed: int
) -> Iterator[dict[Op, EngineRun]]:
    """Start a switch in this process, push the program, make a job for each operation, and yield a run for each.

    `tables` has the lookup table of each operation. The end of the block ends jobs and switch.
    """
    program = compiled_program()
    if backend is Backend.NATIVE:
        # Compile into the cache first: the control plane does not wait minutes for a push.
        engine_maker(backend)(load_program(program[0].read_text()))
    with ExitStack() as stack:
        server = stack.enter_context(SwitchServer(make_engine=engine_maker(backend)))
        device = stack.enter_context(NativeDevice(server.grpc_address, server.device_id))
        device.set_pipeline_config(PipelineConfig.load(*program))
        seats = tuple(
            WorkerEndpoint(r, r + 1, f"02:00:00:00:01:{r:02x}", f"10.0.0.{r + 1}", 6000) for r in range(workers)
        )
        controller = SwitchController(device, SWITCH)
        runs: dict[Op, EngineRun] = {}
        for op, table in tables.items():
            job = controller.create_job(JobSpec(f"pipeline {op.name}", seats, slots, {TABLE_NAMES[op]: table}))
            stack.callback(controller.delete_job, job)
            pool = make_pool(job.generation, workers, slots, table, seed, op)
            engine = server.dataplane.engine
            if isinstance(engine, NativeEngine):
                runs[op] = NativeRun(engine, job, pool)
            else:
                assert isinstance(engine, Engine)
                runs[op] = InterpreterRun(engine, job, pool)
        yield runs


def _rows(pool: Pool, variant: int) -> slice:
    return slice(variant * pool.slots, (variant + 1) * pool.slots)


def _updates(job: Job, pool: Pool, variant: int) -> NDArray[np.uint8]:
    """Build the UPDATE frames of one round, worker by worker: uint8[workers * slots, bytes]."""
    stamped = []
    for worker, datagrams in zip(job.spec.workers, pool.updates, strict=True):
        path = FramePath(
            src_mac=mac_to_int(worker.mac),
            dst_mac=mac_to_int(SWITCH.mac),
            src_ip=ipv4_to_int(worker.ip),
            dst_ip=ipv4_to_int(SWITCH.ip),
            src_port=worker.udp_port,
        )
        template = update_template(op=pool.op, generation=job.generation, worker=worker.rank)
        payloads = datagrams[_rows(pool, variant), HOPSUM_BYTES:]
        stamped.append(
            stamp_frames(path, template, slots=np.arange(job.slots), rounds=1, counts=CODES, payloads=payloads)
        )
    return np.concatenate(stamped)


def _results(job: Job, pool: Pool, variant: int) -> NDArray[np.uint8]:
    """Build the RESULT frames of one round, those of a slot together: uint8[slots * workers, bytes]."""
    header = Header(
        kind=Kind.RESULT, op=pool.op, generation=job.generation, count=CODES,
        contributors=(1 << pool.workers) - 1, length=down_bytes(pool.op),
    )  # fmt: skip
    templates = [
        build_frame(
            FramePath(
                src_mac=mac_to_int(SWITCH.mac),
                dst_mac=mac_to_int(worker.mac),
                src_ip=ipv4_to_int(SWITCH.ip),
                dst_ip=ipv4_to_int(worker.ip),
                src_port=HOPSUM_UDP_PORT,
                dst_port=worker.udp_port,
            ),
            replace(header, worker=worker.rank),
            bytes(header.length),
        )
        for worker in job.spec.workers
    ]
    frames = np.tile(np.frombuffer(b"".join(templates), np.uint8).reshape(len(templates), -1), (job.slots, 1))
    frames[:, FRAME_OVERHEAD_BYTES:] = np.repeat(pool.sums[_rows(pool, variant)].view(np.uint8), pool.workers, axis=0)
    headers_of(frames[:, _LOWER_BYTES:])["slot"] = np.repeat(np.arange(job.slots), pool.workers)
    return frames
