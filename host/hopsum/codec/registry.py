# SPDX-License-Identifier: Apache-2.0
"""Codecs by name. A codec is checked against the numpy backend before it is handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.base import Codec, CodecError, Context, SharedRanges
from hopsum.codec.fixed import Fixed
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc

CODECS: Final[dict[str, Callable[..., Codec]]] = {"thc": Thc, "fixed": Fixed}
"""Called with workers, the codec's own options, and `kernels`."""


def make_codec(name: str, *, workers: int, backend: str = "auto", **options: Any) -> Codec:
    """Make a codec for a job of `workers` workers, and check it.

    Args:
        name: "thc" (option `table`, a LookupTable) or "fixed".
        workers: of the job, not of one all-reduce.
        backend: "numpy", "numba", or "auto": numba where it is installed. Ranks may differ: their bytes do not.

    Raises:
        CodecError: unknown name or backend, options that do not fit, or a failed check.
    """
    if name not in CODECS:
        raise CodecError(f"codec {name!r}: one of {', '.join(CODECS)}")
    codec = CODECS[name](workers, kernels=load_kernels(backend), **options)
    if codec.backend != "numpy":
        self_check(codec, CODECS[name](workers, kernels=load_kernels("numpy"), **options))
    return codec


def self_check(codec: Codec, reference: Codec) -> None:
    """Compare a codec with one of another backend on three and a bit blocks.

    A kernel from a stale cache, or one that the machine's compiler got wrong, would split the replicas of a job.

    Raises:
        CodecError: any byte differs; do not use this backend.
    """
    elements = 3 * codec.block_elements + 5
    x = np.random.default_rng(20230216).standard_t(3, elements).astype(np.float32)
    x[: codec.block_elements] *= np.float32(1e-8)
    found, expected = _steps(codec, x), _steps(reference, x)
    for what, right in expected.items():
        if found[what].shape != right.shape or found[what].tobytes() != right.tobytes():
            raise CodecError(
                f"codec {codec.name}: {what} of backend {codec.backend} differ from those of {reference.backend}; "
                "remove numba's cache (__pycache__ of hopsum/codec/backends) or use backend numpy"
            )


def _steps(codec: Codec, x: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Return what a codec makes of a vector that all ranks have, phase by phase."""
    context = Context(seed=11, step=3, rank=codec.workers - 1)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32) * np.float32(1.5))
    payloads = codec.encode(x, own, shared, context)
    results, everybody = simulate_switch(codec.op, [payloads] * codec.workers, codec.lookup)
    return {
        "ranges": own,
        "payloads": payloads,
        "contribution": codec.contribution(payloads, shared, x.size, context),
        "mean": codec.decode(results, everybody, shared, x.size, context),
    }
