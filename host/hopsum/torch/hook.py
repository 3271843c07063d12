# SPDX-License-Identifier: Apache-2.0
"""The DDP communication hook.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
"""

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation

from hopsum.torch.state import State


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over the workers that are in the sum: `ddp.register_comm_hook(state, hook)`.

    The future's value is the bucket's buffer with the mean in it, in its own type. The buckets of one backward pass
    are done together, after the last one: if some rank's gradients are not finite in any of them, all of them fail or
    are NaN on all ranks, as `State.on_nonfinite` says. Whatever fails reaches the future: `backward` raises
    RuntimeError with the text, `state.failure` has the exception.
    """
    buffer = bucket.buffer()
    arrived: torch.futures.Future[None] = torch.futures.Future(devices=[] if buffer.is_cpu else [buffer.device])
    submitted = state.submit(bucket)

    def write(_: torch.futures.Future[None]) -> torch.Tensor:
        """Put the mean into the buffer. What this raises, and nothing else, fails the future for DDP as well."""
        return state.write(submitted)

    written = arrived.then(write)
    submitted.step.over.add_done_callback(lambda _: arrived.set_result(None))
    return written
