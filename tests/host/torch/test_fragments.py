# SPDX-License-Identifier: Apache-2.0
"""Fragments: how a model is cut, and what passes between local and global parameters."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.torch.diloco import Fragment, make_fragments


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))


@pytest.mark.parametrize("count", range(1, 7))
def test_runs_have_every_parameter_once_in_order(count: int) -> None:
    fragments = make_fragments(model(), count)
    assert len(fragments) == count
    assert all(each.names for each in fragments)
    assert [name for each in fragments for name in each.names] == [name for name, _ in model().named_parameters()]


def test_runs_have_about_as_many_elements() -> None:
    wide = nn.Sequential(*(nn.Linear(20, 20, bias=False) for _ in range(12)))
    assert [each.elements for each in make_fragments(wide, 4)] == [1200] * 4
    heavy = nn.Sequential(nn.Linear(100, 100, bias=False), *(nn.Linear(5, 5, bias=False) for _ in range(3)))
    assert [each.elements for each in make_fragments(heavy, 2)] == [10_000, 75]
    last = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in range(3)), nn.Linear(100, 100, bias=False))
    assert [each.elements for each in make_fragments(last, 3)] == [50, 25, 10_000]


def test_frozen_parameters_are_in_no_fragment() -> None:
    whole = model()
    whole.get_submodule("1").requires_grad_(False)
    assert make_fragments(whole, 1)[0].names == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_modules_are_fragments() -> None:
    whole = model()
    first, second, third = whole.children()
    fragments = make_fragments(whole, [nn.ModuleList([first, third]), second])
    assert [each.names for each in fragments] == [("0.weight", "0.bias", "2.weight", "2.bias"), ("1.weight", "1.bias")]
    with pytest.raises(ValueError, match=r"1.weight, 1.bias: in no fragment"):
        make_fragments(whole, [first, third])
    with pytest.raises(ValueError, match=r"0.bias, 0.weight: in more than one fragment"):
        make_fragments(whole, [first, whole])
    with pytest.raises(ValueError, match="fragment 1 has no parameter"):
        make_fragments(whole, [whole, nn.Linear(2, 2)])


@pytest.mark.parametrize("count", [0, 7])
def test_a_number_of_fragments_that_cannot_be(count: int) -> None:
    with pytest.raises(ValueError, match=rf"fragments={count}: 1 to 6"):
        make_fragments(model(), count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_replica_that_stood_still_has_a_pseudo_gradient_of_zero(dtype: torch.dtype) -> None:
    """Also where the type of the parameters cannot hold the global ones."""
    parameter = nn.Parameter(torch.zeros(50, dtype=dtype))
    fragment = Fragment({"p": parameter})
    with torch.no_grad():
        fragment.global_parameters[0].copy_(torch.linspace(-3, 3, 50))
    fragment.merge()
    assert not fragment.pseudo_gradient().any()
    with torch.no_grad():
        parameter -= 0.5
    assert fragment.pseudo_gradient() == pytest.approx(0.5, abs=0.02)
