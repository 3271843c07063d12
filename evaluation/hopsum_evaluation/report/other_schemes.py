# SPDX-License-Identifier: Apache-2.0
"""Schemes without a switch that the trainings compare thc with, over gloo: bf16, top-k and two-shot.

No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hopsum_evaluation.baselines.two_shot import BLOCK, dequantise, padded, quantise

SHARE = 0.1
"""Share of elements that top-k sends."""


class GlooResiduals:
    """Error feedback of a DDP hook, by parameter: DDP changes its buckets after the first step, parameters stay."""

    def __init__(self) -> None:
        self._residuals: dict[torch.Tensor, torch.Tensor] = {}
        """Sum of the parts of a parameter's gradients that were not delivered, float32[elements]."""

    def compensate(self, bucket: GradBucket) -> torch.Tensor:
        """Add the residuals to the bucket's gradients, in place. Return its buffer, float32[elements]."""
        vector, parameters = bucket.buffer(), bucket.parameters()
        sizes = [each.numel() for each in parameters]
        for each, gradient in zip(parameters, torch.split(vector, sizes), strict=True):
            if each in self._residuals:
                gradient += self._residuals[each]
        return vector

    def commit(self, bucket: GradBucket, rest: torch.Tensor) -> None:
        """Keep what was not delivered of the bucket, float32[elements]. The tensor is the residuals' from then on."""
        parameters = bucket.parameters()
        self._residuals.update(zip(parameters, torch.split(rest, [each.numel() for each in parameters]), strict=True))


def bf16_hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in bfloat16, by torch's own hook."""
    # Under another name: DDP refuses torch's by its name where there is no NCCL, and gloo adds bfloat16 as well.
    return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]  # None: of all ranks, as torch says


class TopKState:
    """State of `topk_hook` for one training: every worker sends its largest elements, all add them up.

    share: share of each bucket that is sent, above 0 and up to 1.
    """

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self._residuals = GlooResiduals()

    def take(self, bucket: GradBucket) -> torch.Tensor:
        """Add the residuals to the bucket's gradients, and keep what will not be sent. Return the indices to send."""
        vector = self._residuals.compensate(bucket)
        chosen = largest(vector, self.share)
        rest = vector.clone()
        rest[chosen] = 0
        self._residuals.commit(bucket, rest)
        return chosen


def topk_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the largest elements of a bucket: `ddp.register_comm_hook(TopKState(), topk_hook)`."""
    return exchange(bucket.buffer(), state.take(bucket))


def largest(vector: torch.Tensor, share: float = SHARE) -> torch.Tensor:
    """Find the elements of largest magnitude, at least one. Return their indices, int64, in no order."""
    return vector.abs().topk(max(1, round(share * vector.numel())), sorted=False).indices


def exchange(vector: torch.Tensor, chosen: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Gather the chosen elements of all workers, and put their mean into `vector`, which the future returns.

    Args:
        vector: float32[n], below 2^31 elements. The result goes there.
        chosen: int64[k], k the same on all workers.
    """
    # Indices and bits of values are 32 bits each, so that one all-gather carries both.
    sent = torch.stack([chosen.to(torch.int32), vector[chosen].view(torch.int32)])
    found = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    arrived = dist.all_gather(found, sent, async_op=True).get_future()

    def add(_: torch.futures.Future[object]) -> torch.Tensor:
        vector.zero_()
        # In the order of ranks, so that all ranks end with the same bits.
        for indices, values in found:
            vector.index_add_(0, indices, values.view(torch.float32))
        return vector.div_(len(found))

    arrived_mean: torch.futures.Future[torch.Tensor] = arrived.then(add)
    return arrived_mean


class TwoShotExchange:
    """Two-shot all-reduces (see `baselines.two_shot`) in a process group of their own.

    All ranks make it at the same point. One thread takes the buckets in the order in which DDP gives them, the same on
    all ranks, beside the backward pass.

    bits: bits of a code, 4 or 8.
    workers: number of ranks.
    """

    def __init__(self, bits: int, workers: int) -> None:
        self.bits, self.workers = bits, workers
        self._group = dist.new_group(backend="gloo")
        self.thread = ThreadPoolExecutor(1, "two-shot")

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown()

    def mean(
        self, x: NDArray[np.float32], left: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """All-reduce a vector. Return the mean, equal on all ranks, and this rank's delivered part, float32[n] each.

        Args:
            x: float32[n], n the same on all ranks.
            left: float32[part_elements(n)], error feedback of the means that this rank rounds. Changed in place.
        """
        blocks = quantise(padded(x, self.workers), self.bits)
        # [ranks, blocks of a part, bytes]: row r is the part that rank r adds up.
        sent = torch.from_numpy(blocks.reshape(self.workers, -1, blocks.shape[1]))
        got, found = torch.empty_like(sent), torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=self._group)
        total = left.copy()
        # One rank adds a part for all, so all end with the same bytes.
        for part in got.numpy():
            total += dequantise(part, self.bits) / np.float32(self.workers)
        mine = quantise(total, self.bits)
        np.subtract(total, dequantise(mine, self.bits), out=left)
        dist.all_gather(list(found), torch.from_numpy(mine), group=self._group)
        mean = dequantise(found.numpy().reshape(blocks.shape), self.bits)
        return mean[: x.size], dequantise(blocks, self.bits)[: x.size]


def part_elements(elements: int, workers: int) -> int:
    """Return the number of elements that each rank adds up: whole blocks."""
    return -(-elements // (BLOCK * workers)) * BLOCK


class TwoShotState:
    """State of `two_shot_hook` for one training: residuals of gradients, and of the means that this rank rounds."""

    def __init__(self, exchange: TwoShotExchange) -> None:
        self.exchange = exchange
        self._residuals = GlooResiduals()
        self._left: dict[tuple[int, int], NDArray[np.float32]] = {}
        """Residual of the rounded means, by index and elements of a bucket. DDP changes both after the first step."""

    def reduce(self, bucket: GradBucket) -> torch.Tensor:
        """Replace the bucket's gradients by their mean, and return them."""
        vector = self._residuals.compensate(bucket)
        size = vector.numel()
        empty = np.zeros(part_elements(size, self.exchange.workers), np.float32)
        left = self._left.setdefault((bucket.index(), size), empty)
        mean, delivered = self.exchange.mean(vector.numpy(), left)
        self._residuals.commit(bucket, vector - torch.from_numpy(delivered))
        return vector.copy_(torch.from_numpy(mean))


def two_shot_hook(state: TwoShotState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket: `ddp.register_comm_hook(TwoShotState(exchange), two_shot_hook)`."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def work() -> None:
        try:
            done.set_result(state.reduce(bucket))
        except BaseException as error:
            done.set_exception(error)  # type: ignore[arg-type]  # torch's annotation has the value's type here

    # Handed to the one thread of the exchange: DDP goes on with the backward pass, and collectives keep their order.
    state.exchange.thread.submit(work)
    return done
