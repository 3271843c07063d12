# SPDX-License-Identifier: Apache-2.0
"""A replica of test_quorum.py under torchft: `torchft_worker.py REPLICA LIGHTHOUSE`; prints JSON.

Three replicas train by torchft's DistributedDataParallel and OptimizerWrapper; replica 2 dies after some steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer

from hopsum.torch import QuorumProcessGroup
from hopsum_topologies.free_port import free_port

STEPS, DIES_AFTER = 12, 5


def main() -> None:
    replica, lighthouse = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    port = free_port(socket.SOCK_STREAM)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    group = QuorumProcessGroup(backend="numpy", min_elements=64)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])

    patient = timedelta(seconds=120)
    manager = Manager(
        pg=group, load_state_dict=load, state_dict=lambda: {"model": model.state_dict()}, min_replica_size=2,
        replica_id=f"replica{replica}", rank=0, world_size=1, store_addr="127.0.0.1", store_port=port,
        lighthouse_addr=lighthouse, hostname="127.0.0.1", init_sync=False, use_async_quorum=False,
        timeout=patient, quorum_timeout=patient, connect_timeout=patient,
    )  # fmt: skip
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=4.0))
    found: dict[str, Any] = {"participants": [], "losses": [], "allreduces": 0}
    while manager.current_step() < STEPS:
        step = manager.current_step()
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(100 * step + replica))
        optimizer.zero_grad()
        loss = (ddp(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        found["participants"].append(manager.num_participants())
        found["losses"].append(loss.item())
        if group.communicator is not None:
            found["allreduces"] = group.communicator.statistics.allreduces
        if replica == 2 and step >= DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
    found["digest"] = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
    print(json.dumps(found), flush=True)
    manager.shutdown(wait=False)
    group.shutdown()
    del store


if __name__ == "__main__":
    main()
