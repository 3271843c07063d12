# SPDX-License-Identifier: Apache-2.0
"""The digits with no hook and no DDP: a script that averages its gradients itself, on the backend "hopsum".

    torchrun --nproc-per-node 2 examples/process_group_digits.py

all_reduce of large float tensors goes through the agent, anything else through Gloo: gathered objects, and the small
tensor with the loss, whose mean is exact. There is no error feedback here; where DDP is used, the hook is better.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from ddp_digits import draw_digits, figures, make_model, parse
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import hopsum
from hopsum.agent import Agent
from hopsum.torch import ProcessGroupHopsum


def train(options: argparse.Namespace, agent: Agent, rank: int) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(options.steps):
        images, digits = draw_digits(options.batch, generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), digits)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = parameters_to_vector(gradients)
        # By the agent.
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        vector_to_parameters(flat, gradients)
        mean = loss.detach().clone()
        # By Gloo: it is small.
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        optimizer.step()
    return {**figures(model, losses), "allreduces": agent.statistics.allreduces}


def main() -> None:
    """Join the job and the process group, train, and print the figures of all ranks as JSON."""
    options = parse(__doc__)
    # The agent's thread needs a core of its own.
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    with hopsum.connect(options.url, rank=rank, codec=options.codec) as agent:  # HOPSUM
        dist.init_process_group("hopsum", pg_options=ProcessGroupHopsum.Options(agent))  # HOPSUM
        every: list[dict[str, object]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, train(options, agent, rank))
        if rank == 0:
            print(json.dumps(every, indent=2))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
