# SPDX-License-Identifier: Apache-2.0
"""Every method behind one interface: the workers' vectors in, the mean that all of them end with and its bits out.

Bits are those of the payloads, per element and worker: ranges, index and other side information included, headers
not. Lanes that only fill up the last chunk are counted apart, since they vanish in vectors of the usual length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import Codec, CollectivePhase, ReductionContext
from hopsum.codec.estimation import Estimator, Sk, Svk, estimate_mean
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import LookupTableCodec
from hopsum.codec.theory import expected_nmse_of_values
from hopsum_evaluation.baselines.thc_published import ThcPublished
from hopsum_wire.payload import SHAPES

ROTATIONS = 8
"""Random rotations over which theory's figure and its standard error are taken."""
FLOAT_BITS = 32

Vectors = Sequence[NDArray[np.float32]]


class Bits(NamedTuple):
    """Bits per element and worker."""

    up: float
    down: float
    up_padding: float
    """The bits of lanes that fill up the last chunk, sent but not counted in `up`."""


class MethodResult(NamedTuple):
    """What one all-reduce came to."""

    mean: NDArray[np.float32]
    bits: Bits


class Theory(NamedTuple):
    """What a formula says of the error when all workers have the same vector, and how sure its figure is."""

    nmse: float
    se: float


class MeanMethod(Protocol):
    """One way to the mean of n vectors."""

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """Return the mean of float32[elements] vectors. Seed and step decide everything random."""

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """Return what to expect when all workers have x, or None where no formula is known."""


class MethodCandidate(NamedTuple):
    """A method by name, made for a number of workers."""

    label: str
    make: Callable[[int], MeanMethod]
    """Raises HopsumError or ModuleNotFoundError: the method cannot be had for so many workers, and why."""
    family: str = ""
    """Methods of a family differ in a parameter, and are joined by a line in plots.

    A method without a family is not in the plots.
    """
    variant: str = ""
    """The name of a variant of thc in the figure of its variants."""


class SwitchMethod:
    """A codec whose payloads a switch adds."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        """See `MeanMethod`. Raises CodecError where the codec has no mean of these vectors."""
        reductions = [self.codec.start(x, ReductionContext(seed, step, rank)) for rank, x in enumerate(vectors)]
        used = []
        while (phase := reductions[0].phase) is not None:
            used.append(phase)
            payloads = [each.phase.payloads for each in reductions if each.phase is not None]
            results, contributors = simulate_switch(
                phase.op, payloads, self.codec.lookup, code_group=self.codec.code_group
            )
            for reduction in reductions:
                reduction.take(results, contributors)
        mean = reductions[0].mean
        assert mean is not None
        return MethodResult(mean, count_bits(used, mean.size))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: known of coded methods."""
        codec = self.codec
        if not isinstance(codec, LookupTableCodec):
            return None
        rng = np.random.default_rng([seed, workers])
        per_block = not isinstance(codec, ThcPublished)
        values, block = codec.table.values, codec.block_elements
        found = [
            expected_nmse_of_values(x, values, codec.bound, workers, rng, block=block, per_block=per_block, rotations=1)
            for _ in range(ROTATIONS)
        ]
        return Theory(float(np.mean(found)), float(np.std(found) / (ROTATIONS - 1) ** 0.5))


class EstimatorMethod:
    """A `MeanMethod` of an estimator or a baseline: the receiver decodes each message and sends the mean in float32."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator

    def run(self, vectors: Vectors, seed: int, step: int) -> MethodResult:
        found = estimate_mean(self.estimator, vectors, seed, step)
        elements = vectors[0].size
        return MethodResult(found.mean, Bits(found.bits / len(vectors) / elements, FLOAT_BITS, 0.0))

    def theory(self, x: NDArray[np.float32], workers: int, seed: int) -> Theory | None:
        """See `MeanMethod`: known where elements are rounded to levels as they are."""
        wide = x.astype(np.float64)
        energy = float(wide @ wide)
        if isinstance(self.estimator, Sk):
            width = float(wide.max() - wide.min())
            levels = self.estimator.levels
        elif isinstance(self.estimator, Svk):
            width = (2 * energy) ** 0.5
            levels = self.estimator.levels_of(x.size)
        else:
            return None
        place = (wide - wide.min()) / width * (levels - 1)
        odds = place - np.floor(place)
        error = float((odds * (1 - odds)).sum()) * (width / (levels - 1)) ** 2
        return Theory(error / energy / workers, 0.0)


def count_bits(phases: Sequence[CollectivePhase], elements: int) -> Bits:
    """Return what phases send, for so many elements."""
    up = down = whole = 0.0
    for phase in phases:
        shape = SHAPES[phase.op]
        up += 8 * shape.up_bytes * phase.lanes / shape.elements
        down += 8 * shape.down_bytes * phase.lanes / shape.elements
        whole += 8 * phase.payloads.size
    return Bits(up / elements, down / elements, (whole - up) / elements)
