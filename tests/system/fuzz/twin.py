# SPDX-License-Identifier: Apache-2.0
"""The interpreter compared with native code: a sample of the batches, from the same registers, watched by a Coverage.

What no frame can meet is named in `UNREACHABLE`, with the reason; whatever else is not met is missed.
"""

from __future__ import annotations

import random
import re
from functools import partial

import numpy as np

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop

from ...switch.coverage import Coverage
from ..contract.bed import PROGRAM, Bed
from .corpus import Corpus, Frames
from .mutations import PORTS, Mutator
from .rig import Rig, Sent, frame_of

LOSS = 1 << 30
"""A quarter of the frames, each way."""
_LINE = re.compile(r"(?<=\.p4)\(\d+\)")

UNREACHABLE = {
    "table HopsumIngress.slot.decide: miss": "its constant entries cover every key",
    **dict.fromkeys(
        (
            "table HopsumEgress.rewrite.rewrite: miss",
            "table HopsumEgress.rewrite.rewrite: HopsumEgress.rewrite.no_worker",
            "drop HopsumEgress.rewrite.no_worker v1model/reply.p4: mark_to_drop(standard_metadata)",
            "table HopsumEgress.parent_rewrite.parent_rewrite: miss",
            "table HopsumEgress.parent_rewrite.parent_rewrite: HopsumEgress.parent_rewrite.no_parent",
            "drop HopsumEgress.parent_rewrite.no_parent v1model/tree.p4: mark_to_drop(standard_metadata)",
        ),
        "only a control plane that admits a worker without its address gets there",
    ),
    **dict.fromkeys(
        (
            "table HopsumIngress.requantize.requantize: miss",
            "table HopsumIngress.requantize.requantize: HopsumIngress.requantize.no_table",
        ),
        "only a control plane that makes a root without thresholds gets there: contract/test_program_is_oracle.py",
    ),
    "counter HopsumIngress.drops[0]": "NONE is not dropped",
    **{f"counter HopsumIngress.drops[{cell}]": "no reason has this number" for cell in range(len(Drop), 32)},
}
"""By part, without line numbers: why no frame meets it."""


class Twin:
    """Sends every `every`-th batch of a rig, from the first on, through the interpreter too."""

    def __init__(self, every: int) -> None:
        self.coverage = Coverage(PROGRAM)
        self._every = every
        self._batches = 0

    def watch(self, rig: Rig, frames: Frames, sent: list[Sent]) -> None:
        """Compare outputs and registers of a batch, if it is one of the sample."""
        self._batches += 1
        if (self._batches - 1) % self._every:
            return
        bed = Bed(Engine(PROGRAM, observer=self.coverage), rig.bed.oracle, rig.bed.jobs)
        bed.configure()
        rig.before.load(bed.engine)
        for number, expected in enumerate(sent):
            got = bed.process(*frame_of(frames, number))
            assert got == expected, f"seed {rig.seed}, {rig.text(frames, number)}: interpreter sends {got}"
        assert bed.registers() == bed.oracle_registers(), f"seed {rig.seed}"

    def missed(self) -> set[str]:
        """Return the parts that were not met and could have been."""
        return self.unmet() - UNREACHABLE.keys()

    def unmet(self) -> set[str]:
        """Return the parts that were not met, without line numbers."""
        return {_LINE.sub("", part) for part in self.coverage.missed()}

    def lossy(self, seed: int, frames: int) -> None:
        """Send mutated frames through both back ends with the loss simulator on: both draw the same numbers."""
        rng = np.random.default_rng(seed)
        beds = [
            Bed.make(random.Random(seed), maker, seed=seed)
            for maker in (partial(Engine, observer=self.coverage), NativeEngine)
        ]
        for bed in beds:
            for port in {*PORTS.tolist(), 2, *range(10, 18)} - {510}:
                bed.lose("ingress_loss", port, LOSS)
                bed.lose("egress_loss", port, LOSS)
        sent = Corpus(rng).draw(frames, beds[0].jobs)
        Mutator(rng).mutate(sent, np.flatnonzero(rng.random(frames) < 0.5))
        for number in range(frames):
            interpreted, compiled = (bed.process(*frame_of(sent, number)) for bed in beds)
            assert interpreted == compiled, f"seed {seed}, frame {number}: {interpreted} and {compiled}"
        kept = [(bed.counters(), bed.lost("ingress_loss"), bed.lost("egress_loss"), bed.registers()) for bed in beds]
        assert kept[0] == kept[1], f"seed {seed}"
        assert kept[0][0]["drops"][Drop.SIMULATED] > 0
