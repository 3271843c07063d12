# SPDX-License-Identifier: Apache-2.0
"""Train a small classifier with DistributedDataParallel, gradients summed by hopsum.

    torchrun --nproc-per-node 2 examples/ddp_digits.py

The first rank of each host starts an embedded switch. With a controller that runs it is
--url "hopsum://HOST:PORT/JOB?token_file=PATH", with what the controller wrote for a job --membership job.json.
Everything but the lines marked HOPSUM is ordinary torch. The data are drawn: ten digits of 5 x 7 pixels, shifted,
scaled and noisy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.agent import Communicator
from hopsum.torch import register_comm_hook

AddOptions = Callable[[argparse.ArgumentParser], None]
Train = Callable[[argparse.Namespace, Communicator], dict[str, object]]
# Rows of 5 pixels, from the top; one line per digit.
FONT = """
01110 10001 10011 10101 11001 10001 01110
00100 01100 00100 00100 00100 00100 01110
01110 10001 00001 00110 01000 10000 11111
01110 10001 00001 00110 00001 10001 01110
00010 00110 01010 10010 11111 00010 00010
11111 10000 11110 00001 00001 10001 01110
00110 01000 10000 11110 10001 10001 01110
11111 00001 00010 00100 01000 01000 01000
01110 10001 10001 01110 10001 10001 01110
01110 10001 10001 01111 00001 00010 01100
"""
SIDE = 8


def draw_digits(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, float32[count, 64], and their digits, int64[count]."""
    glyphs = torch.tensor([int(pixel) for pixel in FONT if pixel in "01"], dtype=torch.float32).reshape(10, 7, 5)
    digits = torch.randint(10, (count,), generator=generator)
    images = torch.zeros(count, SIDE, SIDE)
    corners = torch.stack([torch.randint(high, (count,), generator=generator) for high in (SIDE - 6, SIDE - 4)], dim=1)
    for image, digit, (top, left) in zip(images, digits, corners.tolist(), strict=True):
        image[top : top + 7, left : left + 5] = glyphs[digit]
    images *= 0.5 + torch.rand(count, 1, 1, generator=generator)
    return (images + 0.3 * torch.randn(images.shape, generator=generator)).flatten(1), digits


def make_model() -> nn.Module:
    """Return the same freshly initialised model on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def figures(ddp: nn.Module, losses: list[float]) -> dict[str, object]:
    """Return how well a model does, and a digest of its parameters, which is the same on all ranks."""
    images, digits = draw_digits(2000, torch.Generator().manual_seed(7))
    with torch.no_grad():
        accuracy = (ddp(images).argmax(1) == digits).float().mean().item()
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in ddp.parameters())
    return {
        "loss_first": losses[0],
        "loss_last": sum(losses[-5:]) / len(losses[-5:]),
        "accuracy": accuracy,
        "parameters_sha256": hashlib.sha256(parameters).hexdigest(),
    }


def train(options: argparse.Namespace, comm: Communicator) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    # Every rank draws its own images.
    generator = torch.Generator().manual_seed(1000 + comm.rank)
    ddp = DistributedDataParallel(make_model())
    state = register_comm_hook(ddp, comm, uncompressed=["*.bias"], log_every=options.log_every)  # HOPSUM
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(options.steps):
        images, digits = draw_digits(options.batch, generator)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images), digits)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {**figures(ddp, losses), **state.compression_stats()}


def parse(description: str | None, add_options: AddOptions | None = None) -> argparse.Namespace:
    """Return the options of an example; `add_options` adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--membership", type=Path, help="path of the job's membership file")
    default = os.environ.get("HOPSUM_URL", "hosts://")
    where.add_argument(
        "--url", default=default, help="what sums, for hopsum.connect (default: HOPSUM_URL, or hosts://)"
    )
    parser.add_argument("--codec", default="thc", help="thc, uhc or fixed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="images per rank and step (default %(default)s)")
    parser.add_argument("--log-every", type=int, default=0, help="steps between lines with their times (default: none)")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    if options.membership is not None:
        options.url = options.membership.absolute().as_uri()
    return options


def main(train: Train, description: str | None, add_options: AddOptions | None = None) -> None:
    """Join the process group and the job, train, and print the figures of all ranks as JSON."""
    options = parse(description, add_options)
    # The communicator's thread needs a core of its own.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with hopsum.connect(options.url, rank=dist.get_rank(), codec=options.codec) as comm:  # HOPSUM
        every: list[dict[str, object]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, train(options, comm))
    if dist.get_rank() == 0:
        print(json.dumps(every, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(train, __doc__)
