# SPDX-License-Identifier: Apache-2.0
"""The digits in mixed precision: float16 under autocast, a GradScaler, and gradients accumulated over two batches.

    torchrun --nproc-per-node 2 examples/amp_digits.py

Three things matter to hopsum: on_nonfinite="skip" makes all ranks skip a step together when some rank's gradients
overflow, `scaler` keeps residuals in step with the loss scale, and `no_sync` keeps gradients off the network until
they are summed up. The scale starts so high that the first steps do overflow.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
from ddp_digits import draw_digits, figures, main, make_model
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Communicator
from hopsum.torch import register_comm_hook

BATCHES = 2


def train(options: argparse.Namespace, comm: Communicator) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    generator = torch.Generator().manual_seed(1000 + comm.rank)
    ddp = DistributedDataParallel(make_model())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    state = register_comm_hook(ddp, comm, on_nonfinite="skip", scaler=scaler, start_iter=2)  # HOPSUM
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses, skipped = [], 0
    for _ in range(options.steps):
        optimizer.zero_grad()
        for batch in range(BATCHES):
            images, digits = draw_digits(options.batch, generator)
            with nullcontext() if batch == BATCHES - 1 else ddp.no_sync():
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = cross_entropy(ddp(images), digits) / BATCHES
                scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        losses.append(BATCHES * loss.item())
    return {**figures(ddp, losses), **state.compression_stats(), "steps_skipped": skipped, "scale": scaler.get_scale()}


if __name__ == "__main__":
    main(train, __doc__)
