# SPDX-License-Identifier: Apache-2.0
"""Workers that do not do what they should, for the demo to find out.

No `from __future__ import annotations`: DDP compares a hook's annotations with the types themselves.
"""

from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from hopsum_evaluation.demo import demo_worker as worker
from hopsum_evaluation.demo.demo_worker import DemoPlan
from hopsum_topologies.seat import Seat


def quiet_gloo(seat: Seat, plan: DemoPlan, pipe: Connection) -> None:
    """Average with gloo and say nothing."""

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    worker.hopsum_hook = hook  # type: ignore[assignment]
    worker.work(seat, plan, pipe)
