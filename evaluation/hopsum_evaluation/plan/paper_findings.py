# SPDX-License-Identifier: Apache-2.0
"""The findings of the publication: its claims, the results of its model, and the place of our codecs in that model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from hopsum.plan import Costs, Repeated, SynchronousSgd, summed_traffic
from hopsum.plan.paper import PUBLISHED_GZIP, PUBLISHED_RATIOS, PUBLISHED_WORKERS
from hopsum.plan.step import codec_cpu_s
from hopsum_evaluation.plan.forecast import codec_of
from hopsum_evaluation.plan.gzip_cost import GzipCost
from hopsum_evaluation.plan.units import said_time

SHOWN_WORKERS: Final = 16
SHOWN_CODECS: Final = ("thc", "uhc", "fixed", "lossless")
"""The codecs of the publication's figures 6 (b) and (c)."""
_FLOAT_BYTES: Final = 4
_VECTORS: Final = 8
_DENSITY: Final = 0.05


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A line of the publication beside what the model gives."""

    claim: str
    published: str
    ours: str
    condition: str
    """The condition on C, which is not published."""
    reproduced: bool


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One of our codecs in the model, at SHOWN_WORKERS."""

    codec: str
    ratio_up: float
    ratio_down: float
    ratio: float
    """rho: the larger of both, since a link carries both ways at once."""
    overhead: float
    """h: computing, encoding and decoding over computing alone."""
    least_slack: float
    """The least r with h <= r - rho M^2 W / (i C chi)."""
    speedup: float
    """M / r"""
    switch_speedup: float
    """The speed-up where a switch sums: T_inf = rho W / chi, whatever M is. Not the publication's."""


def claims(job: SynchronousSgd) -> list[PaperClaim]:
    """Return every line of section 4 that the printed text makes a statement of."""
    most = PUBLISHED_WORKERS
    rate = job.weights_bytes / (job.iterations * job.bytes_per_s)
    crossing, overtaking = job.crossing_workers(), job.overtaking_workers()
    low, high = PUBLISHED_RATIOS
    grid = range(2, most + 1)
    ordered = all(m > job.speedup(m, low) > job.speedup(m, high) > job.speedup(m) for m in grid)
    codec_s, single = PUBLISHED_GZIP.codec_s(most), job.single_node_s
    return [
        PaperClaim("transfer takes more time than computing from some M on", f"M up to {most}", f"M > {crossing:.3g}",
              f"C < {said_time(most**2 * rate)}", crossing < most),
        PaperClaim("transfer takes more time than the single node's computing", f"M up to {most}",
              f"M > {overtaking:.3g}", f"C < {said_time(most * rate)}", overtaking < most),
        PaperClaim("gzip makes transfer shorter", "233 MB / 1.079", f"{PUBLISHED_GZIP.ratio - 1:+.1%} of T_inf",
              "any C", PUBLISHED_GZIP.ratio < 1),
        PaperClaim("compressing and decompressing exceed the original training time", "8.079 s, 1.898 s",
              f"{codec_s:.1f} s at M = {most}, one node {single:.3g} s",
              f"C < {said_time(codec_s / job.iterations)}", codec_s > single),
        PaperClaim("speed-up: ideal > rho = 0.2 > rho = 0.5 > vanilla", f"M up to {most}",
              f"at M = {most}: {most} > " + " > ".join(f"{job.speedup(most, rho):.3g}" for rho in (low, high, 1.0)),
              "any C", ordered),
    ]  # fmt: skip


def calibrated(job: SynchronousSgd, costs: Costs) -> list[Calibrated]:
    """Return rho and h of our codecs, from their sizes and the costs."""
    return [_calibrate(job, costs, name) for name in SHOWN_CODECS]


def _calibrate(job: SynchronousSgd, costs: Costs, name: str) -> Calibrated:
    workers = SHOWN_WORKERS
    elements = int(job.weights_bytes) // _FLOAT_BYTES
    traffic = summed_traffic(codec_of(name, workers), elements, _VECTORS, _DENSITY)
    union = 1 - (1 - _DENSITY) ** workers
    up, down = traffic.up_bytes / job.weights_bytes, traffic.down_bytes / job.weights_bytes
    ratio = max(up, down)
    overhead = 1 + codec_cpu_s(costs, codec_of(name, workers), elements, union) / job.compute_s(workers)
    slack = job.least_slack(workers, ratio, overhead)
    switch_s = job.compute_s(workers, overhead) + job.transfer_s(1, ratio)
    return Calibrated(
        name, up, down, ratio, overhead, slack, workers / slack, job.single_node_s / switch_s,
    )  # fmt: skip


def as_json(job: SynchronousSgd, costs: Costs, own: GzipCost, plots: list[str]) -> dict[str, Any]:
    """Return what --json prints: curves up to twice the published cluster, claims, our codecs, gzip."""
    workers = list(range(1, 2 * PUBLISHED_WORKERS + 1))
    ours = own.of(job.weights_bytes)
    return {
        "job": asdict(job),
        "workers": workers,
        "compute_s": [job.compute_s(m) for m in workers],
        "transfer_s": {_rho(rho): [job.transfer_s(m, rho) for m in workers] for rho in (1.0, *PUBLISHED_RATIOS)},
        "speedup": {_rho(rho): [job.speedup(m, rho) for m in workers] for rho in (1.0, *PUBLISHED_RATIOS)},
        "gzip_published": PUBLISHED_GZIP._asdict() | {"update_s": _updates(job, PUBLISHED_GZIP, workers)},
        "gzip_measured": own._asdict() | {"scaled": ours._asdict(), "update_s": _updates(job, ours, workers)},
        "claims": [asdict(claim) for claim in claims(job)],
        "codecs": [asdict(codec) for codec in calibrated(job, costs)],
        "codecs_workers": SHOWN_WORKERS,
        "costs": costs.as_json(),
        "plots": plots,
    }


def _updates(job: SynchronousSgd, gzip: Repeated, workers: list[int]) -> list[float]:
    return [gzip.update_s(job, m) for m in workers]


def _rho(ratio: float) -> str:
    return f"{ratio:g}"
