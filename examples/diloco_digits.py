# SPDX-License-Identifier: Apache-2.0
"""The digits with DiLoCo: replicas train by themselves, and hopsum averages their changes every so many steps.

    torchrun --nproc-per-node 2 examples/diloco_digits.py

Without --membership or --url the ranks start an embedded switch on their hosts. The lines marked HOPSUM here and in
`ddp_digits.main` are all that is not an ordinary training of one process; torch's process group only collects figures.
"""

from __future__ import annotations

import argparse

import torch
from ddp_digits import draw_digits, figures, main, make_model
from torch.nn.functional import cross_entropy

from hopsum.agent import Communicator
from hopsum.torch import DiLoCo


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the other examples have not."""
    parser.add_argument("--sync-every", type=int, default=20, help="steps between two synchronisations of a fragment")
    parser.add_argument("--fragments", type=int, default=2, help="parts of the model that take turns")
    parser.add_argument("--delay", type=int, default=2, help="steps beside which a fragment's mean is on its way")


def train(options: argparse.Namespace, comm: Communicator) -> dict[str, object]:
    """Train for `options.steps` steps and return the figures of this rank."""
    # Every rank draws its own images.
    generator = torch.Generator().manual_seed(1000 + comm.rank)
    model = make_model()
    diloco = DiLoCo(  # HOPSUM
        model,
        comm,
        sync_every=options.sync_every,
        fragments=options.fragments,
        fragment_sync_delay=options.delay,
        fragment_update_alpha=0.5 if options.delay else 0.0,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    for _ in range(options.steps):
        images, digits = draw_digits(options.batch, generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), digits)
        loss.backward()
        optimizer.step()
        diloco.step()  # HOPSUM
        losses.append(loss.item())
    diloco.finish()  # HOPSUM
    return {**figures(model, losses), **diloco.compression_stats()}


if __name__ == "__main__":
    main(train, __doc__, add_options)
