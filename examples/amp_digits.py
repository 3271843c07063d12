# SPDX-License-Identifier: Apache-2.0
"""The digits in mixed precision: float16 under autocast, a GradScaler, and gradients accumulated over two batches.

    torchrun --nproc-per-node 2 examples/amp_digits.py

Three things matter to hopsum: on_nonfinite="skip" makes all ranks skip a step together when some rank's gradients
overflow, `scaler` keeps residuals in step with the loss scale, and `no_sync` keeps gradients off the network until
they are summed up. The scale starts so high that the first steps do overflow.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from ddp_digits import draw_digits, figures, make_model, parse
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.agent import Agent
from hopsum.torch import register_comm_hook

BATCHES = 2


def train(options: argparse.Namespace, agent: Agent, rank: int) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    ddp = DistributedDataParallel(make_model())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    state = register_comm_hook(ddp, agent, on_nonfinite="skip", scaler=scaler, start_iter=2)  # HOPSUM
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


def main() -> None:
    """Join the process group and the job, train, and print the figures of all ranks as JSON."""
    options = parse(__doc__)
    # The agent's thread needs a core of its own.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    with hopsum.connect(options.url, rank=rank, codec=options.codec) as agent:  # HOPSUM
        every: list[dict[str, object]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, train(options, agent, rank))
    if rank == 0:
        print(json.dumps(every, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
