# SPDX-License-Identifier: Apache-2.0
"""All-reduces of tensors on a GPU, with CUDA's own streams. All of it is skipped on machines without one.

Files next to this one test the same laws on the CPU; here are those that need streams, pinned memory and kernels.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hopsum
from hopsum.agent import HostVector
from hopsum.codec import ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum.torch import HopsumState, hopsum_hook
from hopsum.torch.device_codec import device_codec
from hopsum.torch.device_reduction import PIECE_ELEMENTS, DeviceFeedback, DeviceReduction

from ..torch.low_rank_world import Books, World, require_same
from ..torch.test_hook import Bucket
from .forms import FORMS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="triton interprets in this process"),
]
SEVERAL_PIECES = 2 * PIECE_ELEMENTS + 77_777


@contextmanager
def no_hidden_waits() -> Iterator[None]:
    """Make torch raise where the host waits for the device without saying so."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)  # it calls itself a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("elements", [1, 5000, SEVERAL_PIECES])
def test_equals_the_host_without_hidden_waits(form: str, elements: int) -> None:
    """Gradients come from a stream that is still busy with them; three steps with error feedback."""
    host = make_codec(form, workers=3)
    place = device_codec(host, "cuda")
    kept, held = ErrorFeedback(elements), DeviceFeedback(elements, place.device)
    rng, stream = np.random.default_rng(1), torch.cuda.Stream()
    for step in range(3):
        x = rng.standard_t(3, elements).astype(np.float32)
        given, context = torch.from_numpy(x).cuda(), ReductionContext(7, step, 2)
        torch.cuda.synchronize()
        right = HostVector(x, kept, x).start(host, context, tensors=(), on_nonfinite="raise")
        with torch.cuda.stream(stream), no_hidden_waits():
            busy = given * 0 - 5
            for _ in range(50):
                busy = busy * 1.0001
            tensor = torch.where(busy < 0, given, busy)  # what is there before the stream is done is something else
            ours = DeviceReduction(
                place.codec, place.staging, tensor, context, held, out=tensor, ready=place.staging.streams.mark()
            )
            while right.phase is not None and ours.phase is not None:
                np.testing.assert_array_equal(ours.phase.payloads, right.phase.payloads)
                sums, _ = simulate_switch(ours.phase.op, [ours.phase.payloads], host.lookup)
                for each in (right, ours):
                    each.on_results(sums, np.full(len(sums), 4, np.uint64))
        assert tensor.cpu().numpy().tobytes() == x.tobytes()
        np.testing.assert_array_equal(held.residual.cpu().numpy(), kept.residual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ranks_on_gpu_and_cpu_are_one_job(dtype: torch.dtype) -> None:
    """Rank 0 has its module on the GPU and rank 1 on the CPU: equal means, residuals as if both were on the CPU."""
    with ExitStack() as stack:
        jobs, states, modules = list[Any](), list[HopsumState](), list[nn.Module]()
        for name, devices in {"mixed": ("cuda", "cpu"), "plain": ("cpu", "cpu")}.items():
            for rank, device in enumerate(devices):
                url = f"memory://gpu-{name}-{dtype}?workers=2"
                jobs.append(stack.enter_context(hopsum.connect(url, rank=rank)))
                modules.append(nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 10)).to(device))
                states.append(HopsumState(jobs[-1], modules[-1]))
        for step in range(3):
            futures = []
            for number, (state, module) in enumerate(zip(states, modules, strict=True)):
                generator = torch.Generator().manual_seed(10 * step + number % 2)
                names = [name for name, _ in module.named_parameters()]
                elements = sum(each.numel() for each in module.parameters())
                gradient = torch.randn(elements, generator=generator).to(dtype)
                bucket: Any = Bucket(module, names, gradient.to(next(module.parameters()).device))
                futures.append(hopsum_hook(state, bucket))
            means = [future.wait().cpu() for future in futures]
            assert all(torch.equal(each, means[0]) for each in means)
        kept = [state.state_dict()["residuals"][state.owner] for state in states]
        assert all(torch.equal(kept[0][name], kept[2][name]) for name in kept[0])
        assert states[0].compression_stats()["bytes_from_device"] > 0
        assert states[1].compression_stats()["bytes_from_device"] == 0


def test_the_hook_does_not_wait_for_the_gradients() -> None:
    """The hook returns a future while the bucket is still being computed; nothing in it waits for the device."""
    with ExitStack() as stack:
        job = stack.enter_context(hopsum.connect("memory://gpu-hook?workers=1", rank=0))
        module = nn.Linear(4096, 1024, bias=False).cuda()
        state = HopsumState(job, module)
        gradient = torch.ones(4096 * 1024, device="cuda")
        hopsum_hook(state, Bucket(module, ["weight"], gradient)).wait()  # type: ignore[arg-type]
        before = state.state_dict()["residuals"][state.owner]["weight"]
        with no_hidden_waits():
            gradient.mul_(0).add_(2)
            future = hopsum_hook(state, Bucket(module, ["weight"], gradient))  # type: ignore[arg-type]
        mean = future.wait().cpu()
        left = state.state_dict()["residuals"][state.owner]["weight"]
        torch.testing.assert_close(mean + left, 2 + before, rtol=0, atol=1e-5)


def test_matrices_of_low_rank_together_with_those_on_the_host() -> None:
    """Rank 0's gradients are on the GPU: means and factors have the bytes of the rank on the CPU."""
    with ExitStack() as stack:
        world = World(stack, 2, devices=["cuda", "cpu"])
        books = Books(world)
        for step in range(4):
            books.step(world.draw(step))
        require_same(*world.factors())
        assert books.out() < 2e-5
        residuals = world.states[0]._residuals._feedback.values()
        assert any(isinstance(each, DeviceFeedback) for each in residuals)
