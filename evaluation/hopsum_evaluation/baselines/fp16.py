# SPDX-License-Identifier: Apache-2.0
"""`fp16`: every element as IEEE half precision, 16 bits.

Rounds to the nearest, so it is biased, by at most 2^-11 of an element, or 2^-25 for elements below 2^-14.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import Message, require_finite_vector, require_payload
from hopsum.codec.interface import CodecError, ReductionContext


class Fp16:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "fp16"
    unbiased = False

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return half-precision elements, least significant byte first. See `Estimator`. Nothing is random.

        Raises:
            CodecError: elements beyond the largest half, 65504: scale the vector, as loss scaling does.
        """
        require_finite_vector(x)
        with np.errstate(over="ignore"):
            halves = x.astype("<f2")
        infinite = int(np.isinf(halves).sum())
        if infinite:
            largest = float(max(x.max(), -x.min()))
            raise CodecError(
                f"fp16: {infinite} of {x.size} elements are beyond 65504, the largest is {largest:g}; scale the vector"
            )
        return Message(halves.tobytes(), 16 * x.size)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the elements as float32. See `Estimator`."""
        require_payload(message.payload, 2 * elements, self.name, elements)
        out = np.frombuffer(message.payload, "<f2").astype(np.float32)
        if not np.isfinite(out).all():
            raise CodecError(f"fp16: {int((~np.isfinite(out)).sum())} of {elements} elements received are not finite")
        return out
