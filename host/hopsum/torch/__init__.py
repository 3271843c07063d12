# SPDX-License-Identifier: Apache-2.0
"""hopsum in a torch training script: one line after `DistributedDataParallel`.

    state = register_comm_hook(ddp, comm)

`register_comm_hook` registers `hopsum_hook` with a `HopsumState`. The state holds the error feedback of each parameter
and goes into the checkpoint. The hook hands the gradient buckets to the communicator. The communicator's thread encodes
and decodes: give each worker one core for that thread, and torch the rest (`torch.set_num_threads`), since both
together on the same cores make each other wait.
"""

from __future__ import annotations

from hopsum.torch.checkpoint import load_checkpoint
from hopsum.torch.diloco import DiLoCo
from hopsum.torch.fsdp import ReplicaState, register_all_reduce_hook
from hopsum.torch.hook import hopsum_hook, register_comm_hook
from hopsum.torch.recovery import StateDictRecovery
from hopsum.torch.state import HopsumState

__all__ = [
    "DiLoCo", "HopsumState", "ReplicaState",
    "StateDictRecovery", "hopsum_hook", "load_checkpoint", "register_all_reduce_hook", "register_comm_hook",
]  # fmt: skip
