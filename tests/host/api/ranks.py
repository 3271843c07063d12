# SPDX-License-Identifier: Apache-2.0
"""Ranks of an in-process group as threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

import hopsum
from hopsum.agent import Communicator
from hopsum.codec import make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum_wire import Op

Result = TypeVar("Result")

CODECS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "thc": ("thc", {}),
    "thc3": ("thc", {"bits": 3}),
    "thc8": ("thc", {"result_bits": 8}),
    "stochastic": ("thc", {"rounding": "stochastic"}),
    "stochastic16": ("thc", {"rounding": "stochastic", "lane_bits": 16}),
    "uhc4": ("uhc", {"bits": 4}),
    "uhc8": ("uhc", {"bits": 8}),
    "fixed": ("fixed", {}),
    "lossless": ("lossless", {}),
    "thc2": ("thc", {"bits": 2}),
    "two-shot": ("two-shot", {}),
    "two-shot8": ("two-shot", {"bits": 8}),
}


def run_ranks(url: str, work: Callable[[Communicator], Result], workers: int, **settings: Any) -> list[Result]:
    """Return what `work` returns for each rank of the group; the first error of a rank is raised."""

    def run(rank: int) -> Result:
        with hopsum.connect(url, rank=rank, backend="numpy", **{"deadline_s": 20.0, **settings}) as job:
            return work(job)

    name, options = settings.get("codec", "thc"), settings.get("codec_options", {})
    make_codec(name, workers=workers, backend="numpy", **options)  # solves the table once, and not in every thread
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, rank) for rank in range(workers)]
        return [future.result(60) for future in futures]


def sum_without_some(op: int, payloads: list[Any], table: Any, _: Any, code_group: int) -> Any:
    """Sum as `simulate_switch`: ranges of all ranks, and n of n + 1 chunks without another one of the n ranks each."""
    ranks, chunks = np.ogrid[: len(payloads), : len(payloads[0])]
    present = (op == Op.MAX32) | (chunks % (len(payloads) + 1) != 1 + ranks)
    return simulate_switch(op, payloads, table, present, code_group)


def vectors(workers: int, elements: int, codec: str = "thc", seed: int = 0) -> list[NDArray[np.float32]]:
    """Return float32[elements] for each rank; sparse ones for lossless."""
    rng = np.random.default_rng((seed, elements))
    drawn = [rng.standard_t(3, elements).astype(np.float32) for _ in range(workers)]
    if codec == "lossless":
        drawn = [x * (rng.random(elements) < 0.02).astype(np.float32) for x in drawn]
    return drawn
