# SPDX-License-Identifier: Apache-2.0
"""Two-shot all-reduces of quantised gradients, as a DDP communication hook over gloo: schemes to compare with.

All-to-all, sum, all-gather: see `hopsum_evaluation.baselines.two_shot`. What a worker's own rounding leaves stays in
the residual of its parameter. What the rounding of a mean leaves stays with the worker that rounds it. One thread
takes the buckets in the order in which DDP gives them, the same on all ranks, beside the backward pass.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation

from hopsum_evaluation.baselines.two_shot import BLOCK, dequantise, padded, quantise


class TwoShotExchange:
    """A process group and a thread of its own, which all ranks make at the same point."""

    def __init__(self, bits: int, workers: int) -> None:
        """Make the group of all `workers`. `bits` of a code are 4 or 8."""
        self.bits, self.workers = bits, workers
        self._group = dist.new_group(backend="gloo")
        self.thread = ThreadPoolExecutor(1, "two-shot")

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown()

    def mean(
        self, x: NDArray[np.float32], left: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean over the ranks and what this rank delivered, float32[n], the first equal on all ranks.

        Args:
            x: float32[n], n the same on all ranks.
            left: float32[part_elements(n)], what the rounding of means left here so far, changed in place.
        """
        blocks = quantise(padded(x, self.workers), self.bits)
        sent = torch.from_numpy(blocks.reshape(self.workers, -1, blocks.shape[1]))  # a part for each rank
        got, found = torch.empty_like(sent), torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=self._group)
        total = left.copy()
        for part in got.numpy():  # one rank adds a part for all, so all end with the same bytes
            total += dequantise(part, self.bits) / np.float32(self.workers)
        mine = quantise(total, self.bits)
        np.subtract(total, dequantise(mine, self.bits), out=left)
        dist.all_gather(list(found), torch.from_numpy(mine), group=self._group)
        mean = dequantise(found.numpy().reshape(blocks.shape), self.bits)
        return mean[: x.size], dequantise(blocks, self.bits)[: x.size]


def part_elements(elements: int, workers: int) -> int:
    """Return the elements of the part that a rank adds up."""
    return -(-elements // (BLOCK * workers)) * BLOCK


class TwoShotState:
    """The state of the hook in one training."""

    def __init__(self, exchange: TwoShotExchange) -> None:
        """Begin without residuals."""
        self.exchange = exchange
        self._residuals: dict[torch.Tensor, torch.Tensor] = {}
        """The residuals by parameter, float32[elements]."""
        self._left: dict[tuple[int, int], NDArray[np.float32]] = {}
        """The rest by number and elements of a bucket: DDP changes its buckets once, behind the first step."""

    def reduce(self, bucket: GradBucket) -> torch.Tensor:
        """Replace the bucket's gradients by their mean, and return them."""
        vector, parameters = bucket.buffer(), bucket.parameters()
        sizes = [each.numel() for each in parameters]
        for each, gradient in zip(parameters, torch.split(vector, sizes), strict=True):
            if each in self._residuals:
                gradient += self._residuals[each]
        size = vector.numel()
        empty = np.zeros(part_elements(size, self.exchange.workers), np.float32)
        left = self._left.setdefault((bucket.index(), size), empty)
        mean, delivered = self.exchange.mean(vector.numpy(), left)
        rest = vector - torch.from_numpy(delivered)
        self._residuals.update(zip(parameters, torch.split(rest, sizes), strict=True))
        return vector.copy_(torch.from_numpy(mean))


def two_shot_hook(state: TwoShotState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket: `ddp.register_comm_hook(TwoShotState(exchange), two_shot_hook)`."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def work() -> None:
        try:
            done.set_result(state.reduce(bucket))
        except BaseException as error:
            done.set_exception(error)  # type: ignore[arg-type]  # torch's annotation has the value's type here

    state.exchange.thread.submit(work)
    return done
