# SPDX-License-Identifier: Apache-2.0
"""A model trained in memory: a network of one hidden layer on scikit-learn's digits, its parameters one flat vector."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum_evaluation.report.settings import NotRunError

Floats = NDArray[np.float32]
PIXELS: Final = 64
HIDDEN: Final = 128
DIGITS: Final = 10
PARAMETERS: Final = PIXELS * HIDDEN + HIDDEN + HIDDEN * DIGITS + DIGITS
_TEST_SHARE: Final = 5
"""Every fifth image is kept for the test."""


class Learner:
    """The images, and the gradient of the loss. They are the same for all workers."""

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as error:
            raise NotRunError("the digits come with scikit-learn: pip install scikit-learn") from error
        data = load_digits()
        pixels, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
        test = np.arange(len(labels)) % _TEST_SHARE == 0
        self.x, self.y = pixels[~test], labels[~test]
        self.test_x, self.test_y = pixels[test], labels[test]

    def start(self, rng: np.random.Generator) -> Floats:
        """Return parameters to begin with, float32[PARAMETERS]."""
        first = rng.standard_normal(PIXELS * HIDDEN) * (2 / PIXELS) ** 0.5
        second = rng.standard_normal(HIDDEN * DIGITS) * (2 / HIDDEN) ** 0.5
        return np.concatenate([first, np.zeros(HIDDEN), second, np.zeros(DIGITS)]).astype(np.float32)

    def gradient(self, parameters: Floats, batch: NDArray[np.int64]) -> Floats:
        """Return the gradient of the mean cross entropy of a batch, float32[PARAMETERS], a new array."""
        x, y = self.x[batch], self.y[batch]
        first, bias, second, last = _parts(parameters)
        hidden = np.maximum(x @ first + bias, 0)
        off = _softmax(hidden @ second + last)
        off[np.arange(len(y)), y] -= 1
        off /= len(y)
        back = (off @ second.T) * (hidden > 0)
        return np.concatenate([(x.T @ back).ravel(), back.sum(0), (hidden.T @ off).ravel(), off.sum(0)])

    def loss(self, parameters: Floats, batch: NDArray[np.int64]) -> float:
        """Return the mean cross entropy of a batch."""
        odds = _softmax(self._logits(parameters, self.x[batch]))
        return float(-np.log(odds[np.arange(len(batch)), self.y[batch]]).mean())

    def accuracy(self, parameters: Floats) -> float:
        """Return the share of test images that are named right."""
        return float((self._logits(parameters, self.test_x).argmax(1) == self.test_y).mean())

    def _logits(self, parameters: Floats, x: Floats) -> Floats:
        first, bias, second, last = _parts(parameters)
        return np.asarray(np.maximum(x @ first + bias, 0) @ second + last)


def _parts(parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    first, bias, second, last = np.split(parameters, np.cumsum([PIXELS * HIDDEN, HIDDEN, HIDDEN * DIGITS]))
    return first.reshape(PIXELS, HIDDEN), bias, second.reshape(HIDDEN, DIGITS), last


def _softmax(logits: Floats) -> Floats:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))
