# SPDX-License-Identifier: Apache-2.0
"""Parameters that bypass the switch: means by torch's process group, in the gradients' own type.

They are the same numbers that DDP makes without a hook: each rank divides by the number of ranks, then all add.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.communicator import Communicator
from hopsum.torch.group import ProcessGroupHopsum


class GroupSums:
    """All-reduces of a process group, and what they took."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.workers = dist.get_world_size(group)
        self.elements = 0
        self.bytes = 0
        """The bytes of gradients. The process group decides how often they cross a wire."""
        self._group = group

    def mean(self, x: torch.Tensor) -> torch.futures.Future[Any]:
        """Begin to replace x by its mean over the ranks. The future says when it is done."""
        self.elements += x.numel()
        self.bytes += x.numel() * x.element_size()
        return self._start(x.div_(self.workers), dist.ReduceOp.SUM)

    def means(self, values: list[float]) -> list[float]:
        """Return the mean of each number over the ranks. Wait for it."""
        x = torch.tensor(values, dtype=torch.float64) / self.workers
        self._start(x, dist.ReduceOp.SUM).wait()
        return list(map(float, x))

    def any(self, flags: torch.Tensor) -> torch.futures.Future[Any]:
        """Begin to replace uint8 flags by whether any rank has one."""
        return self._start(flags, dist.ReduceOp.MAX)

    def _start(self, x: torch.Tensor, op: Any) -> torch.futures.Future[Any]:
        work = dist.all_reduce(x, op, group=self._group, async_op=True)
        assert work is not None
        future: torch.futures.Future[Any] = work.get_future()
        return future


def group_of(
    module: nn.Module, agent: Communicator, given: dist.ProcessGroup | None = None
) -> dist.ProcessGroup | None:
    """Return the process group that is given, or DistributedDataParallel's, or the default one if that fits, else None.

    Raises:
        ValueError: what is given, or DistributedDataParallel, disagrees with the agent about who takes part.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    own: dist.ProcessGroup | None = module.process_group if isinstance(module, DistributedDataParallel) else None
    group = given or own or dist.group.WORLD
    rank, workers = dist.get_rank(group), dist.get_world_size(group)
    if isinstance(group, ProcessGroupHopsum):
        raise ValueError(
            "this process group is hopsum's own, which compresses what it averages: make it with backend 'gloo' for "
            "the hook, or leave the hook out"
        )
    if (rank, workers) == (agent.rank, agent.workers):
        return group
    if not given and not own:
        return None
    raise ValueError(
        f"rank {rank} of {workers} in torch's process group, but the agent is rank {agent.rank} of {agent.workers}: "
        "make the agent with the rank of the process group, and the job for as many workers"
    )


def drops_unused(module: nn.Module) -> bool:
    """Return whether it leaves alone the gradients of parameters that no rank used, whatever their mean."""
    ddp = isinstance(module, DistributedDataParallel)
    return ddp and bool(module.find_unused_parameters or module.static_graph)


def names_of(
    parameters: Mapping[torch.Tensor, str], small_tensor_bytes: int, patterns: Collection[str]
) -> frozenset[str]:
    """Return the parameters that are not compressed: the small ones, and those with a name that fits a pattern.

    Raises:
        ValueError: a pattern that fits no name.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters.values()):
            first = ", ".join(sorted(parameters.values())[:4])
            raise ValueError(f"uncompressed={pattern!r} fits no parameter; the module has {first}, ...")
    return frozenset(
        name
        for parameter, name in parameters.items()
        if parameter.numel() * parameter.element_size() < small_tensor_bytes
        or any(fnmatchcase(name, pattern) for pattern in patterns)
    )
