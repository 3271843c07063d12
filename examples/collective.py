# SPDX-License-Identifier: Apache-2.0
"""Train without a switch and without DistributedDataParallel: gradients averaged by hopsum over torch.distributed.

    torchrun --nproc-per-node 2 examples/collective.py
    torchrun --nproc-per-node 2 examples/collective.py --url "file:///run/job.json"        the same through a switch

The lines marked HOPSUM are what takes the place of torch.distributed.all_reduce. All gradients are on their way at
once, and each carries what its codec left behind to the next step. The data are drawn, and labelled by another network.
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import hopsum
from hopsum.communicator import Communicator

INPUTS, CLASSES = 32, 10


def make_model(seed: int) -> nn.Module:
    """Return the same freshly initialised network wherever the seed is the same."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, CLASSES))


def average_gradients(model: nn.Module, job: Communicator) -> None:
    """Replace every gradient by its mean over the workers."""
    futures = [
        hopsum.allreduce(parameter.grad, job, name=name, out=parameter.grad, async_op=True)  # HOPSUM
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    ]
    for future in futures:
        future.result()


def train(options: argparse.Namespace, job: Communicator) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    # Every rank draws its own data.
    generator = torch.Generator().manual_seed(1000 + job.rank)
    teacher, model = make_model(seed=1), make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(options.steps):
        inputs = torch.randn(options.batch, INPUTS, generator=generator)
        with torch.no_grad():
            labels = teacher(inputs).argmax(1)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        average_gradients(model, job)
        optimizer.step()
        losses.append(loss.item())
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return {
        "loss_first": losses[0],
        "loss_last": sum(losses[-5:]) / len(losses[-5:]),
        "parameters_sha256": hashlib.sha256(parameters).hexdigest(),
        "allreduces": job.statistics.allreduces,
        "bytes_sent": job.statistics.traffic.bytes_sent,
        "fp32_bytes": 4 * job.statistics.elements,
    }


def main() -> None:
    """Join the process group and the job, train, and print the figures of all ranks as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="collective://gloo", help="what sums (default %(default)s)")
    parser.add_argument("--codec", default="thc", help="thc, uhc, fixed or lossless (default %(default)s)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="vectors per rank and step (default %(default)s)")
    options = parser.parse_args()
    # The thread that encodes and decodes needs a core of its own.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with hopsum.connect(options.url, codec=options.codec) as job:  # HOPSUM
        figures: list[dict[str, object]] = [{}] * dist.get_world_size()
        dist.all_gather_object(figures, train(options, job))
    if dist.get_rank() == 0:
        print(json.dumps(figures, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
