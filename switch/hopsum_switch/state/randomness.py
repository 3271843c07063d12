# SPDX-License-Identifier: Apache-2.0
"""The numbers of `random()`: splitmix64 with rejection, the same in both back ends.

The state is one word. The seed is its first value. Each draw adds INCREMENT to it and mixes the sum. For an
integer in [low, high] the low bits of a draw are taken, as many as high - low has (at least one), and draws that
exceed high - low are thrown away: every value is equally likely, and less than two draws are needed on average.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
# 2**64 divided by the golden ratio, as splitmix64 has it.
INCREMENT = 0x9E3779B97F4A7C15
# Steps of the mixing: xor with itself shifted right, then multiply.
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31


class RandomStream:
    """The random numbers of the interpreter. `native/operation_code.py` has the same stream as machine code."""

    def __init__(self, seed: int = 0) -> None:
        """Start with a seed, of which the low 64 bits count."""
        self._state = seed & MASK

    def draw(self, low: int, high: int) -> int:
        """Return the next integer of the stream in [low, high], both included. 0 <= low <= high < 2**64 must hold."""
        span = high - low
        mask = (1 << max(span.bit_length(), 1)) - 1
        while True:
            value = self._next() & mask
            if value <= span:
                return low + value

    def _next(self) -> int:
        self._state = value = (self._state + INCREMENT) & MASK
        for shift, factor in MIX:
            value = (value ^ value >> shift) * factor & MASK
        return value ^ value >> LAST_SHIFT
