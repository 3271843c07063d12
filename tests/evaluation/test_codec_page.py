# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/codecs.md about requantised results, bits on the wire and error feedback."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import Codec, ErrorFeedback, make_codec
from hopsum.codec.dither import MOST_WORKERS
from hopsum.codec.interface import feeds_back
from hopsum.codec.thc import LookupTableCodec
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.plan.traffic import at_hosts, summed_traffic, two_shot_traffic
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

pytestmark = pytest.mark.system
DOCS = Path(__file__).parents[2] / "docs"
WORKERS = (2, 4, 8, 16)
CHANGING = 1 << 14
"""Elements of vectors that are summed many times."""


@cache
def rows() -> dict[str, list[list[str]]]:
    """Return the rows of the page's tables that begin with these cells, each as its cells."""
    found: dict[str, list[list[str]]] = {}
    for line in (DOCS / "codecs.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            found.setdefault(cells[0].replace("`", ""), []).append(cells[1:])
    return found


def normal(rank: int, elements: int, *seeds: int) -> NDArray[np.float32]:
    return np.random.default_rng([1, rank, *seeds]).standard_normal(elements, dtype=np.float32)


def error(found: NDArray[np.floating], vectors: list[NDArray[np.float32]]) -> float:
    truth = np.mean(vectors, axis=0, dtype=np.float64)
    return float(np.sum((found - truth) ** 2) / np.sum(truth**2))


def mean_of(
    codec: Codec, vectors: list[NDArray[np.float32]], step: int, kept: list[ErrorFeedback] | None = None
) -> NDArray[np.float64]:
    means = simulate_allreduce(codec, vectors, seed=1, step=step, feedback=kept)
    assert means is not None
    return means[0].astype(np.float64)


@pytest.mark.parametrize("codec", ["thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8"])
def test_bits_on_the_wire(codec: str) -> None:
    # Whole packets of ranges and of codes, with all their headers.
    elements = 1024 * 256
    traffic = summed_traffic(make_codec(codec, workers=4, backend="numpy"), elements, 1, 1.0)
    moved = (traffic.up_bytes, traffic.down_bytes, at_hosts(traffic, 4).up_bytes)
    label = "thc:result_bits=8, thc:rounding=stochastic" if "result" in codec else codec
    assert [f"{8 * each / elements:.2f}" for each in moved] in rows()[label]


def test_bits_on_the_wire_without_a_switch() -> None:
    bits = 8 * two_shot_traffic(1 << 20, 4, 4).up_bytes / (1 << 20)
    assert [f"{bits:.2f}"] * 3 in rows()["two-shot:bits=4, no switch"]


@pytest.mark.parametrize(
    "name",
    ["thc", "thc:bits=3", "thc:bits=2", "thc:bits=2,error_feedback=true", "thc:result_bits=8",
     "thc:rounding=stochastic", "two-shot:bits=4"],
)  # fmt: skip
def test_errors_of_equal_and_of_independent_vectors(name: str) -> None:
    # Only cells of this table have a pair of numbers.
    (cells,) = [each for each in rows()[name] if all(re.fullmatch(r"0\.\d+, 0\.\d+", cell) for cell in each)]
    elements = 1 << 16
    for workers, cell in zip(WORKERS, cells, strict=True):
        equal, independent = map(float, cell.split(","))
        codec = make_codec(name, workers=workers)
        if isinstance(codec, LookupTableCodec):
            found = expected_normal_nmse(codec)
        else:
            found = error(mean_of(codec, [normal(0, elements)] * workers, 1), [normal(0, elements)])
        # Two digits, of which the last one is rounded.
        assert found == pytest.approx(equal, rel=0.05)
        vectors = [normal(rank, elements) for rank in range(workers)]
        assert error(mean_of(codec, vectors, 1), vectors) == pytest.approx(independent, rel=0.07)


def said(pattern: str) -> list[float]:
    """Return the numbers of the page's text that a pattern finds, once."""
    text = " ".join((DOCS / "codecs.md").read_text(encoding="utf-8").split())
    (found,) = re.findall(pattern, text)
    return [float(each) for each in found]


def half_common(rank: int, *seeds: int) -> NDArray[np.float32]:
    """Return a rank's vector, of which half of the energy is common to all ranks."""
    return (normal(99, CHANGING) + normal(rank, CHANGING, *seeds)).astype(np.float32)


def test_the_error_of_many_means_falls_as_the_root_of_their_number() -> None:
    told = said(r"falls as 1/√T: (0\.\d+) after one, (0\.\d+) after 10, (0\.\d+) after 100 and (0\.\d+) after 400")
    gains = said(r"the decoded mean is (0\.\d+) \(`thc`\), (0\.\d+) \(`bits=3`\) and (1\.\d+) \(`bits=2`\)")
    vectors = [half_common(rank) for rank in range(4)]
    truth = np.mean(vectors, axis=0, dtype=np.float64)
    for name, gain in zip(("thc", "thc:bits=3", "thc:bits=2"), gains, strict=True):
        codec, total, found = make_codec(name, workers=4), np.zeros(CHANGING), []
        kept = [ErrorFeedback(CHANGING) for _ in vectors] if feeds_back(codec) else None
        for step in range(1, 401):
            total += mean_of(codec, vectors, step, kept)
            if step in (1, 10, 100, 400):
                found.append(error(total / step, vectors) ** 0.5)
        assert total @ truth / (400 * truth @ truth) == pytest.approx(gain, abs=0.005)
        if name == "thc":
            assert found == pytest.approx(told, rel=0.1)


def test_a_mean_with_feedback_has_the_rest_of_the_one_before() -> None:
    told = said(
        r"is (0\.\d+) with feedback and (0\.\d+) without \(`thc`\), (0\.\d+) and (0\.\d+) \(`bits=3`\), (0\.\d+) and "
        r"(0\.\d+) \(`bits=2`\), and (0\.\d+) and (0\.\d+) with `thc:result_bits=8`"
    )
    names = ("thc", "thc", "thc:bits=3", "thc:bits=3", "thc:bits=2,error_feedback=true", "thc:bits=2",
             "thc:result_bits=8", "thc:result_bits=8")  # fmt: skip
    for number, (name, figure) in enumerate(zip(names, told, strict=True)):
        codec, errors = make_codec(name, workers=4), []
        kept = None if number % 2 else [ErrorFeedback(CHANGING) for _ in range(4)]
        for step in range(30):
            vectors = [half_common(rank, step) for rank in range(4)]
            errors.append(error(mean_of(codec, vectors, step, kept), vectors))
        # Until residuals are as large as they become.
        assert np.mean(errors[10:]) == pytest.approx(figure, rel=0.05)


def test_lanes_have_room_for_as_many_workers_as_said() -> None:
    told = said(r"room for the (\d+) workers that a job with codes of 4 or 3 bits may have, and for (\d+) workers")
    most = [int(each) for each in told]
    assert most == [MOST_WORKERS[4], MOST_WORKERS[2]] == [MOST_WORKERS[3], MOST_WORKERS[2]]
