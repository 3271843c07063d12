# SPDX-License-Identifier: Apache-2.0
"""Well-known compressions as estimators, for comparisons only: no switch adds their messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError, ReductionContext
from hopsum_evaluation.baselines.estimator_interface import (
    Estimator,
    Message,
    code_bits,
    pack,
    packed_bytes,
    require_finite_vector,
    require_payload,
    rounding_key,
    uniforms,
    unpack,
)
from hopsum_evaluation.baselines.suresh import Sb, Sk, Srk, Svk


class Fp16:
    """Estimator that sends every element as IEEE half precision, 16 bits.

    Rounds to the nearest, so it is biased, by at most 2^-11 of an element, or 2^-25 for elements below 2^-14.
    """

    name = "fp16"
    unbiased = False

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return the elements in half precision, least significant byte first. Nothing is random.

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
        """Return the elements as float32. Raises CodecError for a payload of another length, or with infinities."""
        require_payload(message.payload, 2 * elements, self.name, elements)
        out = np.frombuffer(message.payload, "<f2").astype(np.float32)
        if not np.isfinite(out).all():
            raise CodecError(f"fp16: {int((~np.isfinite(out)).sum())} of {elements} elements received are not finite")
        return out


class TopKEstimator:
    """Estimator that sends the elements of largest magnitude as float32, with their places. The others become zero.

    Biased: elements left out never arrive, unless error feedback adds them to a later vector. An element sent costs
    32 bits and ceil(log2 elements) bits of its place, in ascending order. The number of elements sent follows from
    the fraction and the length, which the receiver knows.

    fraction: share of elements to send, above 0 and up to 1; rounded to one element at least. Others raise CodecError.
    """

    name = "topk"
    unbiased = False

    def __init__(self, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise CodecError(f"fraction {fraction} of elements to send: above 0 and at most 1")
        self.fraction = fraction

    def sent_count(self, elements: int) -> int:
        """Return the number of elements that are sent of a vector with this many elements."""
        return max(1, round(self.fraction * elements))

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return a message of values, then places. Of equal magnitudes the first ones are sent. See `Estimator`."""
        require_finite_vector(x)
        count, width = self.sent_count(x.size), code_bits(x.size)
        # Places ascend, so that the receiver finds a damaged message by an order that is broken.
        places = _largest(x, count)
        return Message(x[places].astype("<f4").tobytes() + pack(places, width), count * (32 + width))

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the values at their places, zeros elsewhere. Raises CodecError for places that do not ascend."""
        count, width = self.sent_count(elements), code_bits(elements)
        require_payload(message.payload, 4 * count + packed_bytes(count, width), self.name, elements)
        values = np.frombuffer(message.payload, "<f4", count)
        places = unpack(message.payload[4 * count :], count, width)
        if not np.isfinite(values).all() or places[-1] >= elements or (places[1:] <= places[:-1]).any():
            raise CodecError(f"topk: values are not finite, or places do not ascend below {elements}")
        out = np.zeros(elements, np.float32)
        out[places] = values
        return out


def _largest(x: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Find the places of the `count` largest magnitudes, ascending. Of equal magnitudes the first comes first."""
    # Without their signs, the bits of floats order like integers.
    magnitudes = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitudes, x.size - count)[x.size - count]
    chosen = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


_SIDE: Final = struct.Struct("<f")
_DIGITS: Final = 5
"""Ternary digits in a byte: 3^5 = 243."""
_PLACES: Final = np.array([1, 3, 9, 27, 81], np.uint8)
_RUN: Final = _DIGITS << 14
"""Elements encoded at a time: whole bytes, and whole keys of 1024 random numbers."""


class TernGrad:
    """Estimator that sends every element as +scale, 0 or -scale (Wen et al., NeurIPS 2017), in 1.6 bits.

    The scale is the largest magnitude, sent as float32. An element x becomes sign(x) scale with probability
    |x| / scale, which is unbiased. The paper also lets workers agree on the largest scale: each has its own here.

    clip_sigma: clip elements at so many standard deviations first, which makes scale and error smaller and the
        estimate biased. 2.5 in the paper. None: no clipping. Raises CodecError unless it is positive and finite.
    """

    name = "terngrad"

    def __init__(self, clip_sigma: float | None = None) -> None:
        if clip_sigma is not None and not 0 < clip_sigma < np.inf:
            raise CodecError(f"clip_sigma {clip_sigma}: a positive number of standard deviations, or None")
        self.clip_sigma = clip_sigma
        self.unbiased = clip_sigma is None

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return a message of the scale, then the digits, five in a byte. See `Estimator`."""
        require_finite_vector(x)
        side = _SIDE.pack(self._scale(x))
        # The scale as the receiver reads it: float32. Digits that were drawn for the unrounded scale would be biased.
        scale = _SIDE.unpack(side)[0]
        key = rounding_key(context)
        parts = [side]
        for start in range(0, x.size, _RUN):
            run = slice(start, min(start + _RUN, x.size))
            # Numbers of a run are those that one call for the whole vector would draw: keys are counted by place.
            reach = uniforms(key, run) * scale
            # An element is sent as non-zero if a uniform number is below its share of the scale.
            digits = np.sign(x[run]).astype(np.int8) * (reach < np.abs(x[run]))
            parts.append(_pack_digits(digits))
        payload = b"".join(parts)
        return Message(payload, len(payload) * 8)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return the digits times the scale. Raises CodecError for bytes that are not five digits."""
        require_payload(message.payload, _SIDE.size + -(-elements // _DIGITS), self.name, elements)
        scale = _SIDE.unpack_from(message.payload)[0]
        packed = np.frombuffer(message.payload, np.uint8, offset=_SIDE.size)
        if not 0 <= scale < np.inf or packed.max() >= 3**_DIGITS:
            raise CodecError(f"terngrad: scale {scale}, or a byte of {int(packed.max())} that is not five digits")
        out = np.empty(packed.size * _DIGITS, np.float32)
        for digit, place in enumerate(_PLACES):
            out[digit::_DIGITS] = (packed // place % 3).astype(np.float32) - 1
        out *= np.float32(scale)
        return out[:elements]

    def _scale(self, x: NDArray[np.float32]) -> float:
        largest = float(max(x.max(), -x.min()))
        if self.clip_sigma is None:
            return largest
        return min(largest, self.clip_sigma * float(x.std(dtype=np.float64)))


def _pack_digits(digits: NDArray[np.int8]) -> bytes:
    """Pack five digits of -1, 0, 1 into a byte, the first one least significant. Zeros fill the last byte."""
    rows = np.zeros(-(-digits.size // _DIGITS) * _DIGITS, np.int8)
    rows[: digits.size] = digits
    return ((rows + 1).astype(np.uint8).reshape(-1, _DIGITS) @ _PLACES).astype(np.uint8).tobytes()


ESTIMATORS: Final[dict[str, Callable[..., Estimator]]] = {
    "sb": Sb,
    "sk": Sk,
    "srk": Srk,
    "svk": Svk,
    "fp16": Fp16,
    "topk": TopKEstimator,
    "terngrad": TernGrad,
}
"""Estimators of Suresh et al. and the baselines, by name. Called with the estimator's own options."""


def make_estimator(name: str, **options: Any) -> Estimator:
    """Make an estimator by name.

    Args:
        name: "sb", "sk" and "srk" (option levels), "svk" (levels, needs constriction), "fp16", "topk" (fraction),
            "terngrad" (clip_sigma).

    Raises:
        CodecError: unknown name, an option out of its range, or a package that is missing.
        TypeError: an option that the estimator does not have.
    """
    if name not in ESTIMATORS:
        raise CodecError(f"estimator {name!r}: one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](**options)
