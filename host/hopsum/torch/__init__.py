# SPDX-License-Identifier: Apache-2.0
"""hopsum in a torch training script: one line after `DistributedDataParallel`.

    state = wrap(ddp, agent)

`wrap` registers `hook` with a `State`. The state holds the error feedback of each parameter and goes into the
checkpoint; the hook hands the gradient buckets to the agent. The agent's thread encodes and decodes: give each worker
one core for it, and torch the rest (`torch.set_num_threads`), since both together on the same cores make each other
wait.

Importing this module also makes the process-group backend "hopsum" known to torch; see `hopsum.torch.group`.
"""

from __future__ import annotations

from hopsum.torch.group import GroupOptions, register
from hopsum.torch.hook import hook
from hopsum.torch.state import State
from hopsum.torch.wrap import wrap

__all__ = ["GroupOptions", "State", "hook", "wrap"]

register()
