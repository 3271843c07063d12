# SPDX-License-Identifier: Apache-2.0
"""The bytes of a plan against those that codecs hand to a switch, against frames, and against a ring that is walked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsum.codec import Codec, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum_evaluation.plan.traffic import PlanError, ring_traffic, summed_traffic
from hopsum_wire import Op
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES

WORKERS = 3
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"lane_bits": 16}),
    ("thc", {"bits": 2}),
    ("thc", {"result_bits": 6}),
    ("uhc", {"bits": 8}),
    ("fixed", {}),
]


def exchanged(codec: Codec, vectors: list[np.ndarray]) -> list[tuple[Op, int, int, int]]:
    """Run an all-reduce; return op, chunks, frame bytes up and down of each phase."""
    ranks = [codec.start(x, ReductionContext(3, 1, rank)) for rank, x in enumerate(vectors)]
    found = []
    while (phase := ranks[0].phase) is not None:
        payloads = [rank.phase.payloads for rank in ranks if rank.phase is not None]
        results, contributors = simulate_switch(phase.op, payloads, codec.lookup)
        chunks = len(results)
        up, down = (each.nbytes + chunks * FRAME_OVERHEAD_BYTES for each in (payloads[0], results))
        found.append((phase.op, chunks, up, down))
        for rank in ranks:
            rank.take(results, contributors)
    return found


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("elements", [1, 1024, 1025, 300_000])
def test_bytes_are_those_that_the_codec_hands_over(name: str, options: dict[str, Any], elements: int) -> None:
    codec = make_codec(name, workers=WORKERS, backend="numpy", **options)
    rng = np.random.default_rng(elements)
    found = exchanged(codec, [rng.standard_normal(elements, dtype=np.float32) for _ in range(WORKERS)])
    traffic = summed_traffic(codec, elements, 1, 1.0)
    assert traffic == (sum(f[2] for f in found), sum(f[3] for f in found), sum(f[1] for f in found), len(found))


@pytest.mark.parametrize("density", [0.002, 0.05, 0.4])
def test_bytes_of_lossless_are_those_of_independent_supports(density: float) -> None:
    """The sketch is an expectation, and may have to grow: within a tenth. The rest is exact for this many."""
    elements = 400_000
    codec = make_codec("lossless", workers=WORKERS)
    rng = np.random.default_rng(7)
    count = round(density * elements)
    vectors = []
    for _ in range(WORKERS):
        x = np.zeros(elements, np.float32)
        x[rng.choice(elements, count, replace=False)] = rng.standard_normal(count, dtype=np.float32)
        vectors.append(x)
    found = exchanged(codec, vectors)
    traffic = summed_traffic(codec, elements, 1, density)
    assert traffic.phases == len(found) == 3
    assert traffic.up_bytes == pytest.approx(sum(f[2] for f in found), rel=0.1)
    assert traffic.down_bytes == pytest.approx(sum(f[3] for f in found), rel=0.1)


def test_vectors_are_cut_as_the_agent_cuts_them() -> None:
    codec = make_codec("thc", workers=4, backend="numpy")
    parts = [part.size for part in np.array_split(np.empty(10_007, np.float32), 5)]
    each = [summed_traffic(codec, size, 1, 1.0) for size in parts]
    whole = summed_traffic(codec, 10_007, 5, 1.0)
    assert (whole.up_bytes, whole.down_bytes, whole.chunks) == tuple(
        sum(getattr(one, name) for one in each) for name in ("up_bytes", "down_bytes", "chunks")
    )


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_a_ring_sends_what_walking_it_sends(workers: int) -> None:
    """Payload of n - 1 steps that add and n - 1 that hand on, cut into segments of 1448 bytes in frames of 1514."""
    elements = 1448 * 64 * 1000
    payload = sum(4 * elements / workers for _ in ("add", "hand on") for _ in range(workers - 1))
    traffic = ring_traffic(elements, workers, 4)
    assert traffic.up_bytes == traffic.down_bytes == pytest.approx(payload / 1448 * 1514)


def test_a_codec_without_sizes_is_refused() -> None:
    class Other:
        name = "other"

    with pytest.raises(PlanError, match="'other': no sizes"):
        summed_traffic(Other(), 10, 1, 1.0)  # type: ignore[arg-type]
