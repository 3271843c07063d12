# SPDX-License-Identifier: Apache-2.0
"""A DDP training script, with hopsum's hook or without, that is disturbed from outside: FOLDER WAY, as one rank.

It prints a line for each step, with the time and a digest of the parameters, and a line for its end. `FOLDER/goal` has
the number of steps. SIGUSR1 is an exception of the training loop.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hopsum.torch import register_comm_hook


def say(word: str, text: object) -> None:
    """Print a line. Its time can be compared with other processes' of this machine."""
    print(word, f"{time.monotonic():.3f}", str(text).replace("\n", " "), flush=True)


def fail(*_: object) -> None:
    raise ValueError("a bad batch")


def train(folder: Path, way: str) -> None:
    goal, rank = folder / "goal", int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(256, 256))
    say("connect", way)
    if way != "plain":
        register_comm_hook(ddp, on_switch_lost="fall_back" if way == "fall_back" else "raise")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator, step = torch.Generator().manual_seed(rank), 0
    # All ranks end after the same step: the goal is written many steps before.
    while not goal.exists() or step < int(goal.read_text()):
        x = torch.randn(32, 256, generator=generator)
        optimizer.zero_grad()
        ((ddp(x) - x) ** 2).mean().backward()
        optimizer.step()
        step += 1
        say(f"step {step}", hashlib.sha256(ddp.module.weight.detach().numpy().tobytes()).hexdigest())
        time.sleep(0.1)
    say("end", step)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, fail)
    # A shell that starts a program in the background lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        train(Path(sys.argv[1]), sys.argv[2])
    except BaseException as error:
        say("error", f"{type(error).__name__}: {error}")
        raise
