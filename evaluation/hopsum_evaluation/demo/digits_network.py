# SPDX-License-Identifier: Apache-2.0
"""Real images that come from packages, and a small convolutional network for them."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""The folder of Debian's package dataset-fashion-mnist."""
TEST_SHARE = 5
"""Every fifth image of scikit-learn's digits is kept for the test. They come without a split."""


class MissingDataError(Exception):
    """A data set is not installed. The message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images float32[n, 1, height, width] in 0..1 and labels int64[n] of ten classes, for training and test."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load_images(name: str) -> Images:
    """Load `digits` (scikit-learn, 8 x 8) or `fashion` (Debian's Fashion-MNIST, 28 x 28). Raises MissingDataError."""
    return {"digits": _digits, "fashion": _fashion}[name]()


def _digits() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingDataError("the digits come with scikit-learn: pip install scikit-learn") from error
    data = load_digits()
    test = np.arange(len(data.target)) % TEST_SHARE == 0
    pixels = data.images / 16
    return _images(pixels[~test], data.target[~test], pixels[test], data.target[test])


def _fashion() -> Images:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    arrays = [_read_idx(name) for name in names]
    return _images(arrays[0] / 255, arrays[1], arrays[2] / 255, arrays[3])


def _read_idx(name: str) -> NDArray[np.uint8]:
    """Read one IDX file of bytes: a magic number with the number of dimensions, their sizes, the bytes."""
    path = FASHION / f"{name}-ubyte.gz"
    if not path.is_file():
        raise MissingDataError(f"{path} is missing: apt-get install dataset-fashion-mnist, or use the digits")
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(tuple(int(size) for size in shape))


def _images(train_x: NDArray[Any], train_y: NDArray[Any], test_x: NDArray[Any], test_y: NDArray[Any]) -> Images:
    def pixels(x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x[:, None], np.float32))

    def labels(y: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(y.astype(np.int64))

    return Images(pixels(train_x), labels(train_y), pixels(test_x), labels(test_y))


def make_network(images: Images, seed: int, channels: int, hidden: int) -> nn.Module:
    """Make a convolutional network for these images. Its parameters follow from the seed, which becomes torch's too.

    Its first layer has so many channels, the second twice as many, the hidden one so many units.
    """
    torch.manual_seed(seed)
    height, width = images.train_x.shape[2:]
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (height // 2) * (width // 2), hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def accuracy(network: nn.Module, images: Images) -> float:
    """Return the share of test images, 0 to 1, that the network names right."""
    with torch.no_grad():
        return float((network(images.test_x).argmax(1) == images.test_y).float().mean())
