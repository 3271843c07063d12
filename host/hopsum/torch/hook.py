# SPDX-License-Identifier: Apache-2.0
"""The DDP communication hook.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
"""

from concurrent.futures import Future

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation

from hopsum.agent import AllReduceResult
from hopsum.torch.state import State


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over the workers that are in the sum: `ddp.register_comm_hook(state, hook)`.

    The future's value is the bucket's buffer with the mean in it, in its own type. If some rank's gradients are not
    finite, all ranks fail or have NaN in it, as `State.on_nonfinite` says. Whatever fails reaches the future:
    `backward` raises RuntimeError with the text, `state.failure` has the exception.
    """
    buffer = bucket.buffer()
    arrived: torch.futures.Future[None] = torch.futures.Future(devices=[] if buffer.is_cpu else [buffer.device])
    try:
        submitted = state.submit(bucket)
    except Exception as error:
        submitted = Future()
        submitted.set_exception(error)

    def write(_: torch.futures.Future[None]) -> torch.Tensor:
        return _write(state, submitted, buffer)

    written = arrived.then(write)
    submitted.add_done_callback(lambda _: arrived.set_result(None))
    return written


def _write(state: State, submitted: "Future[AllReduceResult]", buffer: torch.Tensor) -> torch.Tensor:
    """Put the mean into the buffer. What this raises, and nothing else, fails the future for DDP as well."""
    try:
        mean = submitted.result()
    except BaseException as error:
        state.failure = state.failure or error
        raise
    return buffer.copy_(torch.from_numpy(mean.mean))
