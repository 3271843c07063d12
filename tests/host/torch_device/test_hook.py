# SPDX-License-Identifier: Apache-2.0
"""The DDP hook with codecs on the device of the gradients, forced on the CPU: the bytes, books and states of the host.

Ranks are states in one process, with a `memory://` group between them.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

import hopsum
from hopsum.agent import AllReduceResult
from hopsum.codec import CodecError
from hopsum.codec.interface import feeds_back
from hopsum.errors import WorkersReplacedError
from hopsum.torch import HopsumState, hopsum_hook
from hopsum.torch.device_reduction import DeviceFeedback

from ..torch.test_hook import FIRST, LAST, Bucket, gradients
from .forms import FORMS

SIZES = {LAST: 310, FIRST: 1230}


class Ranks:
    """Ranks of one job, each with its way to encode."""

    def __init__(self, stack: ExitStack, name: str, ways: Sequence[str], codec: str = "thc", **options: Any) -> None:
        url = f"memory://{name}?workers={len(ways)}"
        self.jobs = [
            stack.enter_context(hopsum.connect(url, rank=rank, codec=codec, backend="numpy"))
            for rank in range(len(ways))
        ]
        self.modules = [nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 10)) for _ in ways]
        self.states = [
            HopsumState(job, module, codec_on=way, **options)  # type: ignore[arg-type]
            for job, module, way in zip(self.jobs, self.modules, ways, strict=True)
        ]

    def step(self, *buckets: tuple[Sequence[str], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Run the hook for buckets of one step; return their means, which are the same on all ranks."""
        futures = [
            [
                hopsum_hook(state, Bucket(module, names, sent[rank], index, index == len(buckets) - 1))  # type: ignore[arg-type]
                for index, (names, sent) in enumerate(buckets)
            ]
            for rank, (state, module) in enumerate(zip(self.states, self.modules, strict=True))
        ]
        means = [[future.wait() for future in each] for each in futures]
        for other in means[1:]:
            assert all(
                torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(means[0], other, strict=True)
            )
        return means[0]

    def residuals(self, rank: int) -> dict[str, torch.Tensor]:
        return self.states[rank].state_dict()["residuals"][str(rank)]


def drawn(step: int, workers: int, dtype: torch.dtype = torch.float32) -> Any:
    return [(names, [each.to(dtype) for each in gradients(size, workers, seed=step)]) for names, size in SIZES.items()]


@pytest.mark.parametrize("codec", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_of_both_kinds_are_one_job(stack: ExitStack, codec: str, dtype: torch.dtype) -> None:
    """Means and residuals are those of a job that encodes on the host."""
    mixed = Ranks(stack, "mixed", ["host", "device", "device"], codec)
    plain = Ranks(stack, "plain", ["host"] * 3, codec)
    for step in range(3):
        for ours, right in zip(mixed.step(*drawn(step, 3, dtype)), plain.step(*drawn(step, 3, dtype)), strict=True):
            assert ours.dtype == dtype
            assert torch.equal(ours, right)
    for rank in range(3):
        left, kept = mixed.residuals(rank), plain.residuals(rank)
        assert left.keys() == kept.keys()
        assert all(torch.equal(left[name], kept[name]) for name in kept)
        assert any(bool(each.any()) for each in kept.values()) is feeds_back(plain.jobs[rank].codec)


@pytest.mark.parametrize("saves", ["device", "host"])
@pytest.mark.parametrize("loads", ["device", "host"])
def test_a_state_continues_where_another_was_saved(stack: ExitStack, saves: str, loads: str) -> None:
    """A checkpoint has no trace of where it was made: the next steps are the same bytes."""
    first, again = Ranks(stack, "saves", [saves] * 2), Ranks(stack, "loads", [loads] * 2)
    for step in range(2):
        first.step(*drawn(step, 2))
    for saved, loaded in zip(first.states, again.states, strict=True):
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    for step in range(2, 4):
        for ours, right in zip(again.step(*drawn(step, 2)), first.step(*drawn(step, 2)), strict=True):
            assert torch.equal(ours, right)
    for rank in range(2):
        kept, left = first.residuals(rank), again.residuals(rank)
        assert all(torch.equal(left[name], kept[name]) for name in kept)


@pytest.mark.parametrize("way", ["host", "device"])
def test_a_step_in_which_workers_were_replaced_is_as_if_it_had_not_been(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The sum of the first bucket was decided, the second vector was given back: both are undone, and done again."""
    ranks = Ranks(stack, "replaced", [way])
    ranks.step(*drawn(0, 1))
    before, job, state = ranks.residuals(0), ranks.jobs[0], ranks.states[0]
    submit = job.submit
    assert any(bool(each.any()) for each in before.values())

    def replaced(vector: Any, **rest: Any) -> Any:
        if (vector.elements if way == "device" else vector.size) == SIZES[LAST]:
            return submit(vector, **rest)
        # An error feedback on the host has a vector back that was committed with nothing of it delivered.
        if way == "device":
            vector.rollback()
            feedback = vector.feedback
        else:
            feedback = rest["feedback"]
            feedback.compensate(vector)
            feedback.commit(None)
        assert bool(feedback.residual.any())
        future: Future[AllReduceResult] = Future()
        future.set_exception(WorkersReplacedError("rank 1 was replaced", (1,)))
        return future

    with monkeypatch.context() as patched:
        patched.setattr(job, "submit", replaced)
        with pytest.raises(RuntimeError, match="WorkersReplacedError: rank 1 was replaced"):
            ranks.step(*drawn(5, 1))
    assert isinstance(state.failure, WorkersReplacedError)
    assert state.failure.ranks == (1,)
    after = ranks.residuals(0)
    assert all(torch.equal(after[name], kept) for name, kept in before.items())
    ranks.step(*drawn(5, 1))
    assert state.allreduces == 6, "numbers continue, on all ranks alike"


def test_what_crossed_the_bus_is_in_the_statistics(stack: ExitStack) -> None:
    """Of two buckets of a block or two: codes to the host, results to the device; nothing where the host encodes."""
    ranks = Ranks(stack, "bus", ["device", "host"])
    checked = ranks.states[0].compression_stats()
    ranks.step(*drawn(0, 2))
    here, there = (state.compression_stats() for state in ranks.states)
    assert here["bytes_from_device"] - checked["bytes_from_device"] == 3 * (4 + 512) + 2 * (4 + 8 + 8)
    assert here["bytes_to_device"] - checked["bytes_to_device"] == 3 * (4 + 8 + 512) + 2 * 64
    assert there["bytes_from_device"] == there["bytes_to_device"] == 0


def test_auto_leaves_the_cpu_to_the_host(stack: ExitStack) -> None:
    ranks = Ranks(stack, "auto", ["auto", "auto"])
    ranks.step(*drawn(0, 2))
    assert ranks.states[0].compression_stats()["bytes_from_device"] == 0
    assert not any(isinstance(each, DeviceFeedback) for each in ranks.states[0]._residuals._feedback.values())


@pytest.mark.parametrize("codec", ["fixed", "uhc", "thc:rounding=stochastic,lane_bits=16"])
def test_a_codec_without_a_form_for_devices(
    stack: ExitStack, codec: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for it is an error, which changes nothing; by itself it is one line in the log, and the host's way."""
    with pytest.raises(CodecError, match="has no form for devices"):
        Ranks(stack, "refused", ["device"], codec)
    ranks = Ranks(stack, "without", ["host"], codec)
    ranks.states[0].codec_on = "device"
    with pytest.raises(CodecError, match="has no form for devices"):
        ranks.states[0].attach(ranks.jobs[0], ranks.modules[0])
    ranks.states[0].codec_on = "host"
    ranks.step(*drawn(0, 1))

    class OnGpu(nn.Module):
        """A module whose only parameter says that it is on a GPU."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

    monkeypatch.setattr(nn.Parameter, "device", torch.device("cuda", 0), raising=False)
    with caplog.at_level(logging.WARNING):
        state = HopsumState(ranks.jobs[0], OnGpu())
    lines = [each.getMessage() for each in caplog.records if "on the host" in each.getMessage()]
    assert len(lines) == 1
    assert "gradients on cuda:0 are encoded on the host" in lines[0]
    assert "has no form for devices" in lines[0]
    state._calls.any = True


def test_a_communicator_that_sums_in_the_hosts_memory(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(stack, "memory", ["device"])
    monkeypatch.setattr(type(ranks.jobs[0]), "on_host_only", True)
    with pytest.raises(RuntimeError, match="sums vectors in the host's memory, and was handed a DeviceVector"):
        ranks.step(*drawn(0, 1))
    with pytest.raises(CodecError, match="this communicator sums in the host's memory"):
        HopsumState(ranks.jobs[0], ranks.modules[0], codec_on="device")


def test_another_word(stack: ExitStack) -> None:
    with pytest.raises(ValueError, match="codec_on='gpu': one of auto, device, host"):
        Ranks(stack, "word", ["gpu"])
