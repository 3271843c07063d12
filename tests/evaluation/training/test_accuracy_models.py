# SPDX-License-Identifier: Apache-2.0
"""The transformer and its text: what it may see, and what it is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hopsum_evaluation.demo.digits_network import load_images
from hopsum_evaluation.training import accuracy_models
from hopsum_evaluation.training.accuracy_models import (
    CONTEXT,
    SMALL,
    SYMBOLS,
    Learning,
    load_learning,
    make_transformer,
)
from hopsum_evaluation.training.accuracy_plan import MODELS

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def learning() -> Learning:
    return load_learning("transformer")


def test_each_character_is_followed_by_the_next_one(learning: Learning) -> None:
    x, y = learning.draw(np.random.default_rng(1), 5)
    assert x.shape == (5, CONTEXT)
    assert y.shape == (5 * CONTEXT,)
    assert torch.equal(x[:, 1:], y.reshape(5, CONTEXT)[:, :-1])
    again = learning.draw(np.random.default_rng(1), 5)
    assert torch.equal(again[0], x)
    assert not torch.equal(learning.draw(np.random.default_rng(2), 5)[0], x)


def test_training_does_not_see_what_is_kept_for_the_test(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    text = torch.arange(10 * 20 * CONTEXT) * SYMBOLS // (10 * 20 * CONTEXT)  # rises slowly to the last symbol
    monkeypatch.setattr(accuracy_models, "read_text", lambda: text)
    asked: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked.append(x)
            return torch.zeros(x.numel(), SYMBOLS)

    rising = load_learning("transformer")
    assert rising.measure(Spy()) == pytest.approx(SYMBOLS)  # of who knows nothing
    drawn = torch.cat([rising.draw(np.random.default_rng(seed), 500)[0] for seed in range(4)])
    assert drawn.max() <= asked[0].min()
    assert asked[0].max() == SYMBOLS - 1


def test_nothing_is_seen_of_what_comes_later() -> None:
    network = make_transformer(SMALL, 1)
    x = torch.randint(0, SYMBOLS, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[:, 40] = (changed[:, 40] + 1) % SYMBOLS
    with torch.no_grad():
        before, after = (network(each).reshape(2, CONTEXT, SYMBOLS) for each in (x, changed))
    assert torch.equal(before[:, :40], after[:, :40])
    assert (before[:, 40:] != after[:, 40:]).any(-1).all()


def test_models_have_the_size_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_images("digits")
    fashion = replace(digits, train_x=torch.zeros(1, 1, 28, 28))
    monkeypatch.setattr(accuracy_models, "load_images", {"digits": digits, "fashion": fashion}.get)
    counted = {name: load_learning(name).count_parameters() for name in MODELS}
    assert counted == {"cnn": 1_012_426, "transformer": 834_432, "cnn-10m": 10_062_826, "transformer-10m": 10_770_560}
