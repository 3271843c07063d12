# SPDX-License-Identifier: Apache-2.0
"""A plain process of `hosts://?min_workers=2`, for a test that kills hosts and starts them again: WAY CODEC STOP_FILE.

Each line that it prints is one all-reduce or synchronisation: time, step, workers in it, SHA-256 of the parameters.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import torch

import hopsum
from hopsum.torch import DiLoCo, StateDictRecovery

TORCH_SEED, ELEMENTS, EVERY = 5, 40_000, 3


class Training:
    """A parameter that is trained towards a rank's own values, by means of gradients or by DiLoCo."""

    def __init__(self, comm: hopsum.communicator.Communicator, way: str, stop: Path) -> None:
        self.comm, self.stop = comm, stop
        torch.manual_seed(TORCH_SEED)
        self.model = torch.nn.Linear(ELEMENTS // 100, 100, bias=False)
        self.aim = torch.randn(self.model.weight.shape) + comm.rank
        self.step, self.last = 0, False
        self.diloco = DiLoCo(self.model, comm, sync_every=EVERY) if way == "diloco" else None
        load = self.load if self.diloco is None else self.diloco.load_shared_state_dict
        save = self.save if self.diloco is None else self.diloco.shared_state_dict
        self.recovery = StateDictRecovery(comm, load_state_dict=load, state_dict=save)  # type: ignore[arg-type]
        print("newcomer" if comm.is_newcomer else "begins", flush=True)

    def load(self, state: dict[str, torch.Tensor]) -> None:
        self.model.weight.data.copy_(state["weight"])
        self.step = int(state["step"])

    def save(self) -> dict[str, torch.Tensor]:
        return {"weight": self.model.weight.data, "step": torch.tensor(self.step)}

    def run(self) -> None:
        while not self.last:
            with self.recovery:
                # The end is agreed on by all: whose file is there adds to the sum.
                # The end is agreed on by all: whoever sees the file adds it to the sum.
                told = self.comm.allreduce(np.float32([self.stop.exists()]))
                self.train()
                self.step += 1
                self.last = bool(told.mean[0] > 0.01)
                workers = int(told.contributors[0]).bit_count()
                digest = hashlib.sha256(self.model.weight.detach().numpy().tobytes()).hexdigest()[:16]
                print(time.time(), self.step, workers, digest, flush=True)

    def train(self) -> None:
        gradient = self.model.weight.detach() - self.aim
        if self.diloco is None:
            self.model.weight.data -= 0.1 * hopsum.allreduce(gradient, self.comm, name="weight")
            return
        for _ in range(EVERY):
            self.model.weight.data -= 0.05 * (self.model.weight.detach() - self.aim)
            self.diloco.step()


if __name__ == "__main__":
    with hopsum.connect("hosts://?min_workers=2", codec=sys.argv[2], lease_s=10.0) as comm:
        Training(comm, sys.argv[1], Path(sys.argv[3])).run()
    print("end", flush=True)
