# SPDX-License-Identifier: Apache-2.0
"""The order that an all-reduce makes between streams: no two accesses race, and the host waits three times.

CUDA's own streams need a GPU (test_cuda.py). These are those of checked_streams.py, which knows every operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from hopsum.codec import CodecError, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum.torch import device_reduction
from hopsum.torch.device_codec import device_codec
from hopsum.torch.device_reduction import DeviceFeedback, DeviceReduction
from hopsum.torch.streams import CudaStreams, NoStreams, Staging, Streams, streams_of

from .checked_streams import CheckedStreams

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
                reduction.take(sums, np.ones(len(sums), np.uint64))
            assert streams.is_idle
            total += x
            if held is not None and step == 1:
                held.give_back(slice(0, 1000))
        waits = staging.waits - before
    return waits


@pytest.mark.parametrize("form", ["thc", "thc:bits=2"])
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


def test_the_bytes_do_not_depend_on_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checked streams run what the CPU runs."""
    found: list[torch.Tensor] = []
    for streams in (CheckedStreams(), NoStreams()):
        monkeypatch.setattr(device_reduction, "streams_of", lambda _, chosen=streams: chosen)
        host = make_codec("thc", workers=1, backend="numpy")
        held, x = DeviceFeedback(ELEMENTS, CPU), torch.linspace(-1, 1, ELEMENTS)
        staging = Staging(streams)
        reduction = DeviceReduction(device_codec(host, CPU).codec, staging, x, ReductionContext(0, 0, 0), held, out=x)
        while (phase := reduction.phase) is not None:
            sums = simulate_switch(phase.op, [phase.payloads], host.lookup)[0]
            reduction.take(sums, np.ones(len(sums), np.uint64))
        found += [x, held.residual]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_streams_are_of_a_device() -> None:
    assert streams_of(CPU) is streams_of(torch.device("cpu"))
    with pytest.raises(CodecError, match="device meta: all-reduces run on devices of type cpu and cuda"):
        streams_of(torch.device("meta"))


def test_both_kinds_have_all_of_the_interface() -> None:
    """The kind for CUDA is made on a GPU only."""
    wanted = {name for name in vars(Streams) if not name.startswith("_")}
    assert wanted <= set(dir(NoStreams))
    assert wanted <= set(dir(CudaStreams))
