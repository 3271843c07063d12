# SPDX-License-Identifier: Apache-2.0
"""Train with agents that leave and come: elastic torchrun starts all ranks again, and each round goes on from a file.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or a host that comes later waits in vain, with torch 2.13
    torchrun --nnodes=1:4 --nproc-per-node=1 --max-restarts=9 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
        --rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5 \\
        examples/elastic_digits.py --checkpoint SHARED/FILE

Run it on each host, on HOST first. The ranks of a round meet by hosts://, for as many as there are then. The error
feedback of the ranks before is shared out among them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_digits import draw_digits, figures, main, make_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Communicator
from hopsum.torch import HopsumState, register_comm_hook


def save(file: Path, ddp: nn.Module, optimizer: torch.optim.Optimizer, state: HopsumState, losses: list[float]) -> None:
    """Write one file for all ranks. All ranks call this after the same step."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state.state_dict())
    if dist.get_rank() == 0:
        saved = {"model": ddp.state_dict(), "optimizer": optimizer.state_dict(), "hopsum": states, "losses": losses}
        # Whole or not at all: this process may be killed while it writes.
        torch.save(saved, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)


def train(options: argparse.Namespace, comm: Communicator) -> dict[str, object]:
    """Go on from the checkpoint, if there is one, until `options.steps` steps are done."""
    ddp = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    state = register_comm_hook(ddp, comm, log_every=options.log_every)
    losses: list[float] = []
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        ddp.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["hopsum"])
        losses = saved["losses"]
    if comm.rank == 0:
        print(f"{comm.workers} ranks from step {len(losses)}, loss {losses[-1:]}", flush=True)
    while len(losses) < options.steps:
        # By step and rank: a round that goes on draws new images.
        generator = torch.Generator().manual_seed(1000 * len(losses) + comm.rank)
        images, digits = draw_digits(options.batch, generator)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images), digits)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % options.save_every == 0:
            save(options.checkpoint, ddp, optimizer, state, losses)
    return {**figures(ddp, losses), "workers": comm.workers, "losses": losses}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what only this example has."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="file that all hosts see")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default %(default)s)")


if __name__ == "__main__":
    main(train, __doc__, add_options)
