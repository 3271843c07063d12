# SPDX-License-Identifier: Apache-2.0
"""A hook over gloo that the trainings compare hopsum with: bf16.

No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.
"""

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, by torch's own documentation
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def bf16_hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in bfloat16, by torch's own hook."""
    # Under another name: DDP refuses torch's by its name where there is no NCCL, and gloo adds bfloat16 as well.
    return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]  # None: of all ranks, as torch says
