# SPDX-License-Identifier: Apache-2.0
"""Hooks over gloo that the trainings compare hopsum with: bf16 and top-k.

No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.
"""

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

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
