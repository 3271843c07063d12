# SPDX-License-Identifier: Apache-2.0
"""One rank of the DDP tests, as a process: `ddp_worker.py RANK WORKERS MEMBERSHIP STORE`; prints JSON.

No `from __future__ import annotations`: DDP compares a hook's annotations with the types themselves.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent
from hopsum.codec import make_codec
from hopsum.communicator import Span
from hopsum.protocol.worker import Timing
from hopsum.torch import HopsumState, hopsum_hook

BATCH = 32


class Trainer:
    """A model under DDP with the hook, an optimizer, and batches that follow from rank and step."""

    def __init__(self, agent: Agent) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
        self.rank, self.step_number = agent.rank, 0
        # DDP starts with one bucket and rebuilds after the first step.
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
        self.state = HopsumState(agent, self.ddp)
        self.layouts: list[list[list[str]]] = []
        self.ddp.register_comm_hook(self.state, self._noting_hook())
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.2, momentum=0.9)

    def step(self) -> float:
        generator = torch.Generator().manual_seed(100 * self.step_number + self.rank)
        x = torch.randn(BATCH, 20, generator=generator)
        target = (x[:, :4] + 0.5 * x[:, 4:8]).argmax(1)
        self.layouts.append([])
        self.optimizer.zero_grad()
        loss = cross_entropy(self.ddp(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step_number += 1
        return loss.item()

    def digest(self) -> str:
        data = b"".join(parameter.detach().numpy().tobytes() for parameter in self.ddp.parameters())
        return hashlib.sha256(data).hexdigest()

    def _noting_hook(self) -> Callable[..., Any]:
        names = {parameter: name for name, parameter in self.ddp.module.named_parameters()}

        def noting(state: HopsumState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            self.layouts[-1].append([names[parameter] for parameter in bucket.parameters()])
            return hopsum_hook(state, bucket)

        return noting


def train(agent: Agent, spans: list[Span]) -> dict[str, Any]:
    """Train over a rebuild of many small buckets."""
    trainer = Trainer(agent)
    losses = [trainer.step() for _ in range(25)]
    residuals = trainer.state.state_dict()["residuals"]
    return {
        "losses": losses,
        "layouts": trainer.layouts,
        "digest": trainer.digest(),
        "residuals": {name: float(residual.norm()) for name, residual in residuals.items()},
        "residual_digest": hashlib.sha256(b"".join(each.numpy().tobytes() for each in residuals.values())).hexdigest(),
        "statistics": trainer.state.compression_stats(),
        "network": [
            (span.number, span.stage)
            for span in sorted(spans, key=lambda span: span.start_s)
            if "network" in span.stage
        ],
    }


def main() -> None:
    rank, workers, membership, store = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(workers))
    timing = Timing(retransmit_s=0.2, deadline_s=60.0)
    codec = make_codec("thc", workers=int(workers), backend="numpy")  # numba takes longer to load than all this
    spans: list[Span] = []
    with Agent(membership, int(rank), codec=codec, timing=timing, trace=spans.append) as agent:
        print(json.dumps(train(agent, spans)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
