# SPDX-License-Identifier: Apache-2.0
"""Section `lossless`: the claims of LHC: speed by `hopsum bench lossless`, and what peels, by `peeling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hopsum.codec import make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.sizing import GAMMA
from hopsum_evaluation.bench.lossless import LosslessSetting
from hopsum_evaluation.bench.lossless import run as measure
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.interval import interval
from hopsum_evaluation.report.iteration import iteration_speedup, measure_iterations
from hopsum_evaluation.report.peeling import THRESHOLD, our_share_left, our_threshold, published_columns
from hopsum_evaluation.report.settings import Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure
from hopsum_evaluation.report.sparse_model import BATCH, WORKERS, measure_sparse, step_seconds

LHC: Final = "Li et al., LHC (arXiv 2402.07529)"
LINK_BITS_PER_S: Final = 1e9
CLAIMS: Final = (
    Claim(
        "throughput",
        "time of dense fp32 over lossless at 5 % density (its benchmark's), 1 Gbit/s: measured codec, then bytes",
        f"{LHC}, abstract: aggregation throughput, up to",
        Basis.PUBLISHED,
        6.33,
        Relation.AT_LEAST,
    ),
    Claim(
        "iteration",
        "time of a training step, dense fp32 over lossless at 5 % density, 1 Gbit/s: measured compute and codec, then "
        "bytes",
        f"{LHC}, abstract: per-iteration speed-up, up to",
        Basis.PUBLISHED,
        3.74,
        Relation.AT_LEAST,
    ),
    Claim(
        "sparse-model",
        "time of a training step, dense fp32 over lossless, 1 Gbit/s, of a model of word embeddings whose density is "
        "measured",
        f"{LHC}, abstract: per-iteration speed-up, up to",
        Basis.PUBLISHED,
        3.74,
        Relation.AT_LEAST,
    ),
    Claim(
        "bytes",
        "bytes sent per byte of the dense vector at 5 % density: 1.25 cells per non-zero element and a bit an element",
        f"{LHC}; bytes by its code's formula, gamma * density + 1/32",
        Basis.THEORY,
        GAMMA * 0.05 + 1 / 32,
        Relation.WITHIN,
        0.005,
    ),
    Claim(
        "threshold",
        "cells per non-zero element from which on a sketch peels",
        "threshold of random hypergraphs with three cells an edge, load 0.818",
        Basis.THEORY,
        THRESHOLD,
        Relation.WITHIN,
        0.025,
    ),
    Claim(
        "below",
        "share of elements that do not peel at 1.15 cells each: failure is catastrophic, not graceful",
        "this project's simulation of the published hash functions: 0.1 to 0.6 left",
        Basis.OWN,
        0.1,
        Relation.AT_LEAST,
    ),
    Claim(
        "above",
        "share of elements that do not peel at 1.3 cells each",
        "this project's simulation of the published hash functions, 131,072 blocks",
        Basis.OWN,
        0.0,
        Relation.AT_MOST,
    ),
)
_GAMMAS: Final = (1.15, 1.2, 1.225, 1.25, 1.3, 1.4, 1.6, 2.0)
_CLAIMED: Final = 0.05


def run(settings: Settings, tell: Tell) -> Result:
    """Measure the sparse sums of this section. Raises NotRunError where they cannot run here."""
    repeats = settings.pick(2, 5, 10)
    speed = _measure_speed(settings, repeats, tell)
    iteration = measure_iterations(settings, repeats)
    tell(0.55, "a model of word embeddings")
    sparse = measure_sparse(settings, repeats)
    members = settings.pick(1 << 13, 1 << 16, 1 << 18)
    blocks, columns = settings.pick(1 << 12, 1 << 14, 1 << 17), settings.pick(4, 16, 64)
    peeled = []
    for repeat in range(repeats):
        tell(0.6 + 0.4 * repeat / repeats, f"what peels, {members:,} members")
        rng = settings.rng("data", "peel", repeat)
        peeled.append({
            "threshold": our_threshold(members, _CLAIMED, rng),
            "left": [our_share_left(members, gamma, _CLAIMED, rng) for gamma in _GAMMAS],
            "columns": [published_columns(blocks, gamma, _CLAIMED, columns, rng) for gamma in _GAMMAS],
        })  # fmt: skip
    return {"speed": speed, "iteration": iteration, "sparse": sparse, "gammas": list(_GAMMAS), "peeled": peeled,
            "members": members, "blocks": blocks, "columns": columns}  # fmt: skip


def _measure_speed(settings: Settings, repeats: int, tell: Tell) -> list[dict[str, Any]]:
    elements = settings.pick(1 << 18, 1 << 22, 1 << 24)
    densities = settings.pick(
        (0.01, _CLAIMED), (0.001, 0.01, _CLAIMED, 0.2), (0.001, 0.005, 0.01, 0.02, _CLAIMED, 0.1, 0.2, 0.4)
    )
    codec = make_codec("lossless", workers=1, index="bitmap")
    assert isinstance(codec, Lossless)
    found = []
    for number, density in enumerate(densities):
        rows = []
        for repeat in range(repeats):
            tell(0.55 * (number + repeat / repeats) / len(densities), f"speed at density {density:g}")
            rng = settings.rng("data", "sparse", number, repeat)
            x = rng.standard_normal(elements, dtype=np.float32)
            x[rng.random(elements, dtype=np.float32) >= density] = 0
            row = measure([LosslessSetting(codec, GAMMA, 1)], x, 3, settings.stream("codec", repeat) >> 1)["settings"][
                0
            ]
            kept = ("all_elements_per_s", "bytes_of_dense", "lanes_per_nonzero", "backend")
            rows.append({key: row[key] for key in kept})
        found.append({"density": density, "elements": elements, "runs": rows})
    return found


def speedup(elements_per_s: float, bytes_of_dense: float, link_bits_per_s: float) -> float:
    """Return the time of a dense float32 vector on the link over that of codec and bytes, one after the other."""
    dense_s = 32 / link_bits_per_s
    return dense_s / (1 / elements_per_s + dense_s * bytes_of_dense)


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    speed, peeled, gammas = result["speed"], result["peeled"], result["gammas"]
    claimed = next(row for row in speed if row["density"] == _CLAIMED)
    iteration, sparse = result.get("iteration"), result.get("sparse")  # reports from before have none
    backends = ", ".join(sorted({run["backend"] for row in speed for run in row["runs"]}))
    return Shown(
        words=[
            f"Codec lossless on Gaussian vectors of {speed[0]['elements']:,} elements, one rank, one thread "
            f"({backends}), bitmap index: encode, peel and decode as `hopsum bench lossless` times them. The speed-up "
            f"is that of a link of {LINK_BITS_PER_S / 1e9:g} Gbit/s in both directions with codec and link one after "
            "the other: measured codec time, counted bytes, no network.",
            f"Peeling: {result['members']:,} members at random places of a vector of density {_CLAIMED:g}, one sketch. "
            "Published layout: all 1024 elements of a block share three rows, so every column is a hypergraph of its "
            f"own; {result['columns']} columns of {result['blocks']:,} blocks, simulated. The abstract's 6.33 is of "
            "its best case on GPUs, and names no density.",
            *_iteration_words(iteration),
            *_sparse_words(sparse),
        ],
        plots=[_speed_plot(speed), _peel_plot(gammas, peeled)],
        tables=[_speed_table(speed), *([_sparse_table(sparse)] if sparse else []), _peel_table(gammas, peeled)],
        samples={
            "throughput": _speedups(claimed),
            "iteration": _iteration_speedups(iteration, claimed) if iteration else [],
            "sparse-model": [_over_dense(each, LINK_BITS_PER_S) for each in sparse or ()],
            "bytes": [each["bytes_of_dense"] for each in claimed["runs"]],
            "threshold": [each["threshold"] for each in peeled],
            "below": [each["left"][gammas.index(1.15)] for each in peeled],
            "above": [each["left"][gammas.index(1.3)] for each in peeled],
        },
        reasons={
            "iteration": "the compute of a step was not measured: it needs torch and scikit-learn",
            "sparse-model": "no model of word embeddings was trained: it needs torch and Python's pydoc_data",
        },
    )


def _iteration_words(iteration: dict[str, Any] | None) -> list[str]:
    if not iteration:
        return []
    return [
        f"A step computes {figure(1000 * float(np.mean(iteration['compute_s'])))} ms in one thread here: the "
        f"convolutional network of {iteration['parameters']:,} parameters on digits, batches of {iteration['batch']}; "
        "its gradient, which is dense, is taken for as sparse as the vectors above. Compute, codec and link are one "
        "after the other. LHC's 3.74 is of its best case among NCF, LSTM, VGG19 and BERT-base on GPUs."
    ]


def _iteration_speedups(iteration: dict[str, Any], row: dict[str, Any]) -> list[float]:
    return [
        iteration_speedup(compute_s, iteration["parameters"], each["all_elements_per_s"], each["bytes_of_dense"],
                          LINK_BITS_PER_S)
        for compute_s, each in zip(iteration["compute_s"], row["runs"], strict=True)
    ]  # fmt: skip


def _over_dense(step: dict[str, Any], bits_per_s: float) -> float:
    dense_s, lossless_s, _ = step_seconds(step, bits_per_s)
    return dense_s / lossless_s


def _sparse_words(sparse: Sequence[dict[str, Any]] | None) -> list[str]:
    if not sparse:
        return []
    own, both = (100 * float(np.mean([each[key] for each in sparse])) for key in ("density", "density_of_sum"))
    return [
        f"A model of word embeddings (continuous bag of words, {sparse[0]['parameters']:,} parameters, {WORKERS} "
        f"workers, batches of {BATCH} words, the text of section accuracy): a worker's gradient has "
        f"{figure(own)} % of its elements not zero, the sum of the workers {figure(both)} %. Compute and codec are "
        "measured in one thread, bytes are counted, and nothing overlaps. Indices and values are gathered by all "
        "workers, without any processor time."
    ]


def _sparse_table(sparse: Sequence[dict[str, Any]]) -> ShownTable:
    rows = []
    for link in (1e8, 2e8, LINK_BITS_PER_S):
        times = [step_seconds(each, link) for each in sparse]
        gain = interval([dense_s / lossless_s for dense_s, lossless_s, _ in times])
        means = (figure(1000 * float(np.mean(each))) for each in zip(*times, strict=True))
        rows.append([f"{link / 1e6:g} Mbit/s", *means, f"{figure(gain.mean)} ± {figure(gain.high - gain.mean, 2)}"])
    heads = ("links", "dense fp32, ms", "lossless, ms", "indices and values, ms", "dense over lossless")
    return ShownTable("A step of the model of word embeddings", heads, rows)


def _speedups(row: dict[str, Any], link: float = LINK_BITS_PER_S) -> list[float]:
    return [speedup(each["all_elements_per_s"], each["bytes_of_dense"], link) for each in row["runs"]]


def _speed_plot(speed: Sequence[dict[str, Any]]) -> Plot:
    densities = [100 * row["density"] for row in speed]
    series = []
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
    columns = [float(np.mean([each["columns"][place] for each in peeled])) for place in range(len(gammas))]
    series = [
        Series("ours: sketches that peel", gammas, whole),
        Series("ours: elements left", gammas, left),
        Series("published: columns that peel", gammas, columns),
        Series(f"threshold {THRESHOLD}", [THRESHOLD, THRESHOLD], [0.0, 1.0], reference=True),
    ]
    return Plot("lossless-peel", "What peels, by size of the sketch", "cells per non-zero element", "share", series)


def _speed_table(speed: Sequence[dict[str, Any]]) -> ShownTable:
    rows = []
    for row in speed:
        rate = interval([each["all_elements_per_s"] / 1e6 for each in row["runs"]])
        gain, size = interval(_speedups(row)), interval([each["bytes_of_dense"] for each in row["runs"]])
        rows.append([f"{row['density']:.1%}", f"{figure(rate.mean)} ± {figure(rate.high - rate.mean, 2)}",
                     figure(size.mean), f"{figure(gain.mean)} ± {figure(gain.high - gain.mean, 2)}"])  # fmt: skip
    heads = ("density", "M elements/s", "bytes of dense", "speed-up at 1 Gbit/s")
    return ShownTable("Speed by density", heads, rows)


def _peel_table(gammas: Sequence[float], peeled: Sequence[dict[str, Any]]) -> ShownTable:
    rows = []
    for place, gamma in enumerate(gammas):
        left = [each["left"][place] for each in peeled]
        columns = float(np.mean([each["columns"][place] for each in peeled]))
        whole = sum(each == 0 for each in left)
        rows.append([f"{gamma:g}", f"{whole} of {len(left)}", figure(float(np.mean(left))), f"{columns:.0%}"])
    heads = ("cells per element", "ours: sketches that peel", "ours: share left", "published: columns that peel")
    return ShownTable("Peeling by size", heads, rows)
