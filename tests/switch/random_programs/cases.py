# SPDX-License-Identifier: Apache-2.0
"""A case: a program with its P4Info, what a controller writes, and frames. A seed always gives the same."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from p4.v1.p4runtime_pb2 import Update

from hopsum_switch.engine import Engine
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import CheckedPipeline, RunningPipeline, verify
from hopsum_wire.p4runtime import p4info_pb2

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
