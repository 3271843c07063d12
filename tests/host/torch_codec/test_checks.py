# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not fit together are refused, with the numbers, and change nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from hopsum.codec import CodecError, ReductionContext
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import DeviceTable
from hopsum.torch.device_reduction import DeviceFeedback

from .phases import contributors, decode, encode, host_thc

pytestmark = pytest.mark.system
CONTEXT = ReductionContext(1, 2, 0)
ELEMENTS = 2000


@pytest.fixture
def codec() -> TorchThc:
    return TorchThc(host_thc(4), backend="torch")


def encoded(codec: TorchThc) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, ELEMENTS)
    own = codec.ranges(x)
    return x, own, encode(codec, x, own, own, CONTEXT)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(8, dtype=torch.float64), r"not torch.float64\[8\]; flatten"),
        (torch.zeros(2, 8), r"not torch.float32\[2, 8\]"),
        (torch.zeros(0), r"at least one element"),
        (torch.zeros(8)[::2], "not contiguous"),
        (torch.zeros(8, device="meta"), "on meta, the codec on cpu"),
    ],
)
def test_vectors(codec: TorchThc, x: torch.Tensor, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.ranges(x)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e38])
def test_a_block_that_must_not_be_summed_has_an_infinite_range(codec: TorchThc, bad: float) -> None:
    x = torch.ones(ELEMENTS)
    x[1500] = bad
    assert codec.ranges(x).isinf().tolist() == [False, True]


@pytest.mark.parametrize("form", [{"result_bits": 8}, {"rounding": "stochastic"}], ids=str)
def test_sums_that_the_table_cannot_make(backend: str, form: dict[str, object]) -> None:
    codec = TorchThc(host_thc(4, **form), backend=backend)
    _, own, _ = encoded(codec)
    granularity, bitmaps = codec.table.granularity, np.array([9, 4], np.uint64)
    for lane in (0, 517, 975):
        results = torch.full((2, 1024), granularity, dtype=torch.uint8)
        decode(codec, results, bitmaps, own, CONTEXT, ELEMENTS)
        results[1, lane] += 1
        message = rf"chunk 1: a lane of {granularity + 1} from 1 workers, but the table ends at {granularity}"
        with pytest.raises(CodecError, match=message):
            decode(codec, results, bitmaps, own, CONTEXT, ELEMENTS)


@pytest.mark.parametrize("form", [{}, {"result_bits": 8}, {"rounding": "stochastic"}], ids=str)
@pytest.mark.parametrize("bad", [0, 16])
def test_contributors_that_the_job_does_not_have(form: dict[str, object], bad: int) -> None:
    codec = TorchThc(host_thc(4, **form), backend="torch")
    with pytest.raises(CodecError, match=f"chunk 1: contributors {bad:#x} of a job of 4 workers"):
        codec.pack_contributors(np.array([15, bad], np.uint64))


def test_offsets_are_made_once_for_each_set_of_contributors() -> None:
    """Requantised: the sum of known dithers. Whole sums: the middle of their levels as well."""
    for form in ({}, {"result_bits": 8}):
        codec = TorchThc(host_thc(3, **form), backend="torch")
        assert codec.dither is not None
        middle = codec.dither.unit * codec.dither.granularity // 2 if form else 0
        for bitmaps in ([7] * 5, [7, 2, 5, 7, 2]):
            made = contributors(codec, np.array(bitmaps, np.uint64))
            assert len(made.offsets) == len(set(bitmaps))
            for block, bitmap in enumerate(bitmaps):
                inside = [rank for rank in range(3) if bitmap >> rank & 1]
                right = codec.dither.own[inside].sum(axis=0) + len(inside) * middle
                assert made.counts[block] == len(inside)
                assert made.offsets[made.rows[block]].tolist() == right.tolist()
    bare = contributors(TorchThc(host_thc(3, rounding="stochastic"), backend="torch"), np.array([7, 1], np.uint64))
    assert (bare.counts.tolist(), len(bare.rows), len(bare.offsets)) == ([3, 1], 0, 0)


def test_codecs_that_cannot_be_made() -> None:
    with pytest.raises(CodecError, match="torch backend 'cupy': one of auto, torch, triton"):
        TorchThc(host_thc(2), backend="cupy")
    with pytest.raises(CodecError, match="device cuda:77: torch cannot use it"):
        TorchThc(host_thc(2), device="cuda:77")
    with pytest.raises(CodecError, match=r"thc with lane_bits=16 has no form for devices: .*rounding, bits and result"):
        TorchThc(host_thc(2, rounding="stochastic", lane_bits=16))
    with pytest.raises(CodecError, match="thc with code_group=8 has no form for devices: it has one for lane_bits=8"):
        TorchThc(host_thc(2, result_bits=8, code_group=8))
    for values in ((*range(16), 20), (*range(15), 128)):
        with pytest.raises(
            CodecError, match=f"{len(values)} values up to {values[-1]}: .* at most 16 values up to 127"
        ):
            DeviceTable.from_values(values, 3.0, torch.device("cpu"))


def test_a_short_table_is_padded_with_its_last_value() -> None:
    assert DeviceTable.from_values((0, 1, 3, 7), 2.0, torch.device("cpu")).values.tolist() == [0, 1, 3, *[7] * 13]


def test_feedback_that_is_busy_or_of_another_vector(codec: TorchThc) -> None:
    feedback = DeviceFeedback(ELEMENTS)
    x = encoded(codec)[0]
    with pytest.raises(CodecError, match="no vector was compensated"):
        feedback.commit()
    with pytest.raises(CodecError, match="vector of 10 elements for an error feedback of 2000"):
        feedback.compensate(codec, torch.zeros(10))
    feedback.compensate(codec, x)
    with pytest.raises(CodecError, match="neither committed nor given back"):
        feedback.compensate(codec, x)
    assert torch.equal(feedback.pending, x)
    feedback.rollback()
    assert not feedback.residual.any()
    feedback.compensate(codec, x)
    feedback.commit()
    assert torch.equal(feedback.residual, x)


def test_triton_is_not_imported_without_need() -> None:
    code = (
        "import sys; from hopsum.codec.thc import Thc; from hopsum.torch.codec import TorchThc;"
        "TorchThc(Thc(4), device='cpu');"
        "sys.exit('triton' in sys.modules and 'imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
