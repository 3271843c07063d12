# SPDX-License-Identifier: Apache-2.0
"""Section `lossless`: the claims of LHC: throughput against density, and what peels.

Speed: encode, peel and decode a Gaussian vector in one thread, bitmap index, without a network. A speed-up is that of a
link with codec and link one after the other: measured codec time, counted bytes. Peeling: sketches of members at random
places of a vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import ceil
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.sketch_kernels import SketchKernels, SketchLayout
from hopsum.codec.lossless.sketch_plan import GAMMA
from hopsum_base.units import format_number
from hopsum_evaluation.bench.lossless_rate import measure_reduction
from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.experiment import ReportTable, Result, SectionView, Settings, Tell
from hopsum_evaluation.interval import interval
from hopsum_evaluation.report.claims import Basis, Claim, Relation

LHC: Final = "Li et al., LHC (2024)"
LINK_BITS_PER_S: Final = 1e9
THRESHOLD: Final = 1.222
"""Cells per edge of a large random hypergraph, three cells an edge, above which it peels."""
CLAIMS: Final = (
    Claim(
        "throughput",
        "time of an all-reduce at 5 % density, 1 Gbit/s, codec then bytes: dense fp32 over lossless",
        f"{LHC}, abstract: up to",
        Basis.PUBLISHED,
        6.33,
        Relation.AT_LEAST,
    ),
    Claim(
        "iteration",
        "time of a training step at 5 % density, 1 Gbit/s, compute, codec, then bytes: dense fp32 over lossless",
        f"{LHC}, abstract: up to",
        Basis.PUBLISHED,
        3.74,
        Relation.AT_LEAST,
    ),
    Claim(
        "bytes",
        "bytes sent per byte of the dense vector at 5 % density",
        f"{LHC}; its code's formula, gamma * density + 1/32",
        Basis.THEORY,
        GAMMA * 0.05 + 1 / 32,
        Relation.WITHIN,
        0.005,
    ),
    Claim(
        "threshold",
        "cells per non-zero element from which on a sketch peels",
        "random hypergraphs with three cells an edge",
        Basis.THEORY,
        THRESHOLD,
        Relation.WITHIN,
        0.025,
    ),
    Claim(
        "below",
        "share of elements that do not peel at 1.15 cells each",
        "simulation",
        Basis.OWN,
        0.1,
        Relation.AT_LEAST,
    ),
    Claim(
        "above",
        "share of elements that do not peel at 1.3 cells each",
        "simulation",
        Basis.OWN,
        0.0,
        Relation.AT_MOST,
    ),
)
_GAMMAS: Final = (1.15, 1.2, 1.225, 1.25, 1.3, 1.4, 1.6, 2.0)
_CLAIMED: Final = 0.05


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the speed of the codec, a training step, and the peeling of sketches. Return the figures."""
    repeats = settings.pick(3, 5, 10)
    speed = _measure_speed(settings, repeats, tell)
    iteration = measure_iterations(settings, repeats)
    members = settings.pick(1 << 13, 1 << 16, 1 << 18)
    peeled = []
    for repeat in range(repeats):
        tell(0.55 + 0.45 * repeat / repeats, f"what peels, {members:,} members")
        rng = settings.rng("data", "peel", repeat)
        peeled.append({
            "threshold": peeling_threshold(members, _CLAIMED, rng),
            "left": [unpeeled_share(members, gamma, _CLAIMED, rng) for gamma in _GAMMAS],
        })  # fmt: skip
    return {"speed": speed, "iteration": iteration, "gammas": list(_GAMMAS), "peeled": peeled, "members": members}


def _measure_speed(settings: Settings, repeats: int, tell: Tell) -> list[dict[str, Any]]:
    elements = settings.pick(1 << 18, 1 << 22, 1 << 24)
    densities = settings.pick(
        (0.01, _CLAIMED), (0.001, 0.01, _CLAIMED, 0.2), (0.001, 0.005, 0.01, 0.02, _CLAIMED, 0.1, 0.2, 0.4)
    )
    # One worker: the sum has its own support, as dense as the claim says.
    codec = make_codec("lossless", workers=1, index="bitmap")
    assert isinstance(codec, Lossless)
    found = []
    for number, density in enumerate(densities):
        rows = []
        for repeat in range(repeats):
            tell(0.55 * (number + repeat / repeats) / len(densities), f"speed at density {density:g}")
            rng = settings.rng("data", "sparse", number, repeat)
            x = rng.standard_normal(elements, dtype=np.float32)
            # Each element is zero by itself: the number of the others varies as in a real gradient.
            x[rng.random(elements, dtype=np.float32) >= density] = 0
            row = measure_reduction(codec, x, 3, settings.derive_seed("codec", repeat) >> 1)
            kept = ("all_elements_per_s", "bytes_of_dense", "lanes_per_nonzero", "backend")
            rows.append({key: row[key] for key in kept})
        found.append({"density": density, "elements": elements, "runs": rows})
    return found


def speedup(elements_per_s: float, bytes_of_dense: float, link_bits_per_s: float) -> float:
    """Return the time of a dense float32 vector on a link over that of codec and bytes, one after the other.

    bytes_of_dense: bytes that the codec sends, as a share of those of the dense vector.
    """
    dense_s = 32 / link_bits_per_s
    return dense_s / (1 / elements_per_s + dense_s * bytes_of_dense)


def make_view(result: Result) -> SectionView:
    """Make tables, plots and the samples of the claims from a result of `run`."""
    speed, peeled, gammas = result["speed"], result["peeled"], result["gammas"]
    claimed = next(row for row in speed if row["density"] == _CLAIMED)
    iteration = result.get("iteration")
    return SectionView(
        tables=[_speed_table(speed), _peel_table(gammas, peeled)],
        plots=[_speed_plot(speed), _peel_plot(gammas, peeled)],
        samples={
            "throughput": _speedups(claimed),
            "iteration": _iteration_speedups(iteration, claimed) if iteration else [],
            "bytes": [each["bytes_of_dense"] for each in claimed["runs"]],
            "threshold": [each["threshold"] for each in peeled],
            "below": [each["left"][gammas.index(1.15)] for each in peeled],
            "above": [each["left"][gammas.index(1.3)] for each in peeled],
        },
        reasons={"iteration": "the compute of a step was not measured: it needs torch and scikit-learn"},
    )


def _iteration_speedups(iteration: dict[str, Any], row: dict[str, Any]) -> list[float]:
    return [
        iteration_speedup(compute_s, iteration["parameters"], each["all_elements_per_s"], each["bytes_of_dense"],
                          LINK_BITS_PER_S)
        for compute_s, each in zip(iteration["compute_s"], row["runs"], strict=True)
    ]  # fmt: skip


def _speedups(row: dict[str, Any], link: float = LINK_BITS_PER_S) -> list[float]:
    return [speedup(each["all_elements_per_s"], each["bytes_of_dense"], link) for each in row["runs"]]


def _speed_plot(speed: Sequence[dict[str, Any]]) -> Plot:
    densities = [100 * row["density"] for row in speed]
    series = []
    # The codec's time does not fall with the link's: on a fast link a dense vector may win.
    for link in (1e8, LINK_BITS_PER_S, 1e10):
        found = [interval(_speedups(row, link)) for row in speed]
        reach = [each.high - each.mean for each in found]
        series.append(Series(f"{link / 1e9:g} Gbit/s", densities, [each.mean for each in found], reach))
    series.append(Series("as fast as dense", densities, [1.0] * len(densities), reference=True))
    series.append(Series("published, up to 6.33", densities, [6.33] * len(densities), reference=True))
    return Plot("lossless-speed", "Lossless against dense fp32, by density", "elements that are not zero, %",
                "speed-up", series, True, True)  # fmt: skip


def _peel_plot(gammas: Sequence[float], peeled: Sequence[dict[str, Any]]) -> Plot:
    whole = [float(np.mean([each["left"][place] == 0 for each in peeled])) for place in range(len(gammas))]
    left = [float(np.mean([each["left"][place] for each in peeled])) for place in range(len(gammas))]
    series = [
        Series("sketches that peel", gammas, whole),
        Series("elements left", gammas, left),
        Series(f"threshold {THRESHOLD}", [THRESHOLD, THRESHOLD], [0.0, 1.0], reference=True),
    ]
    return Plot("lossless-peel", "What peels, by size of the sketch", "cells per non-zero element", "share", series)


def _speed_table(speed: Sequence[dict[str, Any]]) -> ReportTable:
    rows = []
    for row in speed:
        rate = interval([each["all_elements_per_s"] / 1e6 for each in row["runs"]])
        gain, size = interval(_speedups(row)), interval([each["bytes_of_dense"] for each in row["runs"]])
        shown, faster = (f"{format_number(x.mean)} ± {format_number(x.high - x.mean, 2)}" for x in (rate, gain))
        rows.append([f"{row['density']:.1%}", shown, format_number(size.mean), faster])
    heads = ("density", "M elements/s", "bytes of dense", "speed-up at 1 Gbit/s")
    return ReportTable("lossless-speed", heads, rows)


def _peel_table(gammas: Sequence[float], peeled: Sequence[dict[str, Any]]) -> ReportTable:
    rows = []
    for place, gamma in enumerate(gammas):
        left = [each["left"][place] for each in peeled]
        whole = sum(each == 0 for each in left)
        rows.append([f"{gamma:g}", f"{whole} of {len(left)}", format_number(float(np.mean(left)))])
    heads = ("cells per element", "sketches that peel", "share left")
    return ReportTable("lossless-peeling", heads, rows)


def count_unpeeled(
    kernels: SketchKernels, members: NDArray[np.uint32], gamma: float, *, block_elements: int = 1024, key: int = 0
) -> int:
    """Return the number of members that do not peel in one sketch of gamma cells per member.

    `members` are ascending places, at most 2^24 of them. Below about 1.22 cells per member most of the members of a
    sketch of fixed size stay. `make_plan` finds that out in time.
    """
    layout = SketchLayout.with_blocks(max(1, ceil(gamma * members.size / 3)), block_elements, key)
    return members.size - kernels.peel(members, layout, np.empty(members.size, np.uint32))


def unpeeled_share(members: int, gamma: float, density: float, rng: np.random.Generator) -> float:
    """Sketch members at random places of a vector. Return the share that does not peel in gamma cells each."""
    places = _places(members, density, rng)
    left = count_unpeeled(SketchKernels(), places, gamma, key=int(rng.integers(1 << 62)))
    return left / members


def peeling_threshold(members: int, density: float, rng: np.random.Generator, step: float = 0.005) -> float:
    """Return the least gamma, a multiple of `step` up to 1.6, at which a sketch of so many members peels, by bisection.

    density: share of the vector's elements that are members.
    """
    places, kernels, key = _places(members, density, rng), SketchKernels(), int(rng.integers(1 << 62))
    # Fewer cells than elements never peel, and 1.6 is far above THRESHOLD: the answer is in between.
    low, high = round(1.0 / step), round(1.6 / step)
    while high - low > 1:
        middle = (low + high) // 2
        left = count_unpeeled(kernels, places, middle * step, key=key)
        low, high = (low, middle) if left == 0 else (middle, high)
    return high * step


def _places(members: int, density: float, rng: np.random.Generator) -> NDArray[np.uint32]:
    found = rng.choice(ceil(members / density), members, replace=False)
    return np.sort(found).astype(np.uint32)


BATCH: Final = 32
_STEPS: Final = 5
"""Timed steps, of which the median counts."""


def measure_iterations(settings: Settings, repeats: int) -> dict[str, Any] | None:
    """Time training steps of model `cnn` in one thread, one per repeat. Return None without torch or scikit-learn."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return None
    import torch

    threads = torch.get_num_threads()
    # One thread, as the codec is measured.
    torch.set_num_threads(1)
    try:
        steps = [_make_step(settings, repeat) for repeat in range(repeats)]
        compute_s = [_seconds_of(step) for step, _ in steps]
    finally:
        torch.set_num_threads(threads)
    return {"batch": BATCH, "parameters": steps[0][1], "compute_s": compute_s}


def _make_step(settings: Settings, repeat: int) -> tuple[Callable[[], None], int]:
    """Make a function that takes a training step. Return it with the number of parameters."""
    from hopsum_evaluation.training.accuracy_models import load_learning, loss

    learning = load_learning("cnn")
    network = learning.make_network(settings.derive_seed("data", "iteration", repeat) % (1 << 31))
    optimiser, rng = learning.make_optimiser(network), settings.rng("batch", "iteration", repeat)

    def step() -> None:
        optimiser.zero_grad()
        loss(network, learning.draw(rng, BATCH)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step, sum(each.numel() for each in network.parameters())


def _seconds_of(step: Callable[[], None]) -> float:
    """Return the median seconds of some steps after the first."""
    # Not timed: the first step allocates momentum and compiles what torch compiles.
    step()
    took = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return median(took)


def iteration_speedup(
    compute_s: float, parameters: int, elements_per_s: float, bytes_of_dense: float, link_bits_per_s: float
) -> float:
    """Return the time of a step with a dense float32 gradient over that with codec and bytes. Nothing overlaps.

    bytes_of_dense: bytes that the codec sends, as a share of those of the dense gradient.
    """
    dense_s = 32 * parameters / link_bits_per_s
    return (compute_s + dense_s) / (compute_s + parameters / elements_per_s + dense_s * bytes_of_dense)
