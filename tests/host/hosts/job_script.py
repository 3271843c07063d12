# SPDX-License-Identifier: Apache-2.0
"""A training on hosts that tests disturb from outside: FOLDER WAY, as one rank.

WAY is `plain` for DDP alone, `raise` or `fall_back` for DDP with hopsum's hook, and `allreduce` or `diloco` for
`hosts://?min_workers=2`. Each line that it prints is a word, a time and a text. `FOLDER/goal` has the number of DDP's
steps; the other ways end when it is there. SIGUSR1 is an exception of the training loop.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.agent import Communicator
from hopsum.config import OnSwitchLost
from hopsum.torch import DiLoCo, StateDictRecovery, register_comm_hook

EVERY = 3


def say(word: str, text: object = "") -> None:
    """Print a line. Its time can be compared with other processes' of this machine."""
    print(word, f"{time.monotonic():.3f}", str(text).replace("\n", " "), flush=True)


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(next(model.parameters()).detach().numpy().tobytes()).hexdigest()


def fail(*_: object) -> None:
    raise ValueError("a bad batch")


def children() -> list[int]:
    """Return the processes that this one has started, also by threads that have none of torch's names."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def train(goal: Path, way: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(256, 256))
    say("connect", way)
    if way != "plain":
        # Steps by torch's process group, as in a trial of methods, fail as plain DDP does.
        lost: OnSwitchLost = "fall_back" if way == "fall_back" else "raise"
        state = register_comm_hook(ddp, on_switch_lost=lost, method="hopsum")
        shards = [str(shard.worker(rank).send_to) for shard in state.communicator.membership.shards]
        say("job", json.dumps({"shards": shards, "children": children(), "pid": os.getpid()}))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator, step = torch.Generator().manual_seed(rank), 0
    # All ranks end after the same step: the goal is written many steps before.
    while not goal.exists() or step < int(goal.read_text()):
        x = torch.randn(32, 256, generator=generator)
        optimizer.zero_grad()
        ((ddp(x) - x) ** 2).mean().backward()
        optimizer.step()
        step += 1
        say(f"step {step}", digest(ddp))
        time.sleep(0.1)


class Elastic:
    """A parameter that is trained towards a rank's own values, by means of gradients or by DiLoCo."""

    def __init__(self, comm: Communicator, way: str) -> None:
        self.comm, self.step = comm, 0
        torch.manual_seed(5)
        self.model = torch.nn.Linear(400, 100, bias=False)
        self.aim = torch.randn(self.model.weight.shape) + comm.rank
        self.diloco = DiLoCo(self.model, comm, sync_every=EVERY) if way == "diloco" else None
        load = self.load if self.diloco is None else self.diloco.load_shared_state_dict
        save = self.save if self.diloco is None else self.diloco.shared_state_dict
        self.recovery = StateDictRecovery(comm, load_state_dict=load, state_dict=save)  # type: ignore[arg-type]

    def load(self, state: dict[str, torch.Tensor]) -> None:
        self.model.weight.data.copy_(state["weight"])
        self.step = int(state["step"])

    def save(self) -> dict[str, torch.Tensor]:
        return {"weight": self.model.weight.data, "step": torch.tensor(self.step)}

    def run(self, goal: Path) -> None:
        last = False
        while not last:
            with self.recovery:
                # The end is agreed on by all: each rank that sees the file adds it to the sum.
                told = self.comm.allreduce(np.float32([goal.exists()]))
                self.train()
                self.step += 1
                last = bool(told.mean[0] > 0.01)
                say(f"step {self.step}", f"{int(told.contributors[0]).bit_count()} {digest(self.model)}")
                time.sleep(0.02)

    def train(self) -> None:
        gradient = self.model.weight.detach() - self.aim
        if self.diloco is None:
            self.model.weight.data -= 0.1 * hopsum.allreduce(gradient, self.comm, name="weight")
            return
        for _ in range(EVERY):
            self.model.weight.data -= 0.05 * (self.model.weight.detach() - self.aim)
            self.diloco.step()


def main(goal: Path, way: str) -> None:
    if way not in ("allreduce", "diloco"):
        train(goal, way)
        return
    with hopsum.connect("hosts://?min_workers=2", codec="thc", lease_s=10.0) as comm:
        say("newcomer" if comm.is_newcomer else "begins")
        Elastic(comm, way).run(goal)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, fail)
    # A shell that starts a program in the background lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(Path(sys.argv[1]) / "goal", sys.argv[2])
    except BaseException as error:
        say("error", f"{type(error).__name__}: {error}")
        raise
    say("end")
