# SPDX-License-Identifier: Apache-2.0
"""`hopsum.allreduce` of tensors on their device, forced on the CPU: what comes back is what the host's way returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hopsum
from hopsum.codec import CodecError
from hopsum.communicator import Communicator
from hopsum.config import Config
from hopsum.connection.open_agent import record_settings
from hopsum.torch.tensors import _codecs

from ..api.ranks import run_ranks

CHECK_WAITS = 3
"""The waits of the check of a codec, which is one all-reduce."""


def both_ways(work: Callable[[Communicator], Any], workers: int = 2, **settings: Any) -> list[Any]:
    """Return what `work` returns on each rank where rank 0 is on the device; equal to a job on the host alone."""

    def mixed(job: Communicator) -> Any:
        record_settings(job, Config(codec_on="device" if job.rank == 0 else "host"))
        means = work(job)
        places = _codecs[job]["device"]._made.values() if job in _codecs else ()
        waits = sum(place.staging.waits for place in places if place is not None)
        assert (waits > CHECK_WAITS) is (job.rank == 0)
        return means

    found = run_ranks(f"memory://mixed-{work.__name__}?workers={workers}", mixed, workers, **settings)
    right = run_ranks(f"memory://host-{work.__name__}?workers={workers}", work, workers, **settings)
    for ours, expected in zip(found, right, strict=True):
        for one, other in zip(ours, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)
    return found


def drawn(job: Communicator, step: int = 0) -> torch.Tensor:
    return torch.randn(3, 700, generator=torch.Generator().manual_seed(10 * step + job.rank))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_types_and_operations(dtype: torch.dtype, op: Any) -> None:
    def types(job: Communicator) -> list[torch.Tensor]:
        tensor = drawn(job).to(dtype)
        kept = tensor.clone()
        mean = hopsum.allreduce(tensor, job, op=op)
        assert torch.equal(tensor, kept), "it is only read"
        return [mean]

    first, second = both_ways(types)
    assert torch.equal(first[0], second[0])


def test_names_carry_the_error_and_out_takes_the_mean() -> None:
    def named(job: Communicator) -> list[torch.Tensor]:
        found = []
        for step in range(3):
            tensor, place = drawn(job, step), torch.zeros(700, 3).T
            assert hopsum.allreduce(tensor, job, name="w", out=place) is place
            assert hopsum.allreduce(tensor, job, name="v", out=tensor, async_op=True).result(60) is tensor
            found += [place.clone(), tensor]
        return found

    both_ways(named)


def test_layouts_scalars_and_what_is_empty() -> None:
    def shaped(job: Communicator) -> list[torch.Tensor]:
        whole = drawn(job)
        parameter = torch.nn.Parameter(whole[0])
        tensors = (whole[:, ::2], whole.T, whole[0, 0], whole[:0], parameter)
        return [hopsum.allreduce(tensor, job) for tensor in tensors]

    first, _ = both_ways(shaped)
    assert not any(each.requires_grad for each in first)


def test_what_is_not_finite_is_nan_if_that_was_asked_for() -> None:
    def skipped(job: Communicator) -> list[torch.Tensor]:
        tensor = drawn(job)
        if job.rank:
            tensor[1, 1] = torch.nan
        return [hopsum.allreduce(tensor, job, on_nonfinite="skip").isnan()]

    assert bool(both_ways(skipped)[0][0].all())


def test_a_name_stays_on_its_device() -> None:
    url = "memory://name?workers=1"
    with hopsum.connect(url, rank=0, backend="numpy", codec_on="device") as job:
        hopsum.allreduce(torch.ones(5), job, name="w")
        record_settings(job, Config(codec_on="host"))
        with pytest.raises(ValueError, match="what all-reduces of 'w' have not delivered is on another device"):
            hopsum.allreduce(torch.ones(5), job, name="w")


def test_a_codec_without_a_form_for_devices() -> None:
    with hopsum.connect("memory://fixed?workers=1", rank=0, codec="fixed", codec_on="device") as job:
        with pytest.raises(CodecError, match="codec fixed has no form for devices"):
            hopsum.allreduce(torch.ones(5), job)
        assert hopsum.allreduce(torch.ones(5).numpy(), job).tolist() == [1] * 5
