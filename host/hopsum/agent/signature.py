# SPDX-License-Identifier: Apache-2.0
"""Signatures of all-reduces: what ranks need to have in common, compared by the switch in the first phase.

    lane pair   (v, M - v) for each number v of LANES, M = 2^31 - 1
    after MAX   (largest v of all contributors, M - smallest v): equal to the own pair if and only if all have the same

The pairs stand before the ranges or magnitudes (MAX32) with which an all-reduce of every codec begins, so they cost no
frame of their own but where they fill one up. The first chunk goes as a phase of its own, without any frame more:
ranks with vectors of different numbers of chunks know it as soon as that chunk is summed, and wait for no other.

The numbers are the elements, the codec, the seed, and a digest of everything: also of options, the step, names of
tensors, and words. The largest and the smallest are told as they are. Of a digest each rank tells what it has itself.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.task import Task
from hopsum.codec.interface import Codec, CollectiveError, CollectivePhase, ReductionContext
from hopsum_wire import Op
from hopsum_wire._layout import PACKED_LANE_BITS
from hopsum_wire.payload import SHAPES

# The switch compares lanes as unsigned numbers whose top bit must be 0.
MOST: Final = (1 << 31) - 1
"""MAX32 takes lanes of 31 bits."""
_CODECS: Final = ("another codec", "fixed", "lossless", "thc", "uhc")
"""The codecs by number. They are never renumbered, since ranks of different versions compare them."""
_MAX_TOLD: Final = 400


class MismatchError(CollectiveError):
    """The ranks are not at the same all-reduce, or have different settings. Every rank of that sum has this error.

    Through a switch the stream of the ranks is out of step then: the communicator is over, connect all ranks again.
    Over memory:// and collective:// the next all-reduce can follow, and residuals are as they were before.
    """


class Signature(NamedTuple):
    """The numbers of one all-reduce that are compared, of 31 bits each."""

    elements: int
    """The number of elements, at most MOST. The digest has the number of a longer vector."""
    codec: int
    seed: int
    """Its low 31 bits."""
    digest: int


LANES: Final = 2 * len(Signature._fields)


def digest_of(text: str) -> int:
    """Return 31 bits of a text's SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & MOST


class Signer:
    """Makes and compares the signatures of one rank.

    Args:
        overlap: of the agent: it decides the order of phases.
    """

    def __init__(self, codec: Codec, context: ReductionContext, *, overlap: bool) -> None:
        number = _CODECS.index(codec.name) if codec.name in _CODECS else 0
        self._codec, self._seed = number, context.seed
        self._workers, self._rank = codec.workers, context.rank
        # What two implementations of one codec have in common; they may differ in everything else.
        options = getattr(codec, "facts", "")
        table = f", table {codec.lookup}" if codec.lookup else ""
        packed = f", results of {PACKED_LANE_BITS} bits" if codec.op == Op.LOOKUP_ADD6 else ""
        # Earlier versions had other rotations and scales: their ranks compare digests of this text with ours.
        way = "rotation block, scale block"
        self._signed: tuple[tuple[Any, ...], Signature] | None = None
        """The facts of the last all-reduce that was signed: its results are compared with the same signature."""
        self._facts = f"codec {codec.name}, {way}{options}{table}{packed}, overlap {overlap}"

    def sign(self, task: Task) -> Signature:
        """Return the signature of an all-reduce."""
        elements = task.vector.elements
        # Not the number: after a change of generation another all-reduce may have it. Not the task: it has the vector.
        facts = elements, task.step, task.on_nonfinite, task.promised, task.tensors
        if self._signed is not None and self._signed[0] == facts:
            return self._signed[1]
        # The digest is of everything, also of the numbers that are sent as such and cut to 31 bits.
        digest = digest_of(f"{self._told(task)}, {elements} elements, seed {self._seed}, {self._names(task)}")
        signature = Signature(min(elements, MOST), self._codec, self._seed & MOST, digest)
        self._signed = facts, signature
        return signature

    def compare(self, task: Task, results: NDArray[np.uint8]) -> None:
        """Compare the results of the first phase's first chunk. Raises MismatchError."""
        own = self.sign(task)
        pairs = results.reshape(-1)[: 4 * LANES].view(">u4").astype(np.int64).reshape(-1, 2)
        largest, smallest = Signature(*pairs[:, 0].tolist()), Signature(*(MOST - pairs[:, 1]).tolist())
        # MAX32 of v and of M - v gives the largest and the smallest v: equal if and only if all ranks have the same.
        if largest == smallest == own:
            return
        differing = [
            self._difference(name, getattr(own, name), {getattr(largest, name), getattr(smallest, name)})
            for name in ("elements", "codec", "seed")
        ]
        told = [each for each in differing if each] or [
            f"rank {self._rank} has {self._told(task)}, {self._names(task)[:_MAX_TOLD]}; {self._other} has something "
            "else of these, or another version of hopsum"
        ]
        raise MismatchError(
            f"the ranks are not at the same all-reduce, or have different settings: {'; '.join(told)}. All ranks need "
            "the same settings, and submit vectors of the same lengths and names in the same order. Connect all ranks "
            "again"
        )

    @property
    def _other(self) -> str:
        return f"rank {1 - self._rank}" if self._workers == 2 else "another rank"

    def _difference(self, name: str, own: int, found: set[int]) -> str:
        others = sorted(found - {own})
        if not others:
            return ""
        words = {"elements": "a vector of {} elements", "codec": "codec {}", "seed": "seed {}"}[name]

        def shown(value: int) -> str:
            known = _CODECS[value] if name == "codec" and value < len(_CODECS) else str(value)
            return words.format(known)

        mine = words.format(self._seed) if name == "seed" else shown(own)
        return f"rank {self._rank} has {mine}, {self._other} has {' or '.join(map(shown, others))}"

    def _told(self, task: Task) -> str:
        return f"{self._facts}, step {task.step}, on_nonfinite {task.on_nonfinite}, more {task.promised}"

    @staticmethod
    def _names(task: Task) -> str:
        return f"names {', '.join(f'{name} ({elements})' for name, elements in task.tensors) or '(none)'}"


def signed(phase: CollectivePhase, signature: Signature) -> tuple[CollectivePhase, ...]:
    """Return the first phase with a signature before it: its first chunk, and the others if there are any."""
    if phase.op != Op.MAX32:
        raise RuntimeError(f"a codec whose first phase is {phase.op.name}: only MAX32 carries a signature")
    full = SHAPES[Op.MAX32].elements
    lanes = phase.lanes + LANES
    words = np.zeros(-(-lanes // full) * full, ">u4")
    words[0:LANES:2] = signature
    words[1:LANES:2] = MOST - np.array(signature)
    words[LANES:lanes] = phase.payloads.reshape(-1).view(">u4")[: phase.lanes]
    payloads = words.view(np.uint8).reshape(-1, 4 * full)
    # A vector of one chunk: the signature and the codec's lanes are the whole phase.
    if len(payloads) == 1:
        return (CollectivePhase(phase.op, payloads, lanes, phase.last),)
    return CollectivePhase(phase.op, payloads[:1], full), CollectivePhase(
        phase.op, payloads[1:], lanes - full, phase.last
    )


def unsigned(
    phase: CollectivePhase, results: NDArray[np.uint8], contributors: NDArray[np.uint64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Remove the signature from the results of a signed phase, which leaves those of the codec's own payloads.

    Args:
        phase: the codec's own.
        contributors: [chunks] of the signed phase. For the codec's own chunk they are the workers that are in all of
            its lanes.
    """
    chunks = len(phase.payloads)
    moved = np.zeros_like(phase.payloads)
    moved.reshape(-1)[: 4 * phase.lanes] = results.reshape(-1)[4 * LANES :][: 4 * phase.lanes]
    # The codec's lanes are shifted by LANES, so each of its chunks lies in two chunks of the signed phase.
    after = np.append(contributors, contributors[-1:])[1 : chunks + 1]
    return moved, contributors[:chunks] & after
