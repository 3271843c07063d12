# SPDX-License-Identifier: Apache-2.0
"""Top-k with error feedback as a DDP communication hook, as systems without a switch do it: a scheme to compare with.

Every worker sends the largest elements of what it has, as indices and values, to all others. Everybody adds them up.
What was not sent stays in the residual of its parameter, since DDP may put parameters into other buckets.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
"""

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation

SHARE = 0.1


class TopKState:
    """What the hook keeps of one training."""

    def __init__(self, share: float = SHARE) -> None:
        """Begin without residuals. `share` of each bucket is sent, above 0 and up to 1."""
        self.share = share
        self.residuals: dict[torch.Tensor, torch.Tensor] = {}
        """The residuals by parameter, float32[elements]."""

    def take(self, bucket: GradBucket) -> torch.Tensor:
        """Add the residuals to the bucket's gradients, in place. Return the indices that are to be sent.

        The residuals are then what remains.
        """
        vector, parameters = bucket.buffer(), bucket.parameters()
        sizes = [each.numel() for each in parameters]
        for each, gradient in zip(parameters, torch.split(vector, sizes), strict=True):
            if each in self.residuals:
                gradient += self.residuals[each]
        chosen = largest(vector, self.share)
        rest = vector.clone()
        rest[chosen] = 0
        self.residuals.update(zip(parameters, torch.split(rest, sizes), strict=True))
        return chosen


def topk_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what the workers send of a bucket: `ddp.register_comm_hook(TopK(), topk_hook)`."""
    return exchange(bucket.buffer(), state.take(bucket))


def largest(vector: torch.Tensor, share: float = SHARE) -> torch.Tensor:
    """Return the indices of that share of elements, at least one, whose magnitude is largest: int64, no order."""
    return vector.abs().topk(max(1, round(share * vector.numel())), sorted=False).indices


def exchange(vector: torch.Tensor, chosen: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Start to send these elements to all workers. The future's value is the vector, with the mean in it.

    Args:
        vector: float32[n], below 2^31 elements. The result goes there.
        chosen: int64[k], k the same on all workers.
    """
    sent = torch.stack([chosen.to(torch.int32), vector[chosen].view(torch.int32)])  # half a message each
    found = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    arrived = dist.all_gather(found, sent, async_op=True).get_future()

    def add(_: torch.futures.Future[object]) -> torch.Tensor:
        vector.zero_()
        for indices, values in found:  # in the order of ranks, so that all ranks end with the same bits
            vector.index_add_(0, indices, values.view(torch.float32))
        return vector.div_(len(found))

    arrived_mean: torch.futures.Future[torch.Tensor] = arrived.then(add)
    return arrived_mean
