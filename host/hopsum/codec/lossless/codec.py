# SPDX-License-Identifier: Apache-2.0
"""The codec `lossless`: its options, and where its reductions start."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.interface import CodecError, ErrorFeedback, OnNonfinite, ReductionContext, Tensors, require_workers
from hopsum.codec.lossless.index import require_kind
from hopsum.codec.lossless.kernels import SketchKernels
from hopsum.codec.lossless.parallel_kernels import ParallelKernels
from hopsum.codec.lossless.reduction import LosslessOptions, LosslessReduction
from hopsum.codec.lossless.sizing import ATTEMPTS, BLOCK_ELEMENTS, GAMMA, Sizing
from hopsum_wire import LANE_GROUP_CODES, Op

_MODULES: Final = {"numpy": "reference", "numba": "compiled"}
_REPEATS: Final = 3


class Lossless:
    """The contract is `hopsum.codec.interface.Codec`. Any thread may use it."""

    name = "lossless"
    op = Op.ADD32
    lookup: tuple[int, ...] | None = None
    code_group = LANE_GROUP_CODES
    phases = 3

    def __init__(
        self,
        workers: int,
        *,
        gamma: float = GAMMA,
        block_elements: int = BLOCK_ELEMENTS,
        index: str = "auto",
        attempts: int = ATTEMPTS,
        repeats: int = _REPEATS,
        kernels: Kernels | None = None,
    ) -> None:
        """Make the codec of a job. All ranks give the same options.

        Args:
            workers: of the job.
            gamma: cells of the sketch per non-zero element of the union. With 0 there is no sketch, and the union is
                packed.
            block_elements: consecutive elements that share their hashes, a power of two up to 65536.
            index: "bitmap", "bloom", or "auto": a filter where it is expected to save an eighth of the bytes.
            attempts: sizes to try per sketch until it peels, each a sixteenth of gamma larger.
            repeats: how often the sums are asked for while their contributors differ from chunk to chunk.
            kernels: of a backend, on as many threads as it has; "auto" on one if left out.

        Raises:
            CodecError: options out of range.
        """
        require_workers(workers)
        require_kind(index)
        if repeats < 1:
            raise CodecError(f"{repeats} repeats of the sums: at least 1, the first time")
        kernels = kernels or load_kernels("auto")
        self.workers = workers
        tries = f"{attempts} attempts, {repeats} repeats"
        self.facts = f", gamma {gamma}, block_elements {block_elements}, index {index}, {tries}"
        """Options that ranks need to have in common, in words."""
        self.backend = kernels.name
        work = ParallelKernels(_sketch_kernels(kernels.name), kernels.threads)
        self._options = LosslessOptions(workers, work, Sizing(gamma, block_elements, attempts), index, repeats)

    def start(
        self,
        x: NDArray[np.float32],
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        *,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: NDArray[np.float32] | None = None,
    ) -> LosslessReduction:
        """Begin an all-reduce. See `Codec`."""
        return LosslessReduction(
            self._options, x, context, feedback, tensors=tensors, on_nonfinite=on_nonfinite, out=out
        )


def _sketch_kernels(backend: str) -> SketchKernels:
    kernels: SketchKernels = import_module(f"hopsum.codec.lossless.{_MODULES[backend]}").make_kernels()
    return kernels
