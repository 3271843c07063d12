# SPDX-License-Identifier: Apache-2.0
"""Ranks that train matrices of low rank in one process: a state and a communicator each, buckets made by hand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from hopsum.agent import AllReduceResult, Communicator, HostVector, SocketTraffic
from hopsum.codec import Codec, CollectiveError, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_phase
from hopsum.connection import connect
from hopsum.torch import HopsumState, hopsum_hook
from hopsum_wire import Op

from .test_hook import Bucket

WHOLE: Final = "thc:result_bits=8"
"""A codec whose results are whole sums: books balance to rounding."""
BUCKETS: Final = (("2.weight", "2.bias"), ("1.weight", "0.bias"), ("0.weight",))
"""The last layers first, as DDP has them."""
_numbers: Final = count()


def make_module() -> nn.Module:
    """Two matrices that pay, a convolution of 24 x 90 that pays for small ranks, and vectors."""
    convolution = nn.Conv2d(10, 24, 3, bias=False)
    return nn.ModuleDict({"0": nn.Linear(64, 80), "1": convolution, "2": nn.Linear(300, 20)})


Gradients = list[dict[str, torch.Tensor]]
"""Of each rank, by the name of the parameter."""


class World:
    """Some ranks, on the CPU or on their `devices`. `communicators` are their own if given, else of memory://."""

    def __init__(
        self,
        stack: ExitStack,
        workers: int,
        *,
        codec: str = WHOLE,
        communicators: Sequence[Communicator] = (),
        buckets: Sequence[Sequence[str]] = BUCKETS,
        own: Sequence[dict[str, Any]] = (),
        devices: Sequence[str] = (),
        **options: Any,
    ) -> None:
        url = f"memory://low-rank-{next(_numbers)}?workers={workers}"
        self.comms = list(communicators) or [
            stack.enter_context(connect(url, rank=rank, codec=codec, deadline_s=60.0)) for rank in range(workers)
        ]
        self._devices = list(devices) or ["cpu"] * workers
        self.modules = [make_module().to(device) for device in self._devices]
        options = {"low_rank": 2, "low_rank_start": 0} | options
        self.states = [
            HopsumState(comm, module, **options, **(own[comm.rank] if own else {}))
            for comm, module in zip(self.comms, self.modules, strict=True)
        ]
        self.buckets = buckets

    def draw(self, seed: int, *, rank: int = 4, dtype: torch.dtype = torch.float32) -> Gradients:
        """Return gradients of a rank that decays, other ones on each worker, with a common part."""
        drawn = []
        for worker in range(len(self.states)):
            found = {}
            for name, each in self.modules[0].named_parameters():
                shape, parts = (each.shape[0], each.numel() // each.shape[0]), torch.zeros(1)
                for which, generator in ((0, seed), (1, 1000 * seed + worker + 1)):
                    noise = torch.Generator().manual_seed(generator * 31 + len(name))
                    left = torch.randn(shape[0], rank, generator=noise) * 0.5 ** torch.arange(rank)
                    right = torch.randn(rank, shape[1], generator=noise)
                    parts = parts + left @ right / (1 + which)
                    parts = parts + 0.1 * torch.randn(shape, generator=noise)
                found[name] = parts.reshape(each.shape).to(dtype)
            drawn.append(found)
        return drawn

    def begin(self, rank: int, gradients: dict[str, torch.Tensor], only: Sequence[int] | None = None) -> list[Any]:
        """Hand the buckets of a backward pass of one rank to the hook. Return their buffers' futures."""
        futures = []
        for index, names in enumerate(self.buckets):
            if only is None or index in only:
                buffer = torch.cat([gradients[name].flatten() for name in names]).to(self._devices[rank])
                bucket = Bucket(self.modules[rank], names, buffer, index, index == len(self.buckets) - 1)
                futures.append(hopsum_hook(self.states[rank], bucket))  # type: ignore[arg-type]
        return futures

    def end(self, futures: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the means of one rank by name."""
        shapes = {name: each.shape for name, each in self.modules[0].named_parameters()}
        means: dict[str, torch.Tensor] = {}
        for names, future in zip(self.buckets, futures, strict=True):
            parts = torch.split(future.wait().cpu(), [shapes[name].numel() for name in names])
            means |= {name: part.view(shapes[name]).clone() for name, part in zip(names, parts, strict=True)}
        return means

    def step(self, gradients: Gradients) -> dict[str, torch.Tensor]:
        """Run a step on all ranks, and return the means, which have the same bytes everywhere."""
        futures = [self.begin(rank, each) for rank, each in enumerate(gradients)]
        means = [self.end(each) for each in futures]
        for each in means[1:]:
            require_same(means[0], each)
        return means[0]

    def residual(self, name: str) -> torch.Tensor:
        """Return the sum of the ranks' residuals of a parameter, float64[elements]."""
        total = torch.zeros(1, dtype=torch.float64)
        for state in self.states:
            held = state.state_dict()["residuals"][state.owner]
            if name in held:
                total = total + held[name].double()
        return total

    def factors(self) -> list[dict[str, torch.Tensor]]:
        """Return each rank's factors."""
        return [state.state_dict()["factors"] for state in self.states]


class Books:
    """Adds up gradients and means: what was not delivered has to be in the residuals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owed = {name: world.residual(name) for name, _ in world.modules[0].named_parameters()}

    def step(self, gradients: Gradients) -> dict[str, torch.Tensor]:
        """Run a step, and note it."""
        means = self._world.step(gradients)
        self.note(gradients, means)
        return means

    def note(self, gradients: Gradients, means: dict[str, torch.Tensor]) -> None:
        """Note gradients, and the means that were applied."""
        for name, mean in means.items():
            for each in gradients:
                self._owed[name] = self._owed[name] + each[name].double().flatten()
            self._owed[name] = self._owed[name] - len(gradients) * mean.double().flatten()

    def out(self, names: Collection[str] = ()) -> float:
        """Return by how much the books of parameters, of all by default, are out: the largest element."""
        owed = {name: self._owed[name] for name in names or self._owed}
        return max(float((each - self._world.residual(name)).abs().max()) for name, each in owed.items())


def require_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Raise AssertionError unless tensors have the same names and bytes."""
    assert first.keys() == second.keys()
    for name, each in first.items():
        assert torch.equal(each.contiguous().view(torch.uint8), second[name].contiguous().view(torch.uint8)), name


# ---- a network that does what the test says ----------------------------------------------------------------


class ScriptedNetwork:
    """Communicators of ranks in one process. Results come at once, or when the test releases them.

    Args:
        workers: of the job.
        codec: of the job.
        absent: returns the ranks that a chunk of the sum of a vector lacks, by the vector's number and the chunk's.
        late: returns the ranks whose ranges come too late, by the vector's number.
    """

    def __init__(
        self,
        workers: int,
        codec: str = WHOLE,
        *,
        absent: Callable[[int, int], set[int]] = lambda vector, chunk: set(),
        late: Callable[[int], set[int]] = lambda vector: set(),
    ) -> None:
        self.codec: Codec = make_codec(codec, workers=workers, backend="numpy")
        self.communicators = [ScriptedCommunicator(self, rank) for rank in range(workers)]
        self.errors: dict[int, Exception] = {}
        """What ends the all-reduce of a number, on all ranks alike."""
        self.lazy: set[int] = set()
        """Ranks that have no result before `release`."""
        self.contributors: dict[int, np.ndarray] = {}
        """By the vector's number."""
        self._absent, self._late = absent, late
        self._lock = threading.Lock()
        self._brought: dict[int, dict[int, tuple[HostVector, dict[str, Any], Future[AllReduceResult]]]] = {}
        self._held: list[deque[Callable[[], None]]] = [deque() for _ in range(workers)]

    def bring(self, rank: int, number: int, vector: HostVector, call: dict[str, Any]) -> Future[AllReduceResult]:
        """Take a rank's vector. The last rank sums for all."""
        future: Future[AllReduceResult] = Future()
        with self._lock:
            brought = self._brought.setdefault(number, {})
            brought[rank] = vector, call, future
            if len(brought) == len(self.communicators):
                for each, ended in enumerate(self._sum(number)):
                    self._held[each].append(ended)
        for each in range(len(self.communicators)):
            if each not in self.lazy:
                self.release(each)
        return future

    def release(self, rank: int, most: int = 1 << 30) -> int:
        """Hand a rank the next results. Return their number."""
        released = 0
        while self._held[rank] and released < most:
            self._held[rank].popleft()()
            released += 1
        return released

    def _sum(self, number: int) -> list[Callable[[], None]]:
        codec, workers = self.codec, len(self.communicators)
        vectors = [self._brought[number][rank] for rank in range(workers)]
        if number in self.errors:
            error = self.errors[number]
            for vector, _, _ in vectors:
                vector.rollback()
            return [partial(future.set_exception, error) for _, _, future in vectors]
        reductions = [
            vector.start(
                codec, ReductionContext(3, call["step"], rank), tensors=call["tensors"],
                on_nonfinite=call["on_nonfinite"],
            )
            for rank, (vector, call, _) in enumerate(vectors)
        ]  # fmt: skip
        errors: list[Exception | None] = [None] * workers
        while (phase := reductions[0].phase) is not None:
            present = np.ones((workers, len(phase.payloads)), np.bool_)
            for chunk in range(len(phase.payloads)):
                lacking = self._late(number) if phase.op == Op.MAX32 else self._absent(number, chunk)
                present[list(lacking), chunk] = False
            phases = [each.phase for each in reductions if each.phase is not None]
            results, contributors = simulate_phase(codec, phases, present)
            self.contributors[number] = contributors
            for rank, each in enumerate(reductions):
                try:
                    each.on_results(results, contributors)
                except CollectiveError as failure:
                    errors[rank] = failure
        ended = list[Callable[[], None]]()
        for (_, _, future), reduction, cause in zip(vectors, reductions, errors, strict=True):
            skipped = reduction.mean is None
            mean = np.zeros(0, np.float32) if skipped else reduction.mean
            result = AllReduceResult(mean, reduction.contributors, skipped, SocketTraffic(), 0.0)
            ended.append(partial(_set, future, cause, result))
        return ended


def _set(future: Future[AllReduceResult], error: Exception | None, result: AllReduceResult) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class ScriptedCommunicator:
    """The part of a communicator that the hook uses, of one rank."""

    on_host_only = is_newcomer = False

    def __init__(self, network: ScriptedNetwork, rank: int) -> None:
        self.rank, self.codec, self.workers = rank, network.codec, network.codec.workers
        self.log: list[object] = []
        """The elements of each vector, and "start" and "end" of groups, in the order of the calls."""
        self.broken: Exception | None = None
        self._network, self._submitted = network, 0

    def submit(
        self, x: np.ndarray, *, feedback: Any = None, out: np.ndarray | None = None, **call: Any
    ) -> Future[AllReduceResult]:
        if self.broken is not None:
            raise self.broken
        number, self._submitted = self._submitted, self._submitted + 1
        self.log.append(x.size)
        return self._network.bring(self.rank, number, HostVector(x, feedback, out), call)

    def group_start(self) -> None:
        self.log.append("start")

    def group_end(self) -> None:
        self.log.append("end")

    def note_step(self, step_s: float, wait_s: float) -> None: ...
