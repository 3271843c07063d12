# SPDX-License-Identifier: Apache-2.0
"""The networks of `accuracy_plan.MODELS` with their data, none of which is downloaded.

cnn           scikit-learn's digits
transformer   the language reference that Python's own library carries for `help()`: module `pydoc_data.topics`
              (PSF licence 2), character by character. The last tenth is kept for the test
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hopsum_evaluation.demo.digits_network import Images, accuracy, load_images, make_network

CNN_CHANNELS, CNN_WIDTH = 32, 960
"""Sizes of `cnn` that give about a million parameters."""
CONTEXT = 64
"""Characters that the transformer sees at once."""
SYMBOLS = 128
"""ASCII. A question mark stands for any other character."""
LAYERS, HEADS, WIDTH = 4, 4, 128
_TEST_SHARE = 10
_TEST_WINDOWS = 128

Batch = tuple[torch.Tensor, torch.Tensor]
"""A batch: what a network is given, and the class that each row of its answer should name, int64."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Functions that make, feed and measure a model."""

    data: str
    """The words for what it learns."""
    make_network: Callable[[int], nn.Module]
    """The same for the same seed."""
    make_optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    draw: Callable[[np.random.Generator, int], Batch]
    """A batch of so many images or windows for training."""
    measure: Callable[[nn.Module], float]
    """The function that measures, on what is kept for the test, what the model's target is about."""


def load_learning(model: str) -> Learning:
    """Load a model of `accuracy_plan.MODELS` with its data. Networks leave torch's global generator seeded."""
    return {"cnn": _cnn, "transformer": _transformer}[model]()


def loss(network: nn.Module, batch: Batch) -> torch.Tensor:
    """Compute the mean cross entropy of a batch, in nats."""
    return cross_entropy(network(batch[0]), batch[1])


def _cnn() -> Learning:
    images = load_images("digits")

    def draw(rng: np.random.Generator, count: int) -> Batch:
        chosen = torch.from_numpy(rng.integers(0, len(images.train_y), count))
        return images.train_x[chosen], images.train_y[chosen]

    make = partial(make_network, images, channels=CNN_CHANNELS, hidden=CNN_WIDTH)
    return Learning(_words(images), make, lambda network: torch.optim.SGD(network.parameters(), 0.1, 0.9), draw,
                    lambda network: accuracy(network, images))  # fmt: skip


def _words(images: Images) -> str:
    return f"scikit-learn's digits, {len(images.train_y):,} images and {len(images.test_y):,} for the test"


class Transformer(nn.Module):
    """Names the next character: int64[windows, CONTEXT] to float32[windows * CONTEXT, SYMBOLS]."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the logits of the character that follows each one, from that one and those before it."""
        hidden = self.layers(self.symbols(x) + self.places.weight, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.last(hidden)
        return logits.flatten(0, 1)


def make_transformer(seed: int) -> nn.Module:
    """Make the transformer. Its parameters follow from the seed."""
    torch.manual_seed(seed)
    network = Transformer()
    # TransformerEncoder copies one layer: all begin with the same parameters unless they are drawn again.
    for each in network.layers.parameters():
        if each.dim() > 1:
            nn.init.xavier_uniform_(each)
    return network


def read_text() -> torch.Tensor:
    """Read the language reference in the order of its topics' names, int64[characters] below SYMBOLS."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.from_numpy(np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64))


def _transformer() -> Learning:
    text = read_text()
    kept = len(text) // _TEST_SHARE
    train, test = text[:-kept], text[-kept:]
    held = _windows(test, np.linspace(0, len(test) - CONTEXT - 1, _TEST_WINDOWS).astype(np.int64))
    digest = hashlib.sha256(text.numpy().astype(np.uint8).tobytes()).hexdigest()

    def draw(rng: np.random.Generator, count: int) -> Batch:
        return _windows(train, rng.integers(0, len(train) - CONTEXT, count))

    def perplexity(network: nn.Module) -> float:
        with torch.no_grad():
            return float(loss(network, held).exp())

    words = f"pydoc_data.topics of Python {platform.python_version()}, {len(text):,} characters, SHA-256 {digest[:12]}"
    return Learning(words, make_transformer, lambda network: torch.optim.AdamW(network.parameters(), 2e-3), draw,
                    perplexity)  # fmt: skip


def _windows(text: torch.Tensor, firsts: NDArray[np.int64]) -> Batch:
    """Cut the windows that begin at these characters, and the characters that follow each of theirs, flat."""
    places = torch.from_numpy(firsts)[:, None] + torch.arange(CONTEXT + 1)
    found = text[places]
    return found[:, :-1], found[:, 1:].flatten()
