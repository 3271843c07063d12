# SPDX-License-Identifier: Apache-2.0
"""Train a small classifier by Ray Train, gradients summed by hopsum.

    python examples/ray_digits.py --url "hopsum://HOST:PORT/JOB?token_file=PATH" --ranks 2

Ray starts the ranks on its nodes, one on each; the job is made for as many workers, and its token file is readable on
every node. Without --address a cluster of as many nodes is started on this machine. Where a rank dies Ray starts all of
them again, and they are admitted again to the same job. Everything but the lines marked HOPSUM is ordinary Ray Train.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.nn.functional import cross_entropy

EXAMPLES = Path(__file__).resolve().parent


def train(config: dict[str, Any]) -> None:
    """Train one rank; Ray calls this in a process of its own. Writes FOLDER/rankN.json."""
    sys.path.insert(0, config["examples"])
    from ddp_digits import draw_digits, figures, make_model

    import hopsum
    from hopsum.torch import register_comm_hook

    torch.set_num_threads(1)
    context = get_context()
    rank, folder = context.get_world_rank(), Path(config["folder"])
    lives = len(list(folder.glob(f"rank{rank}.life*")))
    (folder / f"rank{rank}.life{lives}").touch()
    generator = torch.Generator().manual_seed(1000 + rank)
    ddp = prepare_model(make_model())
    with hopsum.connect(config["url"], rank=rank, ip=config["ip"]) as comm:  # HOPSUM
        state = register_comm_hook(ddp, comm, uncompressed=["*.bias"])  # HOPSUM
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(config["steps"]):
            if (rank, step, lives) == (1, config["dies_at_step"], 0):
                # To show what becomes of a rank that dies.
                os._exit(1)
            images, digits = draw_digits(64, generator)
            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), digits)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        told = {**figures(ddp, losses), **state.compression_stats(), "lives": lives + 1}
        told["node"] = ray.get_runtime_context().get_node_id()
        (folder / f"rank{rank}.json").write_text(json.dumps(told))


def main() -> None:
    """Start the ranks, wait for them, and print their figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="what sums, for hopsum.connect")
    parser.add_argument("--ip", default="", help="address to send from (default: that of the route)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--address", help="of a Ray cluster (default: one on this machine, with a node for each rank)")
    parser.add_argument("--folder", type=Path, required=True, help="where ranks and Ray write, seen by all nodes")
    parser.add_argument("--dies-at-step", type=int, default=-1, help="let rank 1 die there, once")
    options = parser.parse_args()
    cluster = None if options.address else Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    if cluster is not None:
        for _ in range(options.ranks - 1):
            cluster.add_node(num_cpus=1)
    ray.init(address=options.address or cluster.address, log_to_driver=False)
    told = {
        "examples": str(EXAMPLES), "url": options.url, "ip": options.ip, "steps": options.steps,
        "folder": str(options.folder.absolute()), "dies_at_step": options.dies_at_step,
    }  # fmt: skip
    trainer = TorchTrainer(
        train,
        train_loop_config=told,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=options.ranks, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=RunConfig(storage_path=str(options.folder.absolute()), failure_config=FailureConfig(max_failures=1)),
    )
    trainer.fit()
    ray.shutdown()
    if cluster is not None:
        cluster.shutdown()
    print(json.dumps([json.loads((options.folder / f"rank{each}.json").read_text()) for each in range(options.ranks)]))


if __name__ == "__main__":
    main()
