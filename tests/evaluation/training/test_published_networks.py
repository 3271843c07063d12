# SPDX-License-Identifier: Apache-2.0
"""Networks of papers: their numbers of parameters, and a step of narrow ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hopsum_evaluation.training import accuracy_models
from hopsum_evaluation.training.accuracy_models import load_learning, loss, make_paced_learning
from hopsum_evaluation.training.accuracy_plan import TIMED, WINDOW
from hopsum_evaluation.training.published_networks import TextSize, TiedTransformer, make_resnet50, make_vgg16

pytestmark = pytest.mark.system
PUBLISHED = {"vgg16": 138_357_544, "resnet50": 25_557_032, "bert-base": 109_514_298, "gpt2-small": 124_439_808}
"""Parameters that torchvision and transformers count in theirs."""
NARROW = TextSize(50, WINDOW, 16, layers=2, heads=2)
MADE = {
    "vgg16": make_vgg16(2),
    "resnet50": make_resnet50(2),
    "bert-base": TiedTransformer(NARROW, causal=False),
    "gpt2-small": TiedTransformer(NARROW, causal=True),
}


def test_networks_have_as_many_parameters_as_published() -> None:
    assert {name: load_learning(name).count_parameters() for name in TIMED} == PUBLISHED


@pytest.mark.parametrize("name", TIMED)
def test_a_batch_gives_every_parameter_a_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_models, "BERT_BASE", NARROW)
    monkeypatch.setattr(accuracy_models, "GPT2_SMALL", NARROW)
    learning, network = load_learning(name), MADE[name]
    loss(network, learning.draw(np.random.default_rng(1), 2)).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in network.parameters())
    learning.make_optimiser(network).step()


@pytest.mark.parametrize("name", ["bert-base", "gpt2-small"])
def test_only_gpt_sees_nothing_of_what_comes_later(name: str) -> None:
    network: nn.Module = MADE[name]
    x = torch.zeros((1, 20), dtype=torch.int64)
    changed = x.clone()
    changed[0, 10] = 1
    with torch.no_grad():
        before, after = (network(each) for each in (x, changed))
    assert torch.allclose(before[:10], after[:10]) == network.causal
    assert not torch.allclose(before[10:], after[10:])


def test_bert_is_asked_for_masked_words_only() -> None:
    given, asked = load_learning("bert-base").draw(np.random.default_rng(1), 50)
    share = float((asked >= 0).double().mean())
    assert 0.1 < share < 0.2
    assert torch.equal(asked[asked >= 0], given.flatten()[asked >= 0])


def test_a_paced_step_takes_its_time_and_gives_every_parameter_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    learning = replace(load_learning("gpt2-small"), make_network=lambda _: MADE["gpt2-small"])
    made = make_paced_learning(learning, 0.5)
    network = made.make_network(1)
    network.zero_grad()
    loss(network, made.draw(np.random.default_rng(1), 2)).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.std() > 0.1 for each in network.parameters() if each.numel() > 9)
    assert slept == [0.5]
