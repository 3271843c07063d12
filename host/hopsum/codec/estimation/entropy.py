# SPDX-License-Identifier: Apache-2.0
"""The stream of `svk`: one range-coded stream of a histogram, then of codes by the histogram's frequencies.

Histogram: d codes as d zeros, with a one between levels: k - 1 ones among d + k - 1 bits, each coded with the
frequencies (d, k - 1), which both sides know. By the entropy of such a string that costs at most
(k - 1) log2((d + k - 1) e / (k - 1)) < k log2((d + k) e / k) bits, whatever the histogram is.

Codes: each with the frequencies h_r / d, together d H(h / d) bits.

The two sides have equal models because both make them from the same integers: counts as float64, which hold them
exactly. constriction (`Categorical` with perfect=False) adds these counts, exactly again, and maps the sums to
its 24-bit integers by one division and one multiplication of float64, which every IEEE 754 machine rounds alike.
It keeps at least 2^-24 for every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import runs
from hopsum.codec.interface import CodecError


class EntropyCoder:
    """Streams of codes by their own histogram."""

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
        counts = np.zeros(levels, np.int64)
        for run in runs(codes.size):
            counts += np.bincount(codes[run], minlength=levels)
        encoder = self._queue.RangeEncoder()
        model = self._model(np.array([codes.size, levels - 1]))
        for part in _separators(counts):
            encoder.encode(part, model)
        model = self._model(counts)
        for run in runs(codes.size):
            encoder.encode(codes[run].astype(np.int32), model)
        words: NDArray[np.uint32] = encoder.get_compressed()
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


def _separators(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
    """Return, in runs, the string of a histogram: for each level its count in zeros, with ones between levels."""
    places = np.cumsum(counts[:-1] + 1) - 1
    for run in runs(int(counts.sum()) + len(places)):
        part = np.zeros(run.stop - run.start, np.int32)
        inside = slice(*np.searchsorted(places, (run.start, run.stop)))
        part[places[inside] - run.start] = 1
        yield part
