# SPDX-License-Identifier: Apache-2.0
"""The timed operations of a codec, and the bytes that each of them cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges
from hopsum.codec.interface import blocks_of
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum.codec.thc import LookupTableCodec
from hopsum_wire.payload import SHAPES

NMSE_ELEMENTS = 1 << 20
ACTIONS = ("encode", "decode", "encode_feedback", "residual_read", "residual_write", "contribution")


class Subject:
    """A codec with a vector that all ranks have, its payloads, and the switch's results."""

    def __init__(self, codec: RangeCodec, x: NDArray[np.float32], seed: int) -> None:
        self.codec = codec
        self.x = x
        self.label = f"{codec.name} {codec.backend}"
        self._context = ReductionContext(seed, 0, 0)
        own = codec.ranges(x)
        self._shared = SharedRanges(own.view(np.float32))
        self._payloads = codec.encode(x, own, self._shared, self._context)
        parts = np.array_split(self._payloads, 64)  # all ranks' payloads together would need much memory
        sums = [simulate_switch(codec.op, [part] * codec.workers, codec.lookup) for part in parts]
        self._results = np.ascontiguousarray(np.concatenate([part for part, _ in sums]))
        blocks = blocks_of(x.size, codec.block_elements)
        self._contributors = np.concatenate([part for _, part in sums]).repeat(codec.chunk_blocks)[:blocks]
        self._feedback = ErrorFeedback(x.size)
        self._sum = x.copy()

    def actions(self) -> dict[str, Callable[[], object]]:
        """Return what is timed, by name: ACTIONS."""
        codec, x, shared, context = self.codec, self.x, self._shared, self._context
        return {
            "encode": self._encode,
            "decode": lambda: codec.decode(self._results, self._contributors, shared, x.size, context),
            "contribution": lambda: codec.contribution(self._payloads, shared, x.size, context),
            "residual_read": self._read,
            "residual_write": self._write,
            "encode_feedback": self._encode_feedback,
        }

    def least_bytes(self) -> dict[str, float]:
        """Return by action the bytes per element that it has to read and write once, whatever the implementation.

        float32 in and out are 4 each. `residual_read` takes vector and residual and leaves their sum.
        """
        shape = SHAPES[self.codec.op]
        up, down = shape.up_bytes / shape.elements, shape.down_bytes / shape.elements
        return {
            "encode": 4 + up,
            "decode": down + 4,
            "contribution": up + 4,
            "residual_read": 4 + 4 + 4,
            "residual_write": up + 4 + 4,
            "encode_feedback": 4 + 4 + up + 4,
        }

    def facts(self, seed: int) -> dict[str, Any]:
        """Return the codec's name, and its error on the first NMSE_ELEMENTS beside what theory expects."""
        codec, sample = self.codec, self.x[:NMSE_ELEMENTS]
        means = simulate_allreduce(codec, [sample] * codec.workers, seed=seed, step=1)
        assert means is not None
        error = means[0].astype(np.float64) - sample
        table = codec.table if isinstance(codec, LookupTableCodec) else None
        return {
            "codec": codec.name,
            "backend": codec.backend,
            "nmse": float(error @ error / (sample.astype(np.float64) @ sample)),
            "nmse_expected": None if table is None else expected_nmse(table, codec.workers),
            "granularity": None if table is None else table.granularity,
            "truncated": None if table is None else table.truncated,
        }

    def _encode(self) -> None:
        self.codec.encode(self.x, self.codec.ranges(self.x), self._shared, self._context)

    def _read(self) -> None:
        """Add the residual to the vector, as error feedback does before the ranges."""
        self._feedback.compensate(self.x)
        self._feedback.rollback()

    def _write(self) -> None:
        """Take from the sum what was delivered, which leaves the residual, as error feedback does after the results.

        The sum is a copy of the vector here, from which the same is taken again and again.
        """
        self.codec.subtract_contribution(self._sum, self._payloads, self._shared, self._context)

    def _encode_feedback(self) -> None:
        """Do all that a worker does between a gradient and its next one, but for decoding the mean."""
        codec, context = self.codec, self._context
        whole = self._feedback.compensate(self.x)
        own = codec.ranges(whole)
        shared = SharedRanges(own.view(np.float32))
        payloads = codec.encode(whole, own, shared, context)
        codec.subtract_contribution(whole, payloads, shared, context)
        self._feedback.commit(None)
