# SPDX-License-Identifier: Apache-2.0
"""Residuals by parameter, buckets whose sums come at once, fragments of a model, and tensors in hopsum.allreduce."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import hopsum
from hopsum.agent import AllReduceResult, Communicator, SocketTraffic
from hopsum.codec import ErrorFeedback
from hopsum.codec.interface import NonFiniteError
from hopsum.connection import connect
from hopsum.torch import DiLoCo, HopsumState
from hopsum.torch.buckets import Sender
from hopsum.torch.diloco import Fragment, make_fragments
from hopsum.torch.residuals import Residuals, bare_names, fit_residuals, own_names
from hopsum.torch.step import Step

SIZES = {"a": 3, "b": 1, "c": 4, "d": 2, "e": 7}


def test_the_same_layout_is_the_same_feedback() -> None:
    residuals = Residuals()
    assert residuals.feedback(["a", "b"], [3, 1]) is residuals.feedback(["a", "b"], [3, 1])


@pytest.mark.parametrize("seed", range(5))
def test_random_layouts_against_a_plain_dictionary(seed: int) -> None:
    rng, residuals = random.Random(seed), Residuals()
    truth: dict[str, np.ndarray] = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    for turn in range(40):
        names = rng.sample(sorted(SIZES), rng.randint(1, len(SIZES)))
        feedback = residuals.feedback(names, [SIZES[name] for name in names])
        np.testing.assert_array_equal(feedback.residual, np.concatenate([truth[name] for name in names]))
        feedback.compensate(np.full(feedback.residual.size, turn, np.float32))
        feedback.commit(None)
        for name in names:
            truth[name] = truth[name] + np.float32(turn)
        if rng.random() < 0.2:
            copied, residuals = residuals.as_dict(), Residuals()
            residuals.load(copied)
    for name, residual in residuals.as_dict().items():
        np.testing.assert_array_equal(residual, truth[name])


def test_loading_replaces_and_copies() -> None:
    residuals = Residuals()
    residuals.feedback(["a"], [3]).residual[:] = 1
    loaded = {"b": torch.ones(1)}
    residuals.load(loaded)
    loaded["b"][0] = 5
    assert {name: each.tolist() for name, each in residuals.as_dict().items()} == {"b": [1.0]}


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda model: model,
    "compile": torch.compile,
    "checkpoint": lambda model: nn.Sequential(model[0], checkpoint_wrapper(model[1])),
    "module": nn.DataParallel,
    "module of compile": lambda model: nn.DataParallel(torch.compile(model)),
    "forward_module": lambda model: nn.ModuleDict({"_forward_module": model}),
}


def make_wrapped(how: str) -> nn.Module:
    made: nn.Module = WRAPPERS[how](nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 4))))
    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's own compiler
@pytest.mark.parametrize("saved_in", WRAPPERS)
@pytest.mark.parametrize("loaded_in", WRAPPERS)
def test_a_state_knows_its_model_in_every_wrapper(saved_in: str, loaded_in: str) -> None:
    first, second = make_wrapped(saved_in), make_wrapped(loaded_in)
    sizes = {name: each.numel() for name, each in first.named_parameters()}
    with connect("memory://wrappers?workers=1", rank=0, codec="thc") as comm:
        states = [HopsumState(comm, model) for model in (first, second)]
        # By the names of the wrapper, which states had once.
        old = {name: torch.full((size,), float(size)) for name, size in sizes.items()}
        states[0].load_state_dict({**states[0].state_dict(), "residuals": {"0": old}})
        states[1].load_state_dict(states[0].state_dict())
        loaded = states[1].state_dict()["residuals"]["0"]
        assert [(each.numel(), int(each[0])) for each in loaded.values()] == [(size, size) for size in sizes.values()]
        unpickled = pickle.loads(pickle.dumps(states[0]))
        unpickled.attach(comm, second)
        assert unpickled.state_dict()["residuals"]["0"].keys() == loaded.keys()
        outer = [DiLoCo(model, comm, sync_every=2) for model in (first, second)]
        outer[1].load_state_dict(outer[0].state_dict())
        for each, other in zip(first.parameters(), outer[1].fragments[0].global_parameters, strict=True):
            assert torch.equal(each, other)


def test_names_that_a_model_has_itself() -> None:
    model = nn.ModuleDict({"module": nn.Linear(3, 2), "_orig_mod": nn.Linear(3, 2), "x": nn.Linear(3, 2)})
    names = list(dict(model.named_parameters()))
    pair = ["weight", "_orig_mod.weight"]
    assert bare_names(pair) == dict(zip(pair, pair, strict=True))
    assert own_names(names, names) == {name: name for name in names}
    ones = torch.ones(1)
    with pytest.raises(ValueError, match=r"residual of '_orig_mod.a' .*no such parameter"):
        fit_residuals({"a": ones, "_orig_mod.a": ones}, {"a": 1})


def test_the_last_allreduce_can_be_undone() -> None:
    feedback = Residuals().feedback(["a", "b"], [3, 1])
    feedback.residual[:] = [1, 2, 3, 4]
    sent = feedback.compensate(np.full(4, 10, np.float32))
    assert sent.tolist() == [11, 12, 13, 14]
    feedback.commit(np.full(4, 9, np.float32))
    feedback.rollback(slice(1, 3))
    assert feedback.residual.tolist() == [2, 2, 3, 5]
    feedback.rollback(slice(None))
    assert feedback.residual.tolist() == [1, 2, 3, 4]
    feedback.compensate(np.full(4, 10, np.float32))
    feedback.rollback()
    feedback.rollback(slice(None))
    assert feedback.residual.tolist() == [1, 2, 3, 4]


def test_what_can_be_undone_is_nobody_elses() -> None:
    """Error feedbacks of one length share vectors, but not the one that an undo needs."""
    first, second = ErrorFeedback(4, revocable=True), ErrorFeedback(4, revocable=True)
    for value in (1, 2):
        for feedback in (first, second):
            feedback.compensate(np.full(4, value, np.float32))
            feedback.commit(None)
    first.rollback(slice(None))
    assert first.residual.tolist() == [1.0] * 4
    second.compensate(np.full(4, 5, np.float32))
    second.rollback()
    second.rollback(slice(None))  # nothing is left to undo
    assert second.residual.tolist() == [3.0] * 4
    third = ErrorFeedback(4, revocable=True)
    third.compensate(np.full(4, 9, np.float32))
    assert (first.residual.tolist(), second.residual.tolist()) == ([1.0] * 4, [3.0] * 4)


def test_reading_clearing_and_scaling() -> None:
    residuals = Residuals()
    residuals.feedback(["a", "c"], [3, 4]).residual[:] = 2
    residuals.scale(0.5)
    read = residuals.read("a")
    assert read is not None
    assert read.tolist() == [1, 1, 1]
    residuals.clear("a")
    assert read.tolist() == [1, 1, 1]
    assert residuals.read("a") is None
    assert residuals.read("b") is None
    assert {name: each.tolist() for name, each in residuals.as_dict().items()} == {"a": [0] * 3, "c": [1] * 4}


MEAN = 7.0


class InstantAgent:
    """Its mean is there at once; the feedback keeps everything but what was delivered."""

    rank = 0

    def submit(self, x: np.ndarray, *, feedback: Any, out: np.ndarray, **_: Any) -> Future[AllReduceResult]:
        feedback.compensate(x)
        out[:] = MEAN
        mean = out
        feedback.commit(mean)
        future: Future[AllReduceResult] = Future()
        future.set_result(AllReduceResult(mean, np.zeros(0, np.uint64), False, SocketTraffic(), 0.0))
        return future


class HeldAgent(InstantAgent):
    """Its means are there when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[AllReduceResult]] = []
        self._results: list[AllReduceResult] = []

    def submit(self, x: np.ndarray, *, feedback: Any, out: np.ndarray, **_: Any) -> Future[AllReduceResult]:
        self._results.append(super().submit(x, feedback=feedback, out=out).result())
        self.futures.append(Future())
        return self.futures[-1]

    def release(self, number: int) -> None:
        self.futures[number].set_result(self._results[number])


class InstantGroup:
    """The only rank."""

    def average(self, x: torch.Tensor) -> torch.futures.Future[Any]:
        return self.merge_flags(x)

    def merge_flags(self, flags: torch.Tensor) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([flags])
        return future


class OneBucket:
    def __init__(self, module: nn.Module, gradients: torch.Tensor) -> None:
        self._parameters, self._gradients = list(module.parameters()), gradients

    def buffer(self) -> torch.Tensor:
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        return list(self._parameters)

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def make_sender(
    agent: InstantAgent,
    names: dict[nn.Parameter, str],
    plain: tuple[str, ...],
    residuals: Residuals,
    drops_unused: bool,
) -> Sender:
    return Sender(
        communicator=agent,  # type: ignore[arg-type]
        names=names,
        uncompressed=frozenset(plain),
        group=InstantGroup(),  # type: ignore[arg-type]
        drops_unused=drops_unused,
        residuals=residuals,
        error_feedback=True,
        on_nonfinite="raise",
    )


@pytest.mark.parametrize("plain", [(), ("bias",)])
def test_whether_a_parameter_has_a_gradient_is_seen_before_its_mean(plain: tuple[str, ...]) -> None:
    module, residuals = nn.Linear(3, 1), Residuals()
    residuals.load({"weight": torch.full((3,), 2.0), "bias": torch.full((1,), 5.0)})
    names = {parameter: name for name, parameter in module.named_parameters()}
    sender = make_sender(InstantAgent(), names, plain, residuals, drops_unused=True)
    gradients, step = torch.tensor([1.0, 0.0, 1.0, 0.0]), Step(residuals.clear)
    portions = sender.send(OneBucket(module, gradients), step, number=0, compress=True)
    step.complete()
    assert step.over.result() is False
    for each in portions:
        each.scatter()
    assert gradients.tolist() == [MEAN, MEAN, MEAN, 0]
    left = {name: each.tolist() for name, each in residuals.as_dict().items()}
    assert left == {"weight": [1 + 2 - MEAN, 2 - MEAN, 1 + 2 - MEAN], "bias": [5]}


def two_buckets(*, together: bool, plain: tuple[str, ...] = ()) -> tuple[HeldAgent, Step, list[str]]:
    """Begin a step of two buckets with a layer each; return what is told as each is delivered."""
    agent, residuals, told = HeldAgent(), Residuals(), list[str]()
    layers = {"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)}
    named = {each: f"{name}.{own}" for name, layer in layers.items() for own, each in layer.named_parameters()}
    sender = make_sender(agent, named, plain, residuals, drops_unused=False)
    step = Step(residuals.clear, together=together)
    for name, layer in layers.items():
        portions = sender.send(OneBucket(layer, torch.ones(3)), step, number=0, compress=True)
        step.deliver(portions, lambda name=name: told.append(name))  # type: ignore[misc]
    step.complete()
    return agent, step, told


def test_a_bucket_is_delivered_with_its_own_mean() -> None:
    agent, step, told = two_buckets(together=False, plain=("b.bias",))
    assert told == []
    agent.release(1)
    assert told == ["b"]
    assert not step.over.done()
    agent.release(0)
    assert told == ["b", "a"]
    assert step.over.result() is False


def test_where_the_end_of_a_step_counts_no_bucket_is_delivered_before() -> None:
    agent, step, told = two_buckets(together=True)
    agent.release(0)
    assert told == []
    agent.release(1)
    assert told == ["a", "b"]
    assert step.over.result() is False


def test_a_bucket_without_a_mean_hears_why_at_the_end_and_residuals_are_what_they_were() -> None:
    agent, step, told = two_buckets(together=False)
    failure = NonFiniteError("NaN", 1)
    agent.futures[0].set_exception(failure)
    assert told == []
    agent.release(1)
    assert told == ["a", "b"]
    assert step.over.exception() is failure


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


def test_loading_takes_as_many_looks_as_there_are_parameters() -> None:
    """10,000 parameters of a mixture of experts took half a minute."""

    class Counted(dict[Any, Any]):
        looks = 0

        def __iter__(self) -> Iterator[Any]:
            Counted.looks += len(self)
            return super().__iter__()

        def values(self) -> Any:
            Counted.looks += len(self)
            return super().values()

        def items(self) -> Any:
            Counted.looks += len(self)
            return super().items()

    residuals = Residuals()
    residuals._places, residuals._feedback = Counted(), Counted()
    saved = {f"expert{number}": torch.full((2,), float(number)) for number in range(300)}
    residuals.load(saved)
    # In other company, and back.
    residuals.feedback(list(saved), [2] * len(saved))
    assert Counted.looks <= 10 * len(saved)
    assert all(torch.equal(each, saved[name]) for name, each in residuals.as_dict().items())
