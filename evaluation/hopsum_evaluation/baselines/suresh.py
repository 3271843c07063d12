# SPDX-License-Identifier: Apache-2.0
"""The estimators `sb`, `sk`, `srk` and `svk` (Suresh et al., ICML 2017, with the proofs of the bounds).

F is the mean of |X_i|^2 over n workers, d the elements, k the levels.

`sb` and `sk`: levels from the smallest to the largest element (pi_sb and pi_sk). A worker sends these two as float32,
and ceil(log2 k) bits for each element. An element between two levels h apart has variance (upper - x)(x - lower), at
most h^2 / 4, and (max - min)^2 <= 2 |X|^2: MSE <= d / (2 n (k - 1)^2) F. `sb` is k = 2.

`srk`: `sk` after a random rotation of the whole vector (pi_srk). The vector, padded with zeros to D elements, a power
of two, is rotated by R = H diag(signs) / sqrt(D), H the Hadamard matrix, signs shared by all ranks. The receiver
rotates back. A worker also sends an exponent of 16 bits. MSE <= (2 ln D + 2) / (n (k - 1)^2) F. The rotation is
float32, left unnormalised and made in a fixed order of additions, hence equal on all machines. Before it the vector is
divided by a power of two, so that nothing overflows and subnormal numbers keep their bits.

`svk`: levels from the smallest element to sqrt(2) |X| above it, codes entropy coded by their frequencies (pi_svk). A
worker sends the smallest element as float32, the width as float64, and a range-coded stream. MSE as for `sk`, of which
only s^2 <= 2 |X|^2 was used; E bits <= d (2 + log2((k - 1)^2 / (2 d) + 5/4)), and the histogram besides. With
k = sqrt(d) + 1 that is less than 2.81 bits an element.

The stream of `svk`: a histogram, then codes by the histogram's frequencies. The histogram is d zeros, with a one
between levels: each bit is coded with the frequencies (d, k - 1), which both sides know, so that it takes at most
k log2((d + k) e / k) bits. Both sides make equal models from the same integers: counts as float64, which hold them
exactly. constriction (`Categorical` with perfect=False) adds these counts, exactly again, and maps the sums to its
24-bit integers by one division and one multiplication of float64, which every IEEE 754 machine rounds alike. It keeps
at least 2^-24 for every level.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError, Doubles, Floats, Ints, ReductionContext, Words
from hopsum_evaluation.baselines.estimator_interface import (
    RUN,
    Levels,
    Message,
    code_bits,
    finite_float32,
    pack_rounded,
    packed_bytes,
    require_finite_vector,
    require_levels,
    require_payload,
    rotation_key,
    rounding_key,
    runs,
    signs,
    uniforms,
    unpack_values,
)

# ---- the stream of svk -------------------------------------------------------------------------------------


class EntropyCoder:
    """A range coder of codes by their own histogram, which is part of the stream."""

    def __init__(self) -> None:
        """Import the range coder.

        Raises:
            CodecError: constriction is not installed.
        """
        try:
            stream = import_module("constriction").stream
        except ModuleNotFoundError as error:
            raise CodecError(
                f"svk needs the package {error.name}, which is not installed: pip install 'hopsum[estimation]'"
            ) from error
        self._queue: Any = stream.queue
        self._categorical: Any = stream.model.Categorical

    def compress(self, codes: NDArray[np.uint16], levels: int) -> bytes:
        """Return the stream of codes below `levels`: whole 32-bit words, least significant byte first."""
        # Two passes: the histogram has to be sent before the first code.
        counts = np.zeros(levels, np.int64)
        for run in runs(codes.size):
            counts += np.bincount(codes[run], minlength=levels)
        encoder = self._queue.RangeEncoder()
        # Both sides know d and k: the separators' frequencies need not be sent.
        model = self._model(np.array([codes.size, levels - 1]))
        for part in _separators(counts):
            encoder.encode(part, model)
        model = self._model(counts)
        for run in runs(codes.size):
            encoder.encode(codes[run].astype(np.int32), model)
        words: Words = encoder.get_compressed()
        return words.astype("<u4").tobytes()

    def expand(self, data: bytes, elements: int, levels: int) -> NDArray[np.uint16]:
        """Return the codes of a stream, uint16[elements].

        Raises:
            CodecError: not a stream of so many codes and levels.
        """
        if len(data) % 4:
            raise CodecError(f"svk: a stream of {len(data)} bytes, which is no multiple of 4")
        decoder = self._queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))
        try:
            counts = self._counts(decoder, elements, levels)
            codes = np.empty(elements, np.uint16)
            model = self._model(counts)
            for run in runs(elements):
                codes[run] = decoder.decode(model, run.stop - run.start)
        except AssertionError as error:  # what constriction raises for bytes that no encoder makes
            raise CodecError(f"svk: not a stream of {elements} elements and {levels} levels: {error}") from error
        # A range decoder decodes any bytes to something. Codes that belie their histogram show that these are no
        # encoder's.
        if not decoder.maybe_exhausted() or (np.bincount(codes, minlength=levels) != counts).any():
            raise CodecError(f"svk: the stream does not end with element {elements - 1}, or codes belie the histogram")
        return codes

    def _counts(self, decoder: Any, elements: int, levels: int) -> NDArray[np.int64]:
        """Read the histogram."""
        length = elements + levels - 1
        model = self._model(np.array([elements, levels - 1]))
        places = [run.start + np.flatnonzero(decoder.decode(model, run.stop - run.start)) for run in runs(length)]
        bounds = np.concatenate(([-1], *places, [length]))
        if len(bounds) != levels + 1:
            raise CodecError(f"svk: a histogram of {len(bounds) - 1} levels, where {levels} are expected")
        return np.diff(bounds) - 1

    def _model(self, counts: NDArray[Any]) -> Any:
        return self._categorical(counts.astype(np.float64), perfect=False)


def _separators(counts: NDArray[np.int64]) -> Iterator[Ints]:
    """Return, in runs, the string of a histogram: for each level its count in zeros, with ones between levels."""
    places = np.cumsum(counts[:-1] + 1) - 1
    for run in runs(int(counts.sum()) + len(places)):
        part = np.zeros(run.stop - run.start, np.int32)
        inside = slice(*np.searchsorted(places, (run.start, run.stop)))
        part[places[inside] - run.start] = 1
        yield part


# ---- sb and sk ---------------------------------------------------------------------------------------------

_EXTREMES: Final = struct.Struct("<ff")
_EXPONENT: Final = struct.Struct("<h")
_EXPONENTS: Final = range(-148, 129)
"""The exponents of float32: the largest element is below 2^exponent, and not below half of it."""


class Sk:
    """Stochastic `sk`: unbiased rounding to equidistant levels between the smallest and the largest element.

    The contract is `estimator_interface.Estimator`.
    """

    name = "sk"
    unbiased = True

    def __init__(self, levels: int = 16) -> None:
        """Make the estimator with 2 to 65536 levels.

        Raises:
            CodecError: another number of levels.
        """
        require_levels(levels)
        self.levels = levels

    def encode(self, x: Floats, context: ReductionContext) -> Message:
        """Return smallest, largest and packed codes. See `Estimator`."""
        require_finite_vector(x)
        # As float32, which the receiver has: both sides make the levels from the bytes that travel.
        side = _EXTREMES.pack(x.min(), x.max())
        codes = pack_rounded(x, self._grid(side), rounding_key(context))
        return Message(side + codes, _EXTREMES.size * 8 + x.size * code_bits(self.levels))

    def decode(self, message: Message, elements: int, context: ReductionContext) -> Floats:
        """Return the levels of the codes. See `Estimator`. The context is not needed."""
        size = _EXTREMES.size + packed_bytes(elements, code_bits(self.levels))
        require_payload(message.payload, size, self.name, elements)
        out = np.empty(elements, np.float32)
        for run in runs(elements):
            out[run] = finite_float32(self._values(message.payload, run))
        return out

    def _values(self, payload: bytes, run: slice) -> Doubles:
        return unpack_values(payload[_EXTREMES.size :], self._grid(payload), run)

    def _grid(self, payload: bytes) -> Levels:
        """Both sides make the levels from the bytes that are sent."""
        low, high = _EXTREMES.unpack_from(payload)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise CodecError(f"{self.name}: levels from {low} to {high}")
        return Levels(low, (high - low) / (self.levels - 1), self.levels)


class Sb(Sk):
    """`Sk` with two levels, one bit for each element: each is rounded to the smallest or to the largest."""

    name = "sb"

    def __init__(self) -> None:
        super().__init__(2)


# ---- srk ---------------------------------------------------------------------------------------------------


class Srk(Sk):
    """`sk` after a random rotation of the whole vector, which shrinks the distance between its extremes."""

    name = "srk"

    def encode(self, x: Floats, context: ReductionContext) -> Message:
        """Return exponent, smallest, largest and packed codes of the rotated vector. See `Estimator`."""
        require_finite_vector(x)
        # Divided by a power of two, which is exact: nothing overflows in the transform, and denormals keep their bits.
        exponent = int(np.frexp(max(x.max(), -x.min()))[1])
        v = np.zeros(padded_size(x.size), np.float32)
        key = rotation_key(context)
        for run in runs(x.size):
            v[run] = np.ldexp(x[run], -exponent) * signs(key, run)
        hadamard(v)
        payload, bits = super().encode(v, context)
        return Message(_EXPONENT.pack(exponent) + payload, _EXPONENT.size * 8 + bits)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> Floats:
        """Return the levels of the codes, rotated back. See `Estimator`."""
        coordinates = padded_size(elements)
        size = _EXPONENT.size + _EXTREMES.size + packed_bytes(coordinates, code_bits(self.levels))
        require_payload(message.payload, size, self.name, elements)
        v = np.empty(coordinates, np.float32)
        for run in runs(coordinates):
            v[run] = self._values(message.payload[_EXPONENT.size :], run)
        (exponent,) = _EXPONENT.unpack_from(message.payload)
        if exponent not in _EXPONENTS:
            raise CodecError(f"{self.name}: levels times 2^{exponent}")
        hadamard(v)
        scale = 2.0**exponent / coordinates
        out = np.empty(elements, np.float32)
        key = rotation_key(context)
        for run in runs(elements):
            out[run] = finite_float32(v[run].astype(np.float64) * (signs(key, run) * scale))
        return out


def padded_size(elements: int) -> int:
    """Return the smallest power of two that is not below `elements`."""
    return 1 << max(elements - 1, 0).bit_length()


def hadamard(v: Floats) -> None:
    """Replace v, float32[power of two], by H v in the natural (Sylvester) order, in place and not normalised.

    So two calls multiply v by its size. The call needs memory for RUN elements.
    """
    stride = 1
    while stride < v.size:
        # In place, tile by tile: a vector of millions of elements is not copied at each stage.
        pairs = v.reshape(-1, 2, stride)
        for rows, columns in _tiles(len(pairs), stride):
            first, second = pairs[rows, 0, columns], pairs[rows, 1, columns]
            # Before `first` changes.
            difference = first - second
            first += second
            second[...] = difference
        stride *= 2


def _tiles(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Cut a matrix into tiles of at most RUN elements. Powers of two fit without a rest."""
    # Powers of two fit without a rest, and a tile of 2^16 elements stays in the second-level cache.
    height, width = max(RUN // columns, 1), min(columns, RUN)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, row + height), slice(column, column + width)


# ---- svk ---------------------------------------------------------------------------------------------------

_SVK_SIDE: Final = struct.Struct("<fd")


class Svk:
    """Equidistant levels over a width of sqrt(2) |X|, with codes entropy coded by their frequencies.

    The contract is `estimator_interface.Estimator`.
    """

    name = "svk"
    unbiased = True

    def __init__(self, levels: int | None = None) -> None:
        """Make the estimator with 2 to 65536 levels. None takes ceil(sqrt(elements)) + 1 for each vector.

        Raises:
            CodecError: another number of levels, or constriction is not installed.
        """
        if levels is not None:
            require_levels(levels)
        self.levels = levels
        self._coder = EntropyCoder()

    def levels_of(self, elements: int) -> int:
        """Return the levels for a vector of so many elements.

        Raises:
            CodecError: more elements than the square of the largest number of levels.
        """
        levels = self.levels or math.isqrt(elements - 1) + 2
        require_levels(levels)
        return levels

    def encode(self, x: Floats, context: ReductionContext) -> Message:
        """Return smallest element, width, and the stream of codes. See `Estimator`."""
        require_finite_vector(x)
        levels = self.levels_of(x.size)
        low, high = float(x.min()), float(x.max())
        energy = sum(float(np.square(x[run], dtype=np.float64).sum()) for run in runs(x.size))
        side = _SVK_SIDE.pack(low, max(math.sqrt(2 * energy), high - low))
        grid = self._grid(side, levels)
        codes = np.empty(x.size, np.uint16)
        key = rounding_key(context)
        for run in runs(x.size):
            codes[run] = grid.round(x[run], uniforms(key, run))
        payload = side + self._coder.compress(codes, levels)
        return Message(payload, len(payload) * 8)

    def decode(self, message: Message, elements: int, context: ReductionContext) -> Floats:
        """Return the levels of the codes. See `Estimator`. The context is not needed."""
        if elements < 1 or len(message.payload) < _SVK_SIDE.size:
            raise CodecError(f"{self.name}: {len(message.payload)} bytes for {elements} elements")
        levels = self.levels_of(elements)
        grid = self._grid(message.payload, levels)
        codes = self._coder.expand(message.payload[_SVK_SIDE.size :], elements, levels)
        out = np.empty(elements, np.float32)
        for run in runs(elements):
            out[run] = finite_float32(grid.values(codes[run]))
        return out

    def _grid(self, payload: bytes, levels: int) -> Levels:
        """Both sides make the levels from the bytes that are sent."""
        low, width = _SVK_SIDE.unpack_from(payload)
        if not (math.isfinite(low) and math.isfinite(width) and width >= 0):
            raise CodecError(f"{self.name}: levels of width {width} from {low}")
        return Levels(low, width / (levels - 1), levels)


# ---- upper bounds of the mean squared error E|mean' - mean|^2, and of bits ----------------------------------
# d elements, n workers, k levels, F (`energy`) the mean of |X_i|^2 over workers. The logarithm of `srk` is natural.

SVK_EXTRA_BITS: Final = 160
"""The O(1) of `bits_bound_svk`: 96 bits of side information, and two words in which the range coder ends."""


def mean_energy(vectors: Sequence[Floats]) -> float:
    """Return F, the mean of |X_i|^2 over workers."""
    return sum(float(np.square(x, dtype=np.float64).sum()) for x in vectors) / len(vectors)


def mse_bound_sb(d: int, n: int, energy: float) -> float:
    """Return the upper bound d / (2 n) F of the mean squared error of `sb` (stochastic binary quantisation).

    d: elements. n: workers. F is `energy`, the mean of |X_i|^2 over workers, see `mean_energy`.
    """
    return d / (2 * n) * energy


def mse_bound_sk(d: int, n: int, energy: float, k: int) -> float:
    """Return the upper bound d / (2 n (k - 1)^2) F of the mean squared error of `sk` with k levels, and of `svk`.

    d, n and `energy` are those of `mse_bound_sb`.
    """
    return d / (2 * n * (k - 1) ** 2) * energy


def mse_bound_srk(d: int, n: int, energy: float, k: int) -> float:
    """Return the upper bound (2 ln D + 2) / (n (k - 1)^2) F of the mean squared error of `srk` with k levels.

    D is the power of two to which d is padded. d, n and `energy` are those of `mse_bound_sb`.
    """
    return (2 * math.log(padded_size(d)) + 2) / (n * (k - 1) ** 2) * energy


def bits_bound_svk(d: int, k: int) -> float:
    """Return the upper bound of the expected bits of one message of `svk`, for d elements and k levels.

    It is d (2 + log2((k - 1)^2 / (2 d) + 5/4)) + k log2((d + k) e / k) + SVK_EXTRA_BITS.
    """
    codes = d * (2 + math.log2((k - 1) ** 2 / (2 * d) + 1.25))
    histogram = k * math.log2((d + k) * math.e / k)
    return codes + histogram + SVK_EXTRA_BITS
