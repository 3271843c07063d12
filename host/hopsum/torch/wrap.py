# SPDX-License-Identifier: Apache-2.0
"""The one line in a training script."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.communicator import Communicator
from hopsum.torch.agreement import require_same
from hopsum.torch.hook import hook
from hopsum.torch.state import State


def wrap(ddp: nn.Module, agent: Communicator, **options: Any) -> State:
    """Let an agent average the gradients of a DistributedDataParallel, and return the state for the checkpoint.

    Args:
        ddp: from here on its backward passes use the agent; it can be done once.
        agent: of this rank; stays the caller's to close.
        options: of `State`.

    Raises:
        TypeError: not a DistributedDataParallel; the message says how to make one. Or an option that State has not.
        ValueError: from State; agent and process group disagree about ranks; or another rank has other options, then
            on all ranks and with both values.
        RuntimeError: from torch: it has a communication hook already.
    """
    if not isinstance(ddp, DistributedDataParallel):
        joined = dist.is_available() and dist.is_initialized()
        first = "" if joined else "torch.distributed.init_process_group('gloo') under torchrun, then "
        raise TypeError(
            f"wrap takes what DistributedDataParallel returns, not {type(ddp).__name__}: {first}"
            "ddp = DistributedDataParallel(model); wrap(ddp, agent)"
        )
    state = State(agent, ddp, **options)
    require_same(ddp.process_group, state.facts)
    ddp.register_comm_hook(state, hook)
    return state
