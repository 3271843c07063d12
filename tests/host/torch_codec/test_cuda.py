# SPDX-License-Identifier: Apache-2.0
"""The kernels as they run on a GPU, far beyond its caches. All of it is skipped on machines without one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hopsum.codec import LookupTable, ReductionContext
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.vector_reduction import SharedRanges
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import TorchKernels
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum_evaluation.torch.bench import Inputs, compare_sample

from .phases import FORMS, decode, encode, host_thc, subtract

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="triton interprets in this process"),
]
ELEMENTS = 1 << 28
INT32_TABLE = LookupTable((*range(15), 127), 1e-3)


@pytest.fixture(params=FORMS, ids=str)
def form(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    pytest.importorskip("triton", reason="triton is not installed")
    yield request.param
    torch.cuda.empty_cache()


def test_a_quarter_of_a_billion_elements_equal_the_twin(form: dict[str, object]) -> None:
    """First and last blocks of payloads and mean, and all ranges."""
    inputs = Inputs.make(TorchThc(host_thc(8, **form), device="cuda", backend="triton"), ELEMENTS, seed=3)
    assert compare_sample(inputs) == ""
    assert torch.equal(TorchKernels().root_mean_square(inputs.x.view(-1, 1024)), inputs.own)


def test_all_codes_of_sixteen_million_elements_equal_the_twin(form: dict[str, object]) -> None:
    codec, twin = (TorchThc(host_thc(8, **form), device="cuda", backend=backend) for backend in ("triton", "torch"))
    x = torch.randn(1 << 24, device="cuda")
    own, context = codec.ranges(x), ReductionContext(1, 2, 3)
    assert torch.equal(encode(codec, x, own, own, context), encode(twin, x, own, own, context))


@pytest.mark.parametrize("table", [None, INT32_TABLE])
@pytest.mark.parametrize("stretch", [0.3, 1.0, 1.7])
def test_stochastic_rounding_equals_numpy(table: LookupTable | None, stretch: float) -> None:
    compare_with_numpy({"rounding": "stochastic", "table": table}, stretch)


@pytest.mark.parametrize("stretch", [0.3, 1.0])
def test_forms_equal_numpy(form: dict[str, object], stretch: float) -> None:
    compare_with_numpy(form, stretch)


def compare_with_numpy(form: dict[str, object], stretch: float) -> None:
    """A vector that ends within a block and within a program, and contributors of three sets."""
    numpy = host_thc(2, **form)
    codec, twin = TorchThc(numpy, device="cuda", backend="triton"), TorchThc(numpy, backend="torch")
    rng = np.random.default_rng(1)
    x = torch.from_numpy((rng.standard_t(3, 99_999) * np.logspace(-3, 3, 99_999)).astype(np.float32))
    context, device = ReductionContext(1 << 63, 5, 1), codec.device
    own = twin.ranges(x)
    assert torch.equal(codec.ranges(x.to(device)).cpu(), own)
    shared = own * stretch
    payloads = encode(twin, x, own, shared, context)
    assert torch.equal(encode(codec, x.to(device), own.to(device), shared.to(device), context).cpu(), payloads)
    settled, right = x.to(device), x.clone()
    subtract(codec, payloads.to(device), shared.to(device), context, settled)
    subtract(twin, payloads, shared, context, right)
    assert settled.cpu().numpy().tobytes() == right.numpy().tobytes()
    bits, agreed = own.numpy().view(np.uint32), SharedRanges(shared.numpy())
    np.testing.assert_array_equal(numpy.encode(x.numpy(), bits, agreed, context), payloads)
    bitmaps = rng.integers(1, 4, len(own)).astype(np.uint64)
    present = (bitmaps >> np.arange(2, dtype=np.uint64)[:, None] & np.uint64(1)).astype(np.bool_)
    results, _ = simulate_switch(numpy.op, [payloads.numpy()] * 2, numpy.lookup, present)
    mean = decode(codec, torch.from_numpy(results).to(device), bitmaps, shared.to(device), context, len(x))
    assert mean.cpu().numpy().tobytes() == numpy.decode(results, bitmaps, agreed, len(x), context).tobytes()


def test_error_feedback_keeps_what_is_not_delivered(form: dict[str, object]) -> None:
    codec, twin = (TorchThc(host_thc(8, **form), device="cuda", backend=backend) for backend in ("triton", "torch"))
    x = torch.randn(1 << 20, device="cuda")
    feedback = DeviceFeedback(x.numel(), "cuda")
    for step in range(3):
        context, before = ReductionContext(1, step, 0), feedback.residual.clone()
        own = feedback.compensate(codec, x)
        payloads = encode(codec, feedback.pending, own, own, context)
        left = x + before
        subtract(twin, payloads, own, context, left)
        subtract(codec, payloads, own, context, feedback.pending)
        feedback.commit()
        assert torch.equal(feedback.residual, left)
