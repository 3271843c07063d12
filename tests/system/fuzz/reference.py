# SPDX-License-Identifier: Apache-2.0
"""Mutated frames through bmv2: what it sends and counts is what the oracle says.

bmv2's registers cannot be written or read over P4Runtime, so they start at 0, and only what they cause is compared.

Left out: what would be admitted as LOOKUP_ADD16. bmv2 keeps a frame in a buffer of its length and 512 bytes
(`SimpleSwitch::receive_`); a RESULT of LOOKUP_ADD16 is 768 bytes longer than its UPDATE and is written in front of that
buffer, over other memory. bmv2 then ends sooner or later. No other frame grows by more than 512 bytes. And empty
frames: its packet stream passes none.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.entries import Delete, Entity, Insert, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.p4info import P4Info
from hopsum_switch.state.entry_lookup import Exact
from hopsum_wire import Drop, Op

from ...switch.programs import bmv2
from ..contract.bed import PROGRAM, Bed, make_jobs
from .corpus import HOPSUM_AT, Corpus
from .mutations import Mutator
from .rig import FAR_KEPT, FAR_ROUND, frame_of
from .verdicts import SLOT, verdicts

FRAMES_PER_JOB = 4000
MUTATED = 0.97
OP_AT = HOPSUM_AT + 3
NO_PORT = 510
"""A port that the data plane of bmv2 does not take frames from or to."""


class Reference:
    """A bmv2 whose tables follow those of a bed."""

    def __init__(self, switch: bmv2.Bmv2, device: Device, p4info: P4Info) -> None:
        self.switch, self.device = switch, device
        self._p4info = p4info
        self._actual: list[Entity] = []

    def follow(self, bed: Bed) -> None:
        """Give bmv2 the entries and groups of the bed's engine, and no others."""
        wanted = [*self._groups(bed), *self._entries(bed)]
        if self._actual:
            self.device.write([Delete(entity) for entity in reversed(self._actual)])
        self.device.write([Insert(entity) for entity in wanted])
        self._actual = wanted

    def counters(self) -> dict[str, dict[int, int]]:
        """Return drops and events by cell, as `Bed.counters`."""
        read = {name: enumerate(self.device.read_counter(name)) for name in ("drops", "job_events")}
        return {name: {index: cell.packets for index, cell in cells if cell.packets} for name, cells in read.items()}

    def _groups(self, bed: Bed) -> list[MulticastGroup]:
        groups = bed.engine.multicast.all_by_number()
        return [
            MulticastGroup(number, tuple(Replica(*replica) for replica in replicas))
            for number, replicas in groups.items()
        ]

    def _entries(self, bed: Bed) -> Iterator[TableEntry]:
        for name in PROGRAM.tables:
            if name not in self._p4info.tables:
                continue
            keys = [key.name for key in self._p4info.tables[name].keys]
            for entry in bed.engine.tables[name].entries():
                if entry.is_const:
                    continue
                values = [match.value for match in entry.match if isinstance(match, Exact)]
                action = self._p4info.actions[entry.call.action.name]
                params = dict(zip([param.name for param in action.params], entry.call.args, strict=True))
                yield TableEntry(name, dict(zip(keys, values, strict=True)), action.name, params)


@contextmanager
def reference() -> Iterator[Reference]:
    """Start a bmv2 with the program."""
    json, p4info = compiled_program()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsum-fuzz-")))
        switch = stack.enter_context(bmv2.running(folder))
        device = stack.enter_context(Bmv2Device(switch.address, bmv2.DEVICE_ID))
        device.set_pipeline_config(PipelineConfig.load(json, p4info))
        yield Reference(switch, device, P4Info.from_text(p4info.read_text()))


def compare(subject: Reference, seed: int, frames: int) -> tuple[Counter[str], Counter[Drop]]:
    """Send frames through bmv2 and the oracle; return the numbers of frames, outputs and frames left out, and drops."""
    numbers, draws = np.random.default_rng(seed), random.Random(seed)
    bed = Bed.make(draws)
    corpus, mutator = Corpus(numbers), Mutator(numbers)
    met: Counter[str] = Counter()
    for first in range(0, frames, FRAMES_PER_JOB):
        if first:
            bed.replace_jobs(make_jobs(draws, 10 + first))
            corpus.restart()
        subject.follow(bed)
        count = min(FRAMES_PER_JOB, frames - first)
        rounds = corpus.rounds(count)
        some = corpus.draw(count, bed.jobs)
        mutator.mutate(some, np.flatnonzero(numbers.random(count) < MUTATED))
        mutator.damp(some, rounds, FAR_ROUND, FAR_KEPT)
        some.ports[some.ports == NO_PORT] = 1
        too_long = (verdicts(some, bed.jobs) == SLOT) & (some.rows[:, OP_AT] == Op.LOOKUP_ADD16)
        left_out = too_long | (some.lengths == 0)
        for number in np.flatnonzero(~left_out).tolist():
            port, frame = frame_of(some, number)
            expected = bed.oracle.receive_frame(port, frame)
            got = subject.switch.process(port, frame)
            assert Counter(got) == Counter(expected), f"seed {seed}, frame {first + number}, port {port}: {frame.hex()}"
            met["outputs"] += len(got)
        met["frames"] += count - int(left_out.sum())
        met["left out"] += int(left_out.sum())
        assert subject.counters() == bed.oracle_counters(), f"seed {seed}, after {first + count} frames"
    return met, bed.oracle.drops
