# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch through hopsum.allreduce, in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hopsum
from hopsum.communicator import Communicator

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def job() -> Iterator[Communicator]:
    with hopsum.connect("memory://tensors?workers=1", codec="fixed", backend="numpy", rank=0) as job:
        yield job


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_tensors_keep_shape_and_type(job: Communicator, dtype: str, shape: tuple[int, ...]) -> None:
    elements = int(torch.Size(shape).numel())
    tensor = (torch.arange(elements) - 3).reshape(shape).to(getattr(torch, dtype))
    mean = hopsum.allreduce(tensor, job)
    assert (mean.shape, mean.dtype, mean.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert torch.equal(mean, tensor)
    assert not elements or mean.data_ptr() != tensor.data_ptr()


def test_tensors_of_any_layout(job: Communicator) -> None:
    whole = torch.arange(48.0).reshape(2, 2, 3, 4)
    for tensor in (whole.permute(3, 1, 0, 2), whole[..., ::2], whole.to(memory_format=torch.channels_last)):
        assert torch.equal(hopsum.allreduce(tensor, job), tensor)


def test_parameters_and_gradients(job: Communicator) -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    (parameter**2).sum().backward()
    mean = hopsum.allreduce(parameter, job)
    assert mean.tolist() == [1, 2]
    assert not mean.requires_grad
    assert hopsum.allreduce(parameter.grad, job, out=parameter.grad) is parameter.grad
    assert parameter.grad.tolist() == [2, 4]
    assert hopsum.allreduce(parameter, job, out=parameter) is parameter


def test_out_in_another_layout(job: Communicator) -> None:
    tensor, out = torch.arange(6.0).reshape(2, 3), torch.zeros(3, 2).T
    future = hopsum.allreduce(tensor, job, out=out, async_op=True, name="a")
    assert future.result(60) is out
    assert torch.equal(out, tensor)


def test_what_does_not_fit(job: Communicator) -> None:
    for wrong in (torch.arange(3), torch.zeros(3, dtype=torch.complex64), torch.eye(3).to_sparse()):
        with pytest.raises(TypeError, match="hopsum sums dense floating-point tensors"):
            hopsum.allreduce(wrong, job)
    tensor = torch.zeros(2, 3)
    for out in (torch.zeros(6), torch.zeros(2, 3, dtype=torch.float64), tensor.numpy()):
        with pytest.raises(TypeError, match=r"out is .*, but the tensor torch.float32\[2, 3\]"):
            hopsum.allreduce(tensor, job, out=out)
    assert job.statistics.allreduces == 0
