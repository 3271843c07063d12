# SPDX-License-Identifier: Apache-2.0
"""The interface of an estimator: a vector into one message, and a message into an estimate of the vector.

Laws, held by tests: decode needs the payload and what all ranks know (elements, context, parameters) and nothing
else. Equal arguments give equal bytes. Estimates are finite. `bits` is the payload's length up to the zero bits
that fill its last byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError, ReductionContext, require_vector

RUN: Final = 1 << 16
"""Elements that are worked on together: a multiple of 8 (whole bytes of any width) and of 1024 (whole keys)."""
LARGEST: Final = float(np.finfo(np.float32).max)


class Message(NamedTuple):
    """The message of a worker."""

    payload: bytes
    bits: int
    """The bits in use, side information included. The payload has them rounded up to whole bytes."""


class Estimate(NamedTuple):
    """The receiver's estimate after all messages."""

    mean: NDArray[np.float32]
    bits: int
    """The bits of all messages together."""


class Estimator(Protocol):
    """Turns a vector into a message and back. Holds parameters only: any thread may use it."""

    name: str
    unbiased: bool
    """True where the expectation of decode(encode(x)) is x."""

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return the message of one worker.

        Args:
            x: float32[elements], contiguous and finite. It is only read.
            context: randomness of this worker in this step. Decode takes the same.

        Raises:
            CodecError: not such a vector, or one that this estimator cannot carry.
        """

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the estimate of the worker's vector, float32[elements], a new array.

        Raises:
            CodecError: the payload is not one of `elements` elements by this estimator.
        """


def estimate_mean(estimator: Estimator, vectors: Sequence[NDArray[np.float32]], seed: int, step: int) -> Estimate:
    """Encode the vector of each rank, decode all messages, and return their mean and what they cost.

    Args:
        vectors: float32[elements] per rank, all of one length.

    Raises:
        CodecError: no vectors, or vectors of several lengths.
    """
    lengths = sorted({len(x) for x in vectors})
    if len(lengths) != 1:
        raise CodecError(f"{len(vectors)} vectors of lengths {lengths}: a mean takes vectors of one length")
    total = np.zeros(lengths[0])
    bits = 0
    for rank, x in enumerate(vectors):
        context = ReductionContext(seed, step, rank)
        message = estimator.encode(x, context)
        total += estimator.decode(message, x.size, context)
        bits += message.bits
    total /= len(vectors)
    return Estimate(total.astype(np.float32), bits)


def runs(elements: int) -> Iterator[slice]:
    """Return slices of RUN elements, the last one shorter."""
    for start in range(0, elements, RUN):
        yield slice(start, min(start + RUN, elements))


def require_finite_vector(x: NDArray[Any]) -> None:
    """Raise CodecError unless x is a vector for an estimator. Says how many elements are not finite."""
    require_vector(x)
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise CodecError(
            f"{bad.size} of {x.size} elements are not finite, the first is element {int(bad[0])}: skip this vector"
        )


def require_payload(payload: bytes, expected: int, name: str, elements: int) -> None:
    """Raise CodecError unless the payload has the bytes that `elements` elements take."""
    if elements < 1 or len(payload) != expected:
        raise CodecError(f"{name}: {len(payload)} bytes for {elements} elements, which take {expected}")


def finite_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return values as float32. What rounding carried beyond the largest float32 becomes the largest one."""
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)
