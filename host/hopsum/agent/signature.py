# SPDX-License-Identifier: Apache-2.0
"""Signatures of all-reduces: the facts that all ranks need in common, compared by the switch in the first phase.

    lane pair   (v, M - v) for each number v of LANES, M = 2^31 - 1
    after MAX   (largest v of all contributors, M - smallest v): equal to the own pair if and only if all have the same

The pairs precede the ranges or magnitudes (MAX32) with which an all-reduce of every codec begins, so they need a
further frame only if they fill one up. The first chunk is a separate phase, without a further frame: ranks with vectors
of different numbers of chunks notice that as soon as this chunk is summed, and wait for no other.

The numbers are the elements, the codec, the seed, and a digest of everything: also of options, the step, and names of
tensors. An error has the largest and the smallest number. For different digests it has this rank's own facts.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.task import Task
from hopsum.codec.interface import Codec, CollectiveError, CollectivePhase, ReductionContext, Tensors
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

# The switch compares lanes as unsigned numbers whose top bit must be 0.
MOST: Final = (1 << 31) - 1
"""MAX32 takes lanes of 31 bits."""
_CODECS: Final = ("another codec", "fixed", "lossless", "thc", "uhc")
"""The codecs by number. They are never renumbered, since ranks of different versions compare them."""
_MAX_TOLD: Final = 400


class MismatchError(CollectiveError):
    """The ranks are not at the same all-reduce, or have different settings. Every rank of that sum has this error.

    At a switch the streams of the ranks are then out of step: the communicator has failed, connect all ranks again.
    With memory:// and collective:// the next all-reduce can follow, and residuals are as they were before.
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
_PAIRS: Final = struct.Struct(f">{LANES}I")


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
        # Earlier versions had other rotations and scales: their ranks compare digests of this text with ours.
        way = "rotation block, scale block"
        self._facts = f"codec {codec.name}, {way}{options}{table}, overlap {overlap}"

    def sign(self, task: Task, phase: CollectivePhase) -> tuple[CollectivePhase, ...]:
        """Put the all-reduce's signature before the lanes of its first phase, and store the signature in the task.

        Returns that as two phases, the first chunk and the other chunks, or as one if there are no others. Raises
        RuntimeError for another operation than MAX32.
        """
        if phase.op != Op.MAX32:
            raise RuntimeError(f"a codec whose first phase is {phase.op.name}: only MAX32 carries a signature")
        elements = task.vector.elements
        # The digest is of everything, also of the numbers that are sent as such and cut to 31 bits. Not of the task's
        # number: after a change of generation another all-reduce may have it.
        digest = digest_of(f"{self._told(task)}, {elements} elements, seed {self._seed}, {_names(task.tensors)}")
        length, codec, seed = min(elements, MOST), self._codec, self._seed & MOST
        task.signature = _PAIRS.pack(
            length, MOST - length, codec, MOST - codec, seed, MOST - seed, digest, MOST - digest
        )
        full = SHAPES[Op.MAX32].elements
        lanes = phase.lanes + LANES
        payloads = np.zeros((-(-lanes // full), 4 * full), np.uint8)
        flat = payloads.reshape(-1)
        flat[: _PAIRS.size] = np.frombuffer(task.signature, np.uint8)
        flat[_PAIRS.size : 4 * lanes] = phase.payloads.reshape(-1)[: 4 * phase.lanes]
        # A vector of one chunk: the signature and the codec's lanes are the whole phase.
        if len(payloads) == 1:
            return (CollectivePhase(phase.op, payloads, lanes, phase.last),)
        rest = CollectivePhase(phase.op, payloads[1:], lanes - full, phase.last)
        return CollectivePhase(phase.op, payloads[:1], full), rest

    def compare(self, task: Task, results: NDArray[np.uint8]) -> None:
        """Raise MismatchError unless the sums of the first chunk show that all ranks have this task's signature."""
        found = results.reshape(-1)[: _PAIRS.size].tobytes()
        # MAX32 of v and of M - v gives the largest and the smallest v: equal if and only if all ranks have the same.
        if found == task.signature:
            return
        own, pairs = Signature(*_PAIRS.unpack(task.signature)[::2]), _PAIRS.unpack(found)
        largest, smallest = Signature(*pairs[::2]), Signature(*(MOST - each for each in pairs[1::2]))
        differing = [
            self._difference(name, getattr(own, name), {getattr(largest, name), getattr(smallest, name)})
            for name in ("elements", "codec", "seed")
        ]
        told = [each for each in differing if each] or [
            f"rank {self._rank} has {self._told(task)}, {_names(task.tensors)[:_MAX_TOLD]}; {self._other} has "
            "something else of these, or another version of hopsum"
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


def _names(tensors: Tensors) -> str:
    return f"names {', '.join([f'{name} ({elements})' for name, elements in tensors]) or '(none)'}"


def without_signature(
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
