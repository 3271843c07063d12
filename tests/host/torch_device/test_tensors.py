# SPDX-License-Identifier: Apache-2.0
"""Tensors on their device return what the host's way returns, and streams make an order in which nothing races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import hopsum
from hopsum.agent import Communicator
from hopsum.codec import CodecError, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum.config import Config
from hopsum.connection.open_agent import record_settings
from hopsum.torch import device_reduction
from hopsum.torch.device_codec import device_codec
from hopsum.torch.device_reduction import DeviceFeedback, DeviceReduction
from hopsum.torch.streams import Staging, streams_of
from hopsum.torch.tensors import _codecs

from ..api.ranks import run_ranks
from .checked_streams import CheckedStreams
from .forms import FORMS

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


CPU = torch.device("cpu")
ELEMENTS = 9 * 1024 + 5


class Forgetful(CheckedStreams):
    """Streams in which one thing is forgotten."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    @contextmanager
    def on_kernels(self, after: Any = None) -> Iterator[None]:
        with super().on_kernels(None if self._what == "kernels wait" else after):
            yield

    @contextmanager
    def on_copies(self, after: Any = None) -> Iterator[None]:
        with super().on_copies(None if self._what == "copies wait" else after):
            yield

    def wait(self) -> None:
        if self._what != "host waits":
            super().wait()


def train(streams: CheckedStreams, monkeypatch: pytest.MonkeyPatch, form: str = "thc", *, keeps: bool = True) -> int:
    """Run some all-reduces, as a communicator does, of gradients that the program's stream makes. Return the waits."""
    monkeypatch.setattr(device_reduction, "streams_of", lambda _: streams)
    host = make_codec(form, workers=1, backend="numpy")
    codec, staging = device_codec(host, CPU).codec, Staging(streams)
    with streams.watch():
        held = DeviceFeedback(ELEMENTS, CPU) if keeps else None
        x, total = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
        before = staging.waits
        for step in range(3):
            x.copy_(torch.linspace(-1, step + 1, ELEMENTS))
            context = ReductionContext(0, step, 0)
            reduction = DeviceReduction(
                codec, staging, x, context, held, out=x, ready=streams.mark(), piece_elements=2048
            )
            while (phase := reduction.phase) is not None:
                assert streams.is_idle, "what is handed out is whole"
                sums = simulate_switch(phase.op, [phase.payloads], host.lookup)[0]
                reduction.on_results(sums, np.ones(len(sums), np.uint64))
            assert streams.is_idle
            total += x
            if held is not None and step == 1:
                held.rollback(slice(0, 1000))
        waits = staging.waits - before
    return waits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keeps", [True, False])
def test_nothing_races_and_the_host_waits_three_times(monkeypatch: pytest.MonkeyPatch, form: str, keeps: bool) -> None:
    streams = CheckedStreams()
    assert train(streams, monkeypatch, form, keeps=keeps) == 3 * 3
    assert sorted(set(streams.races)) == []
    assert streams.hidden_waits == []
    assert streams.operations > 300


@pytest.mark.parametrize("forgotten", ["kernels wait", "copies wait", "host waits"])
def test_each_wait_is_needed(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    streams = Forgetful(forgotten)
    with monkeypatch.context() as patched:
        patched.setattr(CheckedStreams, "is_idle", True)
        train(streams, patched)
    assert streams.races


def test_streams_are_of_a_device() -> None:
    assert streams_of(CPU) is streams_of(torch.device("cpu"))
    with pytest.raises(CodecError, match="device meta: all-reduces run on devices of type cpu and cuda"):
        streams_of(torch.device("meta"))
