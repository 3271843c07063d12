# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec capture`: gradients of the demo's model on 32 minibatches, early and late in a training.

The model of `hopsum demo` learns scikit-learn's digits as four workers of it do: SGD with momentum on 128 images a
step. After 20 steps (loss still near its start) and after 150 (the images are learnt) the parameters are held and 32
minibatches of 32 images give 32 gradients. Of the 38,282 elements of each the file keeps 10,067, as they are: both
convolutions, the last layer, and every seventh of the hidden layer's 64 units until nine are taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hopsum_evaluation.bench.timing import versions
from hopsum_evaluation.compare.vectors import GRADIENTS
from hopsum_evaluation.demo.model import Images, MissingDataError, load_images, make_network

SEED = 1
WORKERS = 32
BATCH = 32
TOGETHER = 4
"""Minibatches that make one step of the training."""
MOMENTS = {"early": 20, "late": 150}
"""Steps before the gradients of that name."""
HIDDEN_STRIDE, HIDDEN_UNITS = 7, 9
_HIDDEN = "6."
"""Prefix of the hidden layer's parameters in the network."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum codec capture",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=GRADIENTS, metavar="FILE", help="file to write (default: the package's own)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Record, and say what was written. Return 0 unless the images are missing."""
    options = build_parser().parse_args(arguments)
    try:
        images = load_images("digits")
    except MissingDataError as error:
        print(f"hopsum codec capture: {error}", file=sys.stderr)
        return 1
    gradients: dict[str, Any] = capture(images)
    origin = {
        "model": "hopsum_evaluation.demo.model.make_network on scikit-learn's digits",
        "seed": SEED, "batch": BATCH, "steps_before": MOMENTS, "versions": versions("torch", "scikit-learn", "numpy"),
    }  # fmt: skip
    np.savez_compressed(options.output, origin=np.array(json.dumps(origin)), **gradients)
    for name, array in gradients.items():
        print(f"{name}: {array.dtype}{list(array.shape)}")
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")
    return 0


def capture(images: Images) -> dict[str, NDArray[np.float32]]:
    """Train and return by moment float32[WORKERS, elements]."""
    torch.set_num_threads(1)  # other numbers of threads add in another order
    network = make_network(images, SEED)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    shuffle = np.random.default_rng(SEED)
    found = {}
    for step in range(max(MOMENTS.values()) + 1):
        for name in (name for name, moment in MOMENTS.items() if moment == step):
            rows = [_gradient(network, images, shuffle, BATCH) for _ in range(WORKERS)]
            found[name] = np.stack([np.concatenate(list(row)) for row in rows])
        for _ in _gradient(network, images, shuffle, BATCH * TOGETHER):
            pass
        optimiser.step()
    return found


def _gradient(
    network: nn.Module, images: Images, shuffle: np.random.Generator, batch: int
) -> Iterator[NDArray[np.float32]]:
    """Compute the gradient of one minibatch, and yield what is kept of it, parameter by parameter."""
    network.zero_grad()
    chosen = torch.from_numpy(shuffle.integers(0, len(images.train_y), batch))
    loss = cross_entropy(network(images.train_x[chosen]), images.train_y[chosen])
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        kept = parameter.grad.numpy()
        if name.startswith(_HIDDEN):
            kept = kept[::HIDDEN_STRIDE][:HIDDEN_UNITS]
        yield kept.ravel().copy()
