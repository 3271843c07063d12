# SPDX-License-Identifier: Apache-2.0
"""Millions of mutated frames through native code, with everything that it keeps and sends compared.

Of every batch
    verdicts     say for each frame, independently: dropped (and why), forwarded, answered, or admitted to the slots
    oracle       takes what is answered or admitted, in order; it must agree that it is, or call it OP_MISMATCH
    outputs      every frame that leaves is the expected one, on its port, and nothing else leaves
    counters     drops by reason and events of jobs are the verdicts' and the oracle's
    registers    all cells of all copies: those of the jobs as the oracle has them, all others as they were before

The registers start as noise of generations that never live. Jobs end and others take their slots now and then, since a
mutated round can take a copy for ever. Now and then a batch also goes through the interpreter, from the same registers,
watched by a Coverage.
"""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopsum_evaluation.bench.timing import memory
from hopsum_switch.frame_batch import Batch, Outputs
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop

from ..contract.bed import BROADCAST, STATION, SWITCH, Bed, make_jobs
from .cells import Image
from .corpus import ROW_BYTES, Corpus, Frames
from .mutations import PORTS, Mutator
from .verdicts import FLOOD, FORWARD, SLOT, verdicts

BATCH = 2048
BATCHES_PER_JOB = 2
OUTPUTS, OUTPUT_BYTES = 512, 512 * 1400
"""Of one native call: too few for a batch, so that calls continue where the last one stopped."""
VALID, NOISE = 0.01, 0.02
"""Of all frames: sent as they should be; random bytes. The rest are mutations of valid ones (some change nothing, and
are counted as valid)."""
FAR_ROUND, FAR_KEPT = 8, 0.05

Sent = list[tuple[int, bytes]]
Watch = Callable[["Rig", Frames, list[Sent]], None]


@dataclass
class Tally:
    """The counts of a run."""

    frames: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[int] = field(default_factory=Counter)
    drops: Counter[Drop] = field(default_factory=Counter)
    outputs: int = 0
    jobs: int = 0


class Rig:
    """Native code, the oracle, and a stream of frames. The seed decides everything."""

    def __init__(self, seed: int, watch: Watch = lambda rig, frames, sent: None) -> None:
        """`watch` is called after every batch with its frames and what each of them caused."""
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._jobs_rng = random.Random(seed)
        self.bed = Bed.make(self._jobs_rng, NativeEngine)
        self.corpus, self._mutator = Corpus(self._rng), Mutator(self._rng)
        self.image = Image.noise(self.bed, self._rng)
        self.before = self.image.copy()
        """The registers before the latest batch."""
        self.memory_kib: list[int] = []
        """Resident memory of this process, after each batch."""
        self.tally = Tally(jobs=len(self.bed.jobs))
        self._drops: Counter[int] = Counter()
        """By verdicts alone."""
        self._outputs = Outputs(OUTPUTS, OUTPUT_BYTES)
        self._generation = 10
        self._watch = watch

    def run(self, frames: int) -> None:
        """Send at least so many frames."""
        target = self.tally.frames + frames
        while self.tally.frames < target:
            if self.tally.frames and self.tally.frames // BATCH % BATCHES_PER_JOB == 0:
                self._replace_jobs()
            self.batch()

    def batch(self) -> None:
        """Send one batch and compare."""
        where = f"seed {self.seed}, batch {self.tally.frames // BATCH}"
        frames = self.frames()
        self.before = self.image.copy()
        expected = self._expect(frames, where)
        got = self._process(frames)
        for number, pair in enumerate(zip(got, expected, strict=True)):
            assert pair[0] == pair[1], f"{where}, {self.text(frames, number)}: sent {pair[0]}, expected {pair[1]}"
        self.compare_state(where)
        self.tally.frames += len(frames.lengths)
        self.tally.outputs += sum(map(len, got))
        gc.collect()  # what waits for the collector is no growth
        self.memory_kib.append(memory(os.getpid())["rss"] >> 10)
        self._watch(self, frames, got)

    def text(self, frames: Frames, number: int) -> str:
        """Return a frame in words."""
        port, data = frame_of(frames, number)
        return f"frame {number}, port {port}: {data.hex()}"

    def frames(self) -> Frames:
        """Return the next batch: mostly mutations, some valid frames, some noise."""
        rounds = self.corpus.rounds(BATCH)
        frames = self.corpus.draw(BATCH, self.bed.jobs)
        drawn = Frames(frames.rows.copy(), frames.lengths.copy(), frames.ports.copy(), frames.layers)
        kind = self._rng.random(BATCH)
        self._mutator.mutate(frames, np.flatnonzero(kind >= VALID + NOISE))
        self._mutator.damp(frames, rounds, FAR_ROUND, FAR_KEPT)
        noise = np.flatnonzero(kind < NOISE)
        frames.rows[noise] = self._rng.integers(0, 256, (len(noise), ROW_BYTES), dtype=np.uint8)
        frames.lengths[noise] = self._rng.integers(0, ROW_BYTES, len(noise))
        frames.ports[noise] = self._rng.choice(PORTS, len(noise))
        changed = _differ(frames, drawn)
        changed[noise] = False
        self.tally.kinds["mutation"] += int(changed.sum())
        self.tally.kinds["bytes"] += len(noise)
        self.tally.kinds["valid"] += BATCH - len(noise) - int(changed.sum())
        return frames

    def _expect(self, frames: Frames, where: str) -> list[Sent]:
        """Return what must leave because of each frame, and bring the oracle up to date."""
        found = verdicts(frames, self.bed.jobs)
        numbers, counts = np.unique(found, return_counts=True)
        self.tally.verdicts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        expected: list[Sent] = [[] for _ in found]
        for number in np.flatnonzero(found >= FORWARD).tolist():
            port, frame = frame_of(frames, number)
            verdict = int(found[number])
            if verdict == FORWARD:
                expected[number] = [(SWITCH.forwarding[STATION], frame)]
            elif verdict == FLOOD:
                expected[number] = [(out, frame) for out in SWITCH.floods[BROADCAST] if out != port]
            else:
                outcome, expected[number] = self.bed.oracle.explain_frame(port, frame)
                agreed = outcome.drop in ((Drop.NONE, Drop.OP_MISMATCH) if verdict == SLOT else (Drop.NONE,))
                assert agreed, f"{where}, {self.text(frames, number)}: admitted, but the oracle says {outcome}"
        self._drops.update({int(n): int(c) for n, c in zip(numbers, counts, strict=True) if n < FORWARD})
        return expected

    def _process(self, frames: Frames) -> list[Sent]:
        """Return what left because of each frame."""
        count = len(frames.lengths)
        offsets = np.arange(count, dtype=np.uint64) * np.uint64(ROW_BYTES)
        batch = Batch(
            frames.rows.reshape(-1), frames.ports.astype(np.uint64), offsets, frames.lengths.astype(np.uint64)
        )
        sent: list[Sent] = [[] for _ in range(count)]
        first, engine = 0, self.bed.engine
        assert isinstance(engine, NativeEngine)
        while first < count:
            first = engine.process_batch(batch, self._outputs, first=first)
            sources = self._outputs.sources[: self._outputs.count].tolist()
            for source, output in zip(sources, self._outputs.frames(), strict=True):
                sent[source].append((output.port, output.frame))
        return sent

    def compare_state(self, where: str) -> None:
        """Compare counters and registers."""
        counters, oracle = self.bed.counters(), self.bed.oracle_counters()
        drops = Counter(oracle["drops"]) + self._drops
        assert counters == {**oracle, "drops": dict(drops)}, where
        self.tally.drops = Counter({Drop(reason): count for reason, count in drops.items()})
        self.image.follow_oracle(self.bed)
        assert not (wrong := self.image.differences(self.bed)), f"{where}: wrong copies {wrong}"

    def _replace_jobs(self) -> None:
        jobs = make_jobs(self._jobs_rng, self._generation)
        self._generation += len(jobs)
        self.bed.replace_jobs(jobs)
        self.corpus.restart()
        self.tally.jobs += len(jobs)


def _differ(one: Frames, other: Frames) -> NDArray[np.bool_]:
    """Say which frames are not the same: port, length or bytes."""
    within = np.arange(ROW_BYTES) < np.minimum(one.lengths, other.lengths)[:, None]
    bytes_differ = ((one.rows != other.rows) & within).any(axis=1)
    return np.asarray(bytes_differ | (one.lengths != other.lengths) | (one.ports != other.ports))


def frame_of(frames: Frames, number: int) -> tuple[int, bytes]:
    """Return port and bytes of a frame."""
    return int(frames.ports[number]), frames.rows[number, : frames.lengths[number]].tobytes()
