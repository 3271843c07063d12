# SPDX-License-Identifier: Apache-2.0
"""The model of "Homomorphic Parameter Compression for Distributed Deep Learning Training" (arXiv 1711.10123).

M workers compute i minibatches each, a minibatch of B / M taking C / M. Then all M send their parameters, W bytes,
one after the other through a network of rate chi. One set of that is one update.

    T_cmt = i C h / M         h: operation overhead, how much longer computing takes on compressed parameters
    T_inf = rho W M / chi     rho: size of compressed parameters over that of W
    T_cmt + T_inf <= i C r / M   if and only if   h <= r - rho M^2 W / (i C chi)

The publication writes the last line for i = 1 (its C is then that of the whole set). It counts one direction and no
latency: what returns from the server is not in T_inf. It leaves the sum of a repeated compression to figures. Here
(`RepeatedCompression`) the worker compresses, the server decompresses what M workers sent, one after the other, and
compresses the result, and the worker decompresses that: the steps of its section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple

from hopsum_base.units import format_time
from hopsum_evaluation.plan.traffic import PlanError


@dataclass(frozen=True, slots=True)
class SynchronousSgd:
    """One job of the model.

    Raises:
        PlanError: a value that is not positive and finite.
    """

    weights_bytes: float
    """W: size of all parameters"""
    minibatch_s: float
    """C: seconds of a minibatch on the single node"""
    iterations: float
    """i: minibatches between two updates"""
    bytes_per_s: float
    """chi: rate of the network"""

    def __post_init__(self) -> None:
        for name in ("weights_bytes", "minibatch_s", "iterations", "bytes_per_s"):
            value = getattr(self, name)
            # Every formula divides by these values, or takes their root.
            if not isfinite(value) or value <= 0:
                raise PlanError(f"{name}: {value:g}, where more than 0 is possible")

    @property
    def single_node_s(self) -> float:
        """Seconds of a single node for the minibatches of one update, i C. It sends nothing."""
        return self.iterations * self.minibatch_s

    def compute_s(self, workers: float, overhead: float = 1.0) -> float:
        """Return T_cmt, the seconds that M workers compute for an update. `overhead` is h: 1 is none."""
        return self.single_node_s / workers * overhead

    def transfer_s(self, workers: float, ratio: float = 1.0) -> float:
        """Return T_inf, the seconds of transfers in an update. `ratio` is rho, compressed over whole size."""
        return self.weights_bytes * workers / self.bytes_per_s * ratio

    def update_s(self, workers: float, ratio: float = 1.0, overhead: float = 1.0) -> float:
        """Return T_update, the seconds of an update, T_cmt + T_inf. Compression itself takes no time here."""
        return self.compute_s(workers, overhead) + self.transfer_s(workers, ratio)

    def speedup(self, workers: float, ratio: float = 1.0, overhead: float = 1.0) -> float:
        """Return the speed-up: the single node's time over that of an update."""
        return self.single_node_s / self.update_s(workers, ratio, overhead)

    def overhead_bound(self, workers: float, ratio: float, slack: float) -> float:
        """Return the largest overhead h with which an update takes at most `slack` (r) times i C / M.

        A result below 0: no update is as short as that.
        """
        return slack - ratio * workers**2 * self.weights_bytes / (self.single_node_s * self.bytes_per_s)

    def crossing_workers(self, ratio: float = 1.0) -> float:
        """Return the number of workers at which T_inf is as long as T_cmt. An update is shortest at that number."""
        # T_cmt falls as 1 / M and T_inf rises as M: they meet at the root.
        return float((self.single_node_s * self.bytes_per_s / (ratio * self.weights_bytes)) ** 0.5)

    def overtaking_workers(self, ratio: float = 1.0) -> float:
        """Return the number of workers at which T_inf is as long as the single node's computing: more are slower."""
        return self.single_node_s * self.bytes_per_s / (ratio * self.weights_bytes)


class RepeatedCompression(NamedTuple):
    """A compression whose results cannot be added: every update compresses and decompresses all of W."""

    ratio: float
    """Compressed size over size, below 1: the inverse of what is published."""
    compress_s: float
    decompress_s: float

    def codec_s(self, workers: float) -> float:
        """Return the seconds that compression and decompression add to an update of M workers."""
        # Workers compress at the same time, the server decompresses one vector after the other: it cannot add before.
        return 2 * self.compress_s + (workers + 1) * self.decompress_s

    def update_s(self, job: SynchronousSgd, workers: float) -> float:
        """Return T_update of M workers with this compression, in seconds."""
        return job.update_s(workers, self.ratio) + self.codec_s(workers)


ALEXNET_BYTES: Final = 233e6
ALEXNET_ITERATIONS: Final = 200
GIGABIT_ETHERNET_BYTES_PER_S: Final = 125e6
PUBLISHED_WORKERS: Final = 25
PUBLISHED_RATIOS: Final = (0.2, 0.5)
PUBLISHED_GZIP: Final = RepeatedCompression(1 / 1.079, 8.079, 1.898)
"""Table 1, AlexNet's parameters."""
PUBLISHED_TABLE: Final = (
    ("AlexNet Caffemodel", 233e6, 1.079, 8.079, 1.898),
    ("ILSVR2012 Train Data", 240e9, 1.269, 10532.177, 3886.498),
    ("CIFAR-100 Train Data", 147e6, 1.097, 660.876, 2.242),
)
"""Table 1 as printed: bytes, compression ratio, seconds to compress and to decompress."""
SHOWN_WORKERS: Final = 16
"""M of the publication's figures 6 (b) and (c)."""


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A statement of the publication, the figure of the model for it, and the verdict."""

    claim: str
    published: str
    ours: str
    condition: str
    """The condition on C, which is not published."""
    reproduced: bool


def claims(job: SynchronousSgd) -> list[PaperClaim]:
    """Return the statements in the text of the publication's section 4, each with the model's verdict for this job."""
    most = PUBLISHED_WORKERS
    rate = job.weights_bytes / (job.iterations * job.bytes_per_s)
    crossing, overtaking = job.crossing_workers(), job.overtaking_workers()
    low, high = PUBLISHED_RATIOS
    grid = range(2, most + 1)
    ordered = all(m > job.speedup(m, low) > job.speedup(m, high) > job.speedup(m) for m in grid)
    codec_s, single = PUBLISHED_GZIP.codec_s(most), job.single_node_s
    return [
        PaperClaim("transfer takes more time than computing from some M on", f"M up to {most}", f"M > {crossing:.3g}",
              f"C < {format_time(most**2 * rate)}", crossing < most),
        PaperClaim("transfer takes more time than the single node's computing", f"M up to {most}",
              f"M > {overtaking:.3g}", f"C < {format_time(most * rate)}", overtaking < most),
        PaperClaim("gzip makes transfer shorter", "233 MB / 1.079", f"{PUBLISHED_GZIP.ratio - 1:+.1%} of T_inf",
              "any C", PUBLISHED_GZIP.ratio < 1),
        PaperClaim("compressing and decompressing exceed the original training time", "8.079 s, 1.898 s",
              f"{codec_s:.1f} s at M = {most}, one node {single:.3g} s",
              f"C < {format_time(codec_s / job.iterations)}", codec_s > single),
        PaperClaim("speed-up: ideal > rho = 0.2 > rho = 0.5 > vanilla", f"M up to {most}",
              f"at M = {most}: {most} > " + " > ".join(f"{job.speedup(most, rho):.3g}" for rho in (low, high, 1.0)),
              "any C", ordered),
    ]  # fmt: skip
