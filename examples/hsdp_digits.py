# SPDX-License-Identifier: Apache-2.0
"""The digits with FSDP2: parameters are sharded inside a replica, hopsum averages gradients over the replicas.

    torchrun --nproc-per-node 4 examples/hsdp_digits.py
    torchrun --nproc-per-node 4 examples/hsdp_digits.py --membership "job{shard}.json"       the same through a switch

Ranks are numbered replica by replica, as torchrun numbers the ranks of a host: with --shards 2, ranks 0 and 1 are the
first replica. Each shard index has a job of as many workers as replicas, so {shard} stands in --membership or --url.
Without these, the ranks of each shard index make theirs by `hosts://`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import Any

import torch
import torch.distributed as dist
from ddp_digits import draw_digits, make_model, parse
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

import hopsum
from hopsum.torch import register_all_reduce_hook


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the other examples have not."""
    parser.add_argument("--shards", type=int, default=2, help="ranks of a replica (default %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="compute and reduce in bfloat16")


def main() -> None:
    """Train, and print the figures of all ranks as JSON."""
    options = parse(__doc__, add_options)
    # The agent's thread needs a core of its own.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // options.shards
    mesh = init_device_mesh("cpu", (replicas, options.shards), mesh_dim_names=("replicate", "shard"))
    replica, shard = mesh.get_local_rank("replicate"), mesh.get_local_rank("shard")
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model: Any = make_model()
    for layer in (*[each for each in model if list(each.parameters())], model):
        fully_shard(layer, mesh=mesh, mp_policy=half if options.bf16 else MixedPrecisionPolicy())
    url = options.url.replace("%7Bshard%7D", str(shard)).replace("{shard}", str(shard))
    where: dict[str, Any] = {"url": url, "rank": replica}
    if url in ("hosts://", "collective://gloo"):
        where = {"url": url, "group": mesh.get_group("replicate")}
    with hopsum.connect(**where, codec=options.codec) as comm:  # HOPSUM
        state = register_all_reduce_hook(model, comm)  # HOPSUM
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
        generator = torch.Generator().manual_seed(1000 + dist.get_rank())
        for _ in range(options.steps):
            images, digits = draw_digits(options.batch, generator)
            optimizer.zero_grad()
            loss = cross_entropy(model(images).float(), digits)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        shards = b"".join(each.to_local().detach().numpy().tobytes() for each in model.parameters())
        figures = {"replica": replica, "shard": shard, "loss_first": losses[0], "loss_last": losses[-1],
                   "shard_sha256": hashlib.sha256(shards).hexdigest(), "allreduces": state.allreduces}  # fmt: skip
        every: list[dict[str, object]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, figures)
    if dist.get_rank() == 0:
        print(json.dumps(every, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
