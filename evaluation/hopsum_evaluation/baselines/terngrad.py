# SPDX-License-Identifier: Apache-2.0
"""`terngrad`: every element as +scale, 0 or -scale (Wen et al., NeurIPS 2017).

The scale is the largest magnitude, sent as float32. An element x becomes sign(x) scale with probability |x| / scale,
which is unbiased. Five ternary digits share a byte (3^5 = 243), 1.6 bits an element where log2(3) is 1.585.

The paper first clips elements at 2.5 standard deviations, which makes the scale, and so the error, smaller and the
estimate biased: `clip_sigma=2.5`. The paper also lets workers agree on the largest scale. Each worker has its own here.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import Message, require_finite_vector, require_payload
from hopsum.codec.estimation.rng import rounding_key, uniforms
from hopsum.codec.interface import CodecError, ReductionContext

_SIDE: Final = struct.Struct("<f")
_DIGITS: Final = 5
_PLACES: Final = np.array([1, 3, 9, 27, 81], np.uint8)
_RUN: Final = _DIGITS << 14
"""Elements that are worked on together: whole bytes, and whole keys of 1024."""


class TernGrad:
    """See the module. The contract is `hopsum.codec.estimation.base.Estimator`."""

    name = "terngrad"

    def __init__(self, clip_sigma: float | None = None) -> None:
        """Make the estimator. Elements are clipped at so many standard deviations, or not.

        Raises:
            CodecError: a clip_sigma that is not a positive number.
        """
        if clip_sigma is not None and not 0 < clip_sigma < np.inf:
            raise CodecError(f"clip_sigma {clip_sigma}: a positive number of standard deviations, or None")
        self.clip_sigma = clip_sigma
        self.unbiased = clip_sigma is None

    def encode(self, x: NDArray[np.float32], context: ReductionContext) -> Message:
        """Return the scale and packed digits. See `Estimator`."""
        require_finite_vector(x)
        side = _SIDE.pack(self._scale(x))
        scale = _SIDE.unpack(side)[0]
        key = rounding_key(context)
        parts = [side]
        for start in range(0, x.size, _RUN):
            run = slice(start, min(start + _RUN, x.size))
            reach = uniforms(key, run) * scale
            digits = np.sign(x[run]).astype(np.int8) * (reach < np.abs(x[run]))
            parts.append(_pack_digits(digits))
        payload = b"".join(parts)
        return Message(payload, len(payload) * 8)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Return digits times the scale. See `Estimator`."""
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
    """Return five digits of -1, 0, 1 to a byte, the first one least significant. Zeros fill the last byte."""
    rows = np.zeros(-(-digits.size // _DIGITS) * _DIGITS, np.int8)
    rows[: digits.size] = digits
    return ((rows + 1).astype(np.uint8).reshape(-1, _DIGITS) @ _PLACES).astype(np.uint8).tobytes()
