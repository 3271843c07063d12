# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not fit together are refused, with the numbers, and change nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hopsum.codec import CodecError, LookupTable, ReductionContext
from hopsum.torch.codec import TorchThc
from hopsum.torch.codec.torch_kernels import DeviceTable
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum_evaluation.torch import bench

pytestmark = pytest.mark.system
CONTEXT = ReductionContext(1, 2, 0)
ELEMENTS = 2000


@pytest.fixture
def codec() -> TorchThc:
    return TorchThc(4, backend="torch")


def encoded(codec: TorchThc) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, ELEMENTS)
    own = codec.ranges(x)
    return x, own, bench.encode(codec, x, own, own, CONTEXT)


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


def test_sums_that_the_table_cannot_make(backend: str) -> None:
    codec = TorchThc(4, backend=backend)
    _, own, _ = encoded(codec)
    granularity, counts = codec.table.granularity, torch.tensor([2, 1], dtype=torch.int32)
    for lane in (0, 517, 975):
        results = torch.full((2, 1024), granularity, dtype=torch.uint8)
        bench.decode(codec, results, counts, own, CONTEXT, ELEMENTS)
        results[1, lane] += 1
        message = rf"chunk 1: a lane of {granularity + 1} from 1 workers, but the table ends at {granularity}"
        with pytest.raises(CodecError, match=message):
            bench.decode(codec, results, counts, own, CONTEXT, ELEMENTS)


def test_codecs_that_cannot_be_made() -> None:
    with pytest.raises(CodecError, match="0 workers"):
        TorchThc(0)
    with pytest.raises(CodecError, match=r"8 workers \* granularity 127 = 1016 overflows a lane"):
        TorchThc(8, table=LookupTable((*range(15), 127), 1e-3))
    with pytest.raises(CodecError, match=r"truncates 0.9 of .*, beyond 0.126 standard deviations: at least 0.25"):
        TorchThc(2, table=LookupTable((*range(15), 16), 0.9))
    with pytest.raises(CodecError, match="torch backend 'cupy': one of auto, torch, triton"):
        TorchThc(2, backend="cupy")
    with pytest.raises(CodecError, match="device cuda:77: torch cannot use it"):
        TorchThc(2, device="cuda:77")
    for values in ((*range(16), 20), (*range(15), 128)):
        with pytest.raises(
            CodecError, match=f"{len(values)} values up to {values[-1]}: .* at most 16 values up to 127"
        ):
            DeviceTable.of(values, 3.0, torch.device("cpu"))


def test_a_short_table_is_padded_with_its_last_value() -> None:
    assert DeviceTable.of((0, 1, 3, 7), 2.0, torch.device("cpu")).values.tolist() == [0, 1, 3, *[7] * 13]


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
    feedback.give_back()
    assert not feedback.residual.any()
    feedback.compensate(codec, x)
    feedback.commit()
    assert torch.equal(feedback.residual, x)


def test_triton_is_not_imported_without_need() -> None:
    code = (
        "import sys; from hopsum.torch.codec import TorchThc; TorchThc(4, device='cpu');"
        "sys.exit('triton' in sys.modules and 'imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
