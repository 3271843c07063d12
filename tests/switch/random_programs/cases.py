# SPDX-License-Identifier: Apache-2.0
"""A case: a program with its P4Info, what a controller writes, and frames. A seed always gives the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from p4.v1.p4runtime_pb2 import Update

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.engine import Engine
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import CheckedPipeline, RunningPipeline, verify

from ..coverage import Coverage
from .control import p4info, random_writes
from .frames import random_frames
from .programs import random_program


@dataclass(frozen=True)
class Case:
    """One case; `mutations` says how many of the frames are no valid ones."""

    program: bytes
    info: p4info_pb2.P4Info
    writes: Sequence[Update]
    frames: Sequence[tuple[int, bytes]]
    mutations: int = 0

    def pipeline(self) -> CheckedPipeline:
        """Return the loaded program; fail if P4Info and program do not belong together."""
        return verify(self.info, self.program)

    def write_to(self, pipeline: CheckedPipeline, *engines: Engine) -> None:
        """Write what the controller writes to engines."""
        for engine in engines:
            target = RunningPipeline(pipeline, engine)
            for update in self.writes:
                write_update(target, update)


def random_case(seed: int, frames: int, *, guarded: bool = False) -> Case:
    """Return the case of a seed with so many frames; for `guarded` see `Shape`."""
    rng = random.Random(seed)
    shape, program = random_program(rng, guarded=guarded)
    writes = random_writes(rng, shape, program)
    sent, mutations = random_frames(rng, shape, program["parsers"][0], frames)
    return Case(json.dumps(program).encode(), p4info(shape, program), writes, sent, mutations)


KINDS = ("state", "transition", "hit or miss", "table action", "call", "condition", "drop", "counter")


class Summary:
    """Parts met and parts there, over many programs."""

    def __init__(self) -> None:
        self._met: Counter[str] = Counter()
        self._there: Counter[str] = Counter()
        self.programs = self.frames = self.mutations = self.sent = 0

    def add(self, coverage: Coverage) -> None:
        """Add one program."""
        self._met.update(map(_kind, coverage.met()))
        self._there.update(map(_kind, coverage.parts()))
        self.programs += 1

    def share(self, kind: str) -> float:
        """Return which part of a kind was met, 0 to 1."""
        return self._met[kind] / self._there[kind]

    def report(self) -> str:
        """Return one line on the frames and one per kind of part."""
        head = f"{self.programs} programs, {self.frames} frames, {self.mutations} of them mutations, {self.sent} sent"
        lines = [f"  {kind}: {self._met[kind]} of {self._there[kind]}" for kind in KINDS]
        return "\n".join([head, *lines])


def _kind(part: str) -> str:
    kind = part.partition(" ")[0]
    if kind != "table":
        return kind
    return "hit or miss" if part.endswith((": hit", ": miss")) else "table action"
