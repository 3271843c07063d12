# SPDX-License-Identifier: Apache-2.0
"""The networks of `accuracy_plan.MODELS` and `accuracy_plan.TIMED` with their data, none of which is downloaded.

cnn              scikit-learn's digits
cnn-10m          Fashion-MNIST, of Debian's package dataset-fashion-mnist
transformer      the language reference that Python's own library carries for `help()`: module `pydoc_data.topics`
                 (PSF licence 2), character by character. The last tenth is kept for the test
transformer-10m  the same
timed models     random numbers
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hopsum_evaluation.demo.digits_network import accuracy, load_images, make_network
from hopsum_evaluation.training.accuracy_plan import WINDOW
from hopsum_evaluation.training.published_networks import (
    BERT_BASE,
    GPT2_SMALL,
    IMAGE_CLASSES,
    TextSize,
    TiedTransformer,
    make_resnet50,
    make_vgg16,
)

CONTEXT = 64
"""Characters that the transformer sees at once."""
SYMBOLS = 128
"""ASCII. A question mark stands for any other character."""
SMALL = TextSize(SYMBOLS, CONTEXT, 128, layers=4, heads=4)
LARGE = TextSize(SYMBOLS, CONTEXT, 384, layers=6, heads=6)
"""The width, layers and heads of nanoGPT's character model: 10.8 M parameters."""
_TEST_IMAGES = 2000
"""The most images to measure with. All 10,000 of Fashion-MNIST would take longer than the steps between."""
_IMAGE_SIDE = 224
_MASKED_SHARE = 0.15
"""The share of words that BERT is asked for."""
_NOT_ASKED = -100
"""The class that torch's cross entropy leaves out."""
_TEST_SHARE = 10
_TEST_WINDOWS = 128

Batch = tuple[torch.Tensor, torch.Tensor]
"""A batch: what a network is given, and the class that each row of its answer should name, int64."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Functions that make, feed and measure a model."""

    make_network: Callable[[int], nn.Module]
    """The same for the same seed."""
    make_optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    draw: Callable[[np.random.Generator, int], Batch]
    """A batch of so many images or windows for training."""
    measure: Callable[[nn.Module], float]
    """The function that returns the measure of the model's target on the test data, nan for a timed model."""

    def count_parameters(self) -> int:
        """Return the number of parameters of the network, without memory for them."""
        # On this device torch makes shapes without memory: a large network would take seconds and half a gigabyte.
        with torch.device("meta"):
            return sum(each.numel() for each in self.make_network(0).parameters())


def load_learning(model: str) -> Learning:
    """Load a model with its data. Networks leave torch's global generator seeded.

    Raises MissingDataError for a data set that is not installed.
    """
    return {
        "cnn": partial(_cnn, "digits", 960, 0.1),
        "cnn-10m": partial(_cnn, "fashion", 800, 0.05),
        "transformer": partial(_transformer, SMALL, 2e-3),
        "transformer-10m": partial(_transformer, LARGE, 1e-3),
        "vgg16": partial(_timed_images, make_vgg16),
        "resnet50": partial(_timed_images, make_resnet50),
        "bert-base": partial(_timed_text, BERT_BASE, causal=False),
        "gpt2-small": partial(_timed_text, GPT2_SMALL, causal=True),
    }[model]()


def make_paced_learning(learning: Learning, seconds: float) -> Learning:
    """Return a model whose steps wait for `seconds` in place of computing, as if a device computed.

    Gradients are random, and parameters do not change.
    """

    def draw(_: np.random.Generator, count: int) -> Batch:
        return torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64)

    def make(seed: int) -> nn.Module:
        return _Paced(learning.make_network(seed), seconds)

    # An optimiser of nothing: the device's own takes no time of a processor. Gradients add up, which costs no more.
    return Learning(make, lambda _: torch.optim.SGD([torch.zeros(1)], 0.0), draw, learning.measure)


class _Paced(nn.Module):
    def __init__(self, network: nn.Module, seconds: float) -> None:
        super().__init__()
        self._network, self._seconds = network, seconds
        self._gradients = [torch.randn_like(each) for each in network.parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Gradients are there when the time has passed: nothing of an all-reduce is hidden, whatever the scheme.
        time.sleep(self._seconds)
        found: torch.Tensor = _Random.apply(x, self._gradients, *self._network.parameters())  # type: ignore[no-untyped-call]
        return found


class _Random(torch.autograd.Function):
    """A function of parameters whose derivatives are given tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(len(x), 2)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return None, None, *ctx.gradients


def loss(network: nn.Module, batch: Batch) -> torch.Tensor:
    """Compute the mean cross entropy of a batch, in nats."""
    return cross_entropy(network(batch[0]), batch[1])


def _cnn(data: str, hidden: int, rate: float) -> Learning:
    images = load_images(data)
    images = replace(images, test_x=images.test_x[:_TEST_IMAGES], test_y=images.test_y[:_TEST_IMAGES])

    def draw(rng: np.random.Generator, count: int) -> Batch:
        chosen = torch.from_numpy(rng.integers(0, len(images.train_y), count))
        return images.train_x[chosen], images.train_y[chosen]

    make = partial(make_network, images, channels=32, hidden=hidden)
    return Learning(make, lambda network: torch.optim.SGD(network.parameters(), rate, 0.9), draw,
                    lambda network: accuracy(network, images))  # fmt: skip


def _timed_images(make: Callable[[], nn.Module]) -> Learning:
    def draw(rng: np.random.Generator, count: int) -> Batch:
        images = rng.standard_normal((count, 3, _IMAGE_SIDE, _IMAGE_SIDE), dtype=np.float32)
        return torch.from_numpy(images), torch.from_numpy(rng.integers(0, IMAGE_CLASSES, count))

    return Learning(partial(_seeded, make),
                    lambda network: torch.optim.SGD(network.parameters(), 1e-3, 0.9), draw, lambda _: nan)  # fmt: skip


def _timed_text(size: TextSize, *, causal: bool) -> Learning:
    def draw(rng: np.random.Generator, count: int) -> Batch:
        text = torch.from_numpy(rng.integers(0, size.symbols, (count, WINDOW + 1)))
        given = text[:, :-1]
        if causal:
            return given, text[:, 1:].flatten()
        seen = torch.from_numpy(rng.random((count, WINDOW)) >= _MASKED_SHARE)
        return given, given.masked_fill(seen, _NOT_ASKED).flatten()

    make = partial(_seeded, partial(TiedTransformer, size, causal=causal))
    return Learning(make, lambda network: torch.optim.AdamW(network.parameters(), 1e-4), draw,
                    lambda _: nan)  # fmt: skip


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


class Transformer(nn.Module):
    """A network that names the next character: int64[windows, CONTEXT] to float32[windows * CONTEXT, SYMBOLS]."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        width = size.width
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, size.heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, size.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.last = nn.Linear(width, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the logits of the character that follows each one, from that one and those before it."""
        hidden = self.layers(self.symbols(x) + self.places.weight, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.last(hidden)
        return logits.flatten(0, 1)


def make_transformer(size: TextSize, seed: int) -> nn.Module:
    """Make a transformer. Its parameters follow from the seed, which becomes torch's too."""
    torch.manual_seed(seed)
    network = Transformer(size)
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


def _transformer(size: TextSize, rate: float) -> Learning:
    text = read_text()
    kept = len(text) // _TEST_SHARE
    train, test = text[:-kept], text[-kept:]
    held = _windows(test, np.linspace(0, len(test) - CONTEXT - 1, _TEST_WINDOWS).astype(np.int64))

    def draw(rng: np.random.Generator, count: int) -> Batch:
        return _windows(train, rng.integers(0, len(train) - CONTEXT, count))

    def perplexity(network: nn.Module) -> float:
        with torch.no_grad():
            return float(loss(network, held).exp())

    return Learning(partial(make_transformer, size),
                    lambda network: torch.optim.AdamW(network.parameters(), rate), draw, perplexity)  # fmt: skip


def _windows(text: torch.Tensor, firsts: NDArray[np.int64]) -> Batch:
    """Cut the windows that begin at these characters, and the characters that follow each of theirs, flat."""
    places = torch.from_numpy(firsts)[:, None] + torch.arange(CONTEXT + 1)
    found = text[places]
    return found[:, :-1], found[:, 1:].flatten()
