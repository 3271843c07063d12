# SPDX-License-Identifier: Apache-2.0
"""Networks at the size at which they were published, in plain torch and with random parameters.

VGG-16       Simonyan and Zisserman (2014), 138,357,544 parameters
ResNet-50    He et al. (2015), 25,557,032, with the stride in the 3 x 3 convolution as torchvision has it
BERT-base    Devlin et al. (2018), 109,514,298: the encoder with the head that names masked words
GPT-2 small  Radford et al. (2019), 124,439,808

Text networks have no dropout, as the transformers of `accuracy_models`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn.functional import linear, relu

IMAGE_CLASSES: Final = 1000
_VGG: Final = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))
"""VGG-16's convolutions between two poolings: their number, and their channels in widths."""
_RESNET: Final = (3, 4, 6, 3)
"""Blocks of each stage of ResNet-50."""


def make_vgg16(width: int = 64) -> nn.Module:
    """Make VGG-16 for images of 3 channels. `width`: channels of the first convolution, all others follow."""
    layers: list[nn.Module] = []
    channels, hidden = 3, 64 * width
    for count, widths in _VGG:
        for _ in range(count):
            layers += [nn.Conv2d(channels, widths * width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = widths * width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for units in (channels * 7 * 7, hidden):
        layers += [nn.Linear(units, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(hidden, IMAGE_CLASSES))


def make_resnet50(width: int = 64) -> nn.Module:
    """Make ResNet-50 for images of 3 channels. `width`: channels of the first convolution, all others follow."""
    layers: list[nn.Module] = [*_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, blocks in enumerate(_RESNET):
        for block in range(blocks):
            inner = width << stage
            layers.append(_Bottleneck(channels, inner, stride=2 if stage and not block else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, IMAGE_CLASSES))


class _Bottleneck(nn.Module):
    """A block of ResNet-50: three convolutions and a shortcut, from `given` channels to four times `inner`."""

    def __init__(self, given: int, inner: int, stride: int) -> None:
        super().__init__()
        made = 4 * inner
        self.branch = nn.Sequential(
            *_convolution(given, inner, 1), nn.ReLU(inplace=True),
            *_convolution(inner, inner, 3, stride), nn.ReLU(inplace=True),
            *_convolution(inner, made, 1),
        )  # fmt: skip
        self.shortcut = nn.Sequential(*(() if given == made else _convolution(given, made, 1, stride)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return relu(self.branch(x) + self.shortcut(x))


def _convolution(given: int, made: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    # The normalisation has a bias of its own.
    return nn.Conv2d(given, made, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(made)


@dataclass(frozen=True, slots=True)
class TextSize:
    """Sizes of a transformer.

    symbols: in its alphabet or vocabulary.
    context: the most symbols that it sees at once.
    width: of its layers. The feed-forward part is four times as wide.
    """

    symbols: int
    context: int
    width: int
    layers: int
    heads: int


BERT_BASE: Final = TextSize(30522, 512, 768, 12, 12)
GPT2_SMALL: Final = TextSize(50257, 1024, 768, 12, 12)


class TiedTransformer(nn.Module):
    """A transformer whose last layer is its embedding: int64[windows, n] to float32[windows * n, symbols].

    causal: True for GPT-2, which sees the symbols before each place. False for BERT, which sees all of a window.
    """

    def __init__(self, size: TextSize, *, causal: bool) -> None:
        super().__init__()
        width, self.causal = size.width, causal
        self.symbols = nn.Embedding(size.symbols, width)
        self.places = nn.Embedding(size.context, width)
        # As published: with rows of variance 1, logits of tied embeddings would be tens.
        nn.init.normal_(self.symbols.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, size.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=causal
        )
        last = nn.LayerNorm(width) if causal else None
        self.layers = nn.TransformerEncoder(layer, size.layers, last, enable_nested_tensor=False)
        if not causal:
            # Of the first and the second of two sentences. Windows here have one.
            self.kinds = nn.Embedding(2, width)
            self.first = nn.LayerNorm(width)
            self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
            self.bias = nn.Parameter(torch.zeros(size.symbols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute logits: of the symbol that follows each one (causal), or of each place's own symbol."""
        hidden = self.symbols(x) + self.places.weight[: x.shape[1]]
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            return linear(self.layers(hidden, mask=mask, is_causal=True), self.symbols.weight).flatten(0, 1)
        hidden = self.layers(self.first(hidden + self.kinds.weight[0]))
        return linear(self.head(hidden), self.symbols.weight, self.bias).flatten(0, 1)
