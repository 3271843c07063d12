# SPDX-License-Identifier: Apache-2.0
"""`topk`: the elements of largest magnitude as float32, with their places. The others become zero.

Biased: what is left out never arrives, unless error feedback adds it to a later vector. An element sent costs
32 bits and ceil(log2 elements) bits of its place, in ascending order. The number of elements sent follows from
the fraction and the length, which the receiver knows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import Message, require_finite_vector, require_payload
from hopsum.codec.estimation.levels import code_bits, pack, packed_bytes, unpack
from hopsum.codec.interface import CodecError, ReductionContext


class TopKEstimator:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "topk"
    unbiased = False

    def __init__(self, fraction: float = 0.01) -> None:
        """Make the estimator that sends this fraction of elements, rounded, and at least one.

        Raises:
            CodecError: a fraction that is not above 0 and at most 1.
        """
        if not 0 < fraction <= 1:
            raise CodecError(f"fraction {fraction} of elements to send: above 0 and at most 1")
        self.fraction = fraction

    def sent(self, elements: int) -> int:
        """Return the number of elements sent of so many."""
        return max(1, round(self.fraction * elements))

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return values, then packed places. See `Estimator`. Of equal magnitudes the first ones are sent."""
        require_finite_vector(x)
        count, width = self.sent(x.size), code_bits(x.size)
        places = _largest(x, count)
        return Message(x[places].astype("<f4").tobytes() + pack(places, width), count * (32 + width))

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the values at their places, zeros elsewhere. See `Estimator`."""
        count, width = self.sent(elements), code_bits(elements)
        require_payload(message.payload, 4 * count + packed_bytes(count, width), self.name, elements)
        values = np.frombuffer(message.payload, "<f4", count)
        places = unpack(message.payload[4 * count :], count, width)
        if not np.isfinite(values).all() or places[-1] >= elements or (places[1:] <= places[:-1]).any():
            raise CodecError(f"topk: values are not finite, or places do not ascend below {elements}")
        out = np.zeros(elements, np.float32)
        out[places] = values
        return out


def _largest(x: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` largest magnitudes, ascending. Of equal magnitudes the first comes first."""
    magnitudes = x.view(np.uint32) & np.uint32(0x7FFFFFFF)  # bits of magnitudes order like integers
    threshold = np.partition(magnitudes, x.size - count)[x.size - count]
    chosen = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
