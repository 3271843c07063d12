# SPDX-License-Identifier: Apache-2.0
"""DiLoCo as schemes of the trainings: `diloco` synchronises in fp32 over gloo, `diloco-hopsum` by hopsum's codec.

Both have the replicas' own steps, the outer optimiser and the schedule of `hopsum.torch.DiLoCo`. They differ in what
averages the pseudo-gradients.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hopsum.codec import make_codec
from hopsum.communicator import AllReduceResult, Communicator, SocketTraffic
from hopsum.communicator.task import Task
from hopsum.connection.collective import CollectiveCommunicator
from hopsum.torch import DiLoCo
from hopsum_evaluation.report.accuracy_plan import DiLoCoSetting

HALF_LOCAL: Final = 0.5
"""The share of local parameters that a merge keeps where steps go on beside an all-reduce (Streaming DiLoCo, 2)."""


class GlooMeans(CollectiveCommunicator):
    """One rank of gloo, which averages in fp32 by a single all-reduce. All ranks make it at the same point.

    The codec says only how many workers there are. Means are exact but for rounding, so error feedback stays empty.
    """

    def __init__(self, workers: int) -> None:
        codec = make_codec("fixed", workers=workers, backend="numpy")
        super().__init__("gloo", dist.new_group(backend="gloo"), dist.get_rank(), codec=codec, seed=0)

    def _reduce(self, task: Task) -> AllReduceResult:
        start = time.perf_counter()
        mean = task.x.copy() if task.feedback is None else task.feedback.compensate(task.x)
        tensor = torch.from_numpy(mean)
        self._run("SUM", lambda: dist.all_reduce(tensor, group=self._group))
        tensor /= self.workers
        found = mean.copy() if task.out is None else task.out
        found[:] = mean
        if task.feedback is not None:
            task.feedback.commit(mean)
        seconds = time.perf_counter() - start
        self._count(task, seconds, skipped=False)
        everybody = np.full(1, (1 << self.workers) - 1, np.uint64)
        return AllReduceResult(found, everybody, skipped=False, traffic=SocketTraffic(), seconds=seconds)


def make_diloco(network: nn.Module, comm: Communicator, setting: DiLoCoSetting) -> DiLoCo:
    """Return the synchronisation of a replica, as the setting says."""
    return DiLoCo(
        network,
        comm,
        sync_every=setting.sync_every,
        fragments=setting.fragments,
        fragment_sync_delay=setting.delay,
        fragment_update_alpha=HALF_LOCAL if setting.delay else 0.0,
    )
