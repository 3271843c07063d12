# SPDX-License-Identifier: Apache-2.0
"""One switch under a controller that makes and ends jobs, writes in batches, and is started again.

After every round, and at the end, what stands on the switch is read and held against what stood before, and the
controller's free slots against all: what is left over is counted, and jobs whose generation was used before.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hopsum.codec import best_table
from hopsum_controlplane import AdoptionStatus, Job, JobSpec, SwitchController, WorkerEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.audit import read_installed
from hopsum_controlplane.devices.device import Device, PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.entries import Delete, Entity, Insert
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_topologies import Bmv2Switch, NativeSwitch
from hopsum_topologies.switch_testbed import SWITCH
from hopsum_wire import MAX_SLOTS

BATCH_UPDATES = 512
SINGLE_UPDATES = 64
_T = TypeVar("_T")
_PHANTOM_GENERATION = 1  # without an entry in `jobs`, so that it admits nobody


class AdoptionError(Exception):
    """A controller that was started again did not find its jobs as it left them."""


@dataclass(slots=True)
class Leaks:
    """The differences found, summed over all looks at the switch. All of them should be 0."""

    entries: int = 0
    slots: int = 0
    generations_used_twice: int = 0

    def __bool__(self) -> bool:
        """Return whether anything was."""
        return bool(self.entries or self.slots or self.generations_used_twice)


def available() -> list[str]:
    """Return the targets that are installed here."""
    return ["native", *(["bmv2"] if shutil.which("simple_switch_grpc") else [])]


class SwitchUnderTest:
    """A switch process of its own with a controller that has no jobs. `jobs` of `workers` each are what it makes."""

    def __init__(self, name: str, stack: ExitStack, jobs: int, workers: int, seed: int) -> None:
        self.name = name
        self.leaks = Leaks()
        self.samples: defaultdict[str, list[float]] = defaultdict(list)
        """The writes per second, or seconds, of every run, by name."""
        self._specs = [_spec(number, workers, MAX_SLOTS // jobs) for number in range(jobs)]
        self._chance = random.Random(seed)
        self._generations: set[int] = set()
        self._stack = stack
        program = compiled_program()
        self._pipeline = PipelineConfig.load(*program)
        switch = NativeSwitch(*program) if name == "native" else Bmv2Switch({})
        stack.callback(switch.stop)
        self._address = switch.address
        self._device = self._open()
        self._controller = SwitchController(self._device, SWITCH)
        self._before = len(read_installed(self._device))

    def cycle(self) -> None:
        """Make all jobs and end them in another order. Look for what is left over."""
        jobs, took_s = _timed(lambda: [self._create(spec) for spec in self._specs])
        writes = sum(len(plan(job).entities) for job in jobs)
        self.samples["create_job_s"].append(took_s / len(jobs))
        order = self._chance.sample(jobs, len(jobs))
        _, ended_s = _timed(partial(self._end, order))
        self.samples["delete_job_s"].append(ended_s / len(jobs))
        self.samples["job_writes_per_s"].append(2 * writes / (took_s + ended_s))
        self._look()

    def batch(self) -> None:
        """Insert and delete entries of members in batches, then one by one."""
        entries = self._members(BATCH_UPDATES)
        for name, size, batch in (
            ("batched_writes_per_s", BATCH_UPDATES, entries),
            ("single_writes_per_s", 1, entries[:SINGLE_UPDATES]),
        ):
            _, took_s = _timed(partial(_write, self._device, batch, size))
            self.samples[name].append(2 * len(batch) / took_s)
        self._look()

    def adopt(self) -> None:
        """Make all jobs, and time a new controller with a new session until it has adopted them. Look once more."""
        jobs = [self._create(spec) for spec in self._specs]
        self._device.close()
        controller, took_s = _timed(lambda: self._restarted(jobs))
        self.samples["adoption_s"].append(took_s)
        fates = [controller.adoptions[job.generation].status for job in jobs]
        if fates.count(AdoptionStatus.RUNNING) < len(jobs):
            raise AdoptionError(
                f"{self.name}: {fates.count(AdoptionStatus.LOST)} of {len(jobs)} jobs were not found complete"
            )
        audit, looked_s = _timed(controller.audit)
        self.samples["audit_s"].append(looked_s)
        if not audit.clean:
            raise AdoptionError(f"{self.name}: after the adoption {'; '.join(audit.in_words())}")
        self._controller = controller
        self._end(jobs)
        self._look()

    def _restarted(self, jobs: Sequence[Job]) -> SwitchController:
        self._device = self._open()
        return SwitchController(self._device, SWITCH, adopt=jobs)

    def _open(self) -> Device:
        device = self._stack.enter_context(open_device(self.name, self._address))
        ensure_pipeline(device, self._pipeline)
        return device

    def _create(self, spec: JobSpec) -> Job:
        job = self._controller.create_job(spec)
        self.leaks.generations_used_twice += job.generation in self._generations
        self._generations.add(job.generation)
        return job

    def _end(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._controller.delete_job(job)

    def _look(self) -> None:
        self.leaks.entries += abs(len(read_installed(self._device)) - self._before)
        self.leaks.slots += MAX_SLOTS - self._controller.free_capacity.slots

    def _members(self, count: int) -> list[Entity]:
        """Return entries of members of jobs that are not."""
        job = Job(self._specs[0], SWITCH, _PHANTOM_GENERATION, 0, SlotRange(0, 1), group=1, window=1)
        entries: Iterator[Entity] = (
            entity
            for number in range(count)
            for entity in plan(replace(job, generation=_PHANTOM_GENERATION + number)).support
            if "worker" in getattr(entity, "match", {})
        )
        return [next(entries) for _ in range(count)]


def _timed(action: Callable[[], _T]) -> tuple[_T, float]:
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def _spec(number: int, workers: int, slots: int) -> JobSpec:
    seats = tuple(
        WorkerEndpoint(rank, rank, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 10000 + number)
        for rank in range(workers)
    )
    return JobSpec(f"job {number}", seats, slots, best_table(workers).values)


def _write(device: Device, entities: Sequence[Entity], size: int) -> None:
    for kind in (Insert, Delete):
        for at in range(0, len(entities), size):
            device.write([kind(entity) for entity in entities[at : at + size]])
