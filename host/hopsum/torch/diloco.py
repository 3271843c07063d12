# SPDX-License-Identifier: Apache-2.0
"""DiLoCo: replicas train by themselves, and their changes are averaged every so many steps.

    diloco = DiLoCo(model, comm, sync_every=100)
    for batch in batches:
        ...  # forward, backward, and a step of the inner optimiser, without DistributedDataParallel
        diloco.step()
    diloco.finish()

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105), and for
fragments "Streaming DiLoCo with overlapping communication" (arXiv 2501.18512):

    a fragment is sent      every `sync_every` steps, each fragment at its own time. The communicator averages the
                            pseudo-gradient: the global parameters less the local ones. Error feedback keeps what the
                            sum does not deliver
    its mean is applied     `fragment_sync_delay` steps later. Until then inner steps continue during the all-reduce.
                            The outer optimiser steps on the global parameters, which are the same on all replicas.
                            The local ones become alpha * local + (1 - alpha) * global

A synchronisation that fails is as if it had not been: parameters, optimiser, error feedback and factors stay as they
were, and the next pseudo-gradient of the fragment has all that was not delivered.

A fragment goes the way of a bucket of the DDP hook: `Sender` begins its sums, whole or as factors of low rank, and a
`Step` ends them together.

Fragments are the parameters that are synchronised together. The local parameters are those that the model computes
with. They differ between the replicas. The global parameters are float32 on the CPU, and are the same on all replicas.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

import numpy as np
import torch
from torch import nn

from hopsum.agent import AllReduceResult, Communicator, MismatchError
from hopsum.codec.interface import Floats, feeds_back
from hopsum.config import hook_environment
from hopsum.torch.buckets import Sender
from hopsum.torch.low_rank import matrices_of, require_low_rank
from hopsum.torch.low_rank_factors import Factors
from hopsum.torch.options import settings_from
from hopsum.torch.residuals import RankStateDict, Residuals, bare_names, norm_of, own_names, redistribute
from hopsum.torch.step import BucketSlice, Step
from hopsum.torch.step_times import ratio
from hopsum.torch.tensor_parallel import require_no_copies
from hopsum.torch.tensors import clamp_to_float16

# ---- fragments of a model ----------------------------------------------------------------------------------


class Fragment:
    """Parameters by name, and their global values, which begin as the local ones are.

    Args:
        parameters: float tensors of the model, or the DTensors of FSDP2, of which this rank's shard is taken.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.names = tuple(parameters)
        self._local = list(parameters.values())
        self.global_parameters = [
            nn.Parameter(_data(each).to("cpu", torch.float32, copy=True)) for each in parameters.values()
        ]
        """float32 on the CPU, in the order of the names, for the outer optimiser."""
        self.sizes = tuple(each.numel() for each in self.global_parameters)
        self.complex_names = frozenset(name for name, each in parameters.items() if each.is_complex())
        """Parameters whose global values are pairs of real numbers."""
        self.synced_at = 0
        """The inner step at which the fragment was last sent."""

    @property
    def elements(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(self.sizes)

    def pseudo_gradient(self) -> Floats:
        """Return the global less the local parameters, float32[elements], a new array.

        The local values are compared with what `merge` writes: the global ones, rounded to the type of the parameter.
        """
        vector = torch.empty(self.elements, dtype=torch.float32, device="cpu")
        places = torch.split(vector, list(self.sizes))
        for place, local, shared in zip(places, self._local, self.global_parameters, strict=True):
            # A bfloat16 replica that made no step has a pseudo-gradient of 0, and not the rounding of the global
            # values.
            data = _data(local)
            start = _rounded(shared.detach(), data.dtype).float()
            torch.sub(start, data.to("cpu", torch.float32), out=place.view(shared.shape))
        return vector.numpy()

    def set_gradients(self, mean: Floats) -> None:
        """Make a vector, float32[elements], the gradients of the global parameters. They keep its memory."""
        gradients = torch.split(torch.from_numpy(mean), list(self.sizes))
        for each, gradient in zip(self.global_parameters, gradients, strict=True):
            # A view: the outer optimiser reads the mean where the communicator wrote it.
            each.grad = gradient.view(each.shape)

    def clear_gradients(self) -> None:
        """Take the gradients of the global parameters away, so that the outer optimiser passes them over."""
        for each in self.global_parameters:
            each.grad = None

    def merge(self, alpha: float = 0.0) -> None:
        """Set the local parameters to alpha * local + (1 - alpha) * global, rounded to their type."""
        with torch.no_grad():
            for local, shared in zip(self._local, self.global_parameters, strict=True):
                data = _data(local)
                if alpha:
                    mixed = torch.lerp(shared, data.to("cpu", torch.float32), alpha)
                    data.copy_(_rounded(mixed, data.dtype))
                else:
                    data.copy_(_rounded(shared, data.dtype))

    def read_local(self) -> list[torch.Tensor]:
        """Return copies of the local parameters, where they are."""
        return [_data(each).clone() for each in self._local]

    def write_local(self, values: Sequence[torch.Tensor]) -> None:
        """Set the local parameters to values of `read_local`."""
        with torch.no_grad():
            for local, value in zip(self._local, values, strict=True):
                _data(local).copy_(value)

    def digest(self, words: str) -> str:
        """Return 16 hexadecimal digits of a SHA-256 of words, names and global parameters, equal on equal replicas."""
        found = hashlib.sha256(f"{words}, {self.names}".encode())
        for each in self.global_parameters:
            found.update(each.detach().numpy().data)
        return found.hexdigest()[:16]


def make_fragments(model: nn.Module, fragments: int | Sequence[nn.Module]) -> list[Fragment]:
    """Return the parameters that require gradients, cut into fragments.

    Args:
        fragments: a number: so many runs of parameters in the order of the model, of about as many elements. Or
            modules of the model, a fragment each, which have all of these parameters, and none of them twice.

    Raises:
        ValueError: no such parameter, fewer of them than fragments, or modules that lack some or share some; tensor
            parallelism replicates some.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    named = {bare: parameters[name] for name, bare in bare_names(parameters).items()}
    if not named:
        raise ValueError(f"{type(model).__name__} has no parameter that requires gradients")
    require_no_copies(named, "DiLoCo")
    groups = _runs(named, fragments) if isinstance(fragments, int) else _of_modules(named, fragments)
    return [Fragment({name: named[name] for name in group}) for group in groups]


def _runs(named: Mapping[str, nn.Parameter], count: int) -> list[list[str]]:
    """Return runs of names with about as many elements each, and one name at least."""
    if not 1 <= count <= len(named):
        raise ValueError(f"fragments={count}: 1 to {len(named)}, the parameters of the model that require gradients")
    total = sum(each.numel() for each in named.values())
    groups: list[list[str]] = [[]]
    before = 0
    for number, (name, each) in enumerate(named.items()):
        middle = before + each.numel() / 2
        # Each fragment needs a parameter: the last ones are cut off in time.
        left, missing = len(named) - number, count - len(groups)
        if groups[-1] and (left == missing or (missing and middle * count >= total * len(groups))):
            groups.append([])
        groups[-1].append(name)
        before += each.numel()
    return groups


def _of_modules(named: Mapping[str, nn.Parameter], modules: Sequence[nn.Module]) -> list[list[str]]:
    names = {parameter: name for name, parameter in named.items()}
    groups = [[names[each] for each in module.parameters() if each in names] for module in modules]
    found = [name for group in groups for name in group]
    if empty := [number for number, group in enumerate(groups) if not group]:
        raise ValueError(f"fragment {empty[0]} has no parameter of the model that requires gradients")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ValueError(f"{', '.join(twice[:4])}: in more than one fragment; each parameter is in one")
    if missing := [name for name in named if name not in set(found)]:
        raise ValueError(f"{', '.join(missing[:4])}: in no fragment; each parameter that requires gradients is in one")
    return groups


def _data(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's own memory, of a DTensor this rank's shard; complex elements as pairs of real numbers."""
    tensor: Any = parameter.detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return torch.view_as_real(local) if local.is_complex() else local


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 values in the type of a parameter."""
    return clamp_to_float16(values, dtype).to(dtype)


# ---- rare synchronisation ----------------------------------------------------------------------------------

OuterOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_VERSION: Final = 2
OUTER_LR: Final = 0.7
OUTER_MOMENTUM: Final = 0.9
WHOLE_SYNCHRONISATIONS: Final = 1
"""Synchronisations at the start that the codec carries whole: the first steps change matrices in many directions."""


class DiLoCoSharedStateDict(TypedDict):
    """The part of the state that is the same on all replicas. Loads with `torch.load(..., weights_only=True)`."""

    version: int
    steps: int
    allreduces: int
    synced_at: list[int]
    """The inner step at which each fragment was last sent."""
    global_parameters: dict[str, torch.Tensor]
    """float32 by parameter name, on the CPU."""
    outer_optimizer: dict[str, Any]
    factors: dict[str, torch.Tensor]
    """The last Q of each matrix of low rank, float32[rank, columns] on the CPU."""


class DiLoCoStateDict(DiLoCoSharedStateDict, RankStateDict):
    """The saved form of one rank's DiLoCo. Loads with `torch.load(..., weights_only=True)`."""

    sent: dict[str, Any] | None
    """The fragment that was sent and is not applied yet: its number, the step at which it is due, and its mean."""


@dataclass(slots=True)
class _Sent:
    """A fragment's pseudo-gradient on its way."""

    number: int
    due_step: int
    vector: torch.Tensor
    """float32[elements], the pseudo-gradient; once its sums are over, the mean."""
    step: Step | None = None
    """Its sums; None: the mean is there."""
    portions: Sequence[BucketSlice] = ()


class DiLoCo:
    """Rare synchronisation of replicas that train by themselves. All ranks make the same calls in the same order.

    The parameters need to be the same on all ranks at the beginning. They are compared at every synchronisation, with
    the options.

    Args:
        model: this replica, before its first step. FSDP2 inside a replica is possible: one job for each shard index.
        comm: of as many workers as replicas. It stays the caller's to close.
        sync_every: inner steps between two synchronisations of a fragment (H in the papers).
        fragments: a number, or modules of the model, see `make_fragments`.
        outer_optimizer: makes the outer optimiser from the global parameters, SGD with Nesterov momentum by default.
            `lambda parameters: torch.optim.SGD(parameters, lr=1.0)` is LocalSGD: the mean of the replicas.
        fragment_sync_delay: inner steps from sending a fragment to applying its mean (tau in the paper). 0: the step
            waits for the mean.
        fragment_update_alpha: share of the local parameters in the merged ones, 0 up to, but not including, 1.
        error_feedback: by default True, or as HOPSUM_ERROR_FEEDBACK says.
            Without it, the undelivered part of a sum is lost. `thc:bits=2` has none, see `HopsumState`.
        low_rank: matrices travel as factors of this rank, as `HopsumState` says: the local shards of FSDP2 by their
            own shape. None: the rank in HOPSUM_LOW_RANK, else all parameters travel whole. With a
            `fragment_sync_delay` submit nothing to `comm` by hand until the mean is applied: the second factor is
            submitted when the first one's sum is there, at another time on each rank. Hooks wait for it.
        low_rank_start: with `low_rank`, how often a fragment travels whole before its matrices travel as factors, by
            default once, or as often as HOPSUM_LOW_RANK_START says.

    Raises:
        ConfigError: a variable in the environment that does not fit.
        ValueError: an option that does not fit, or fragments that are not the model's parameters; `low_rank` is no
            rank, or pays for no parameter, or there is no error feedback.
    """

    def __init__(
        self,
        model: nn.Module,
        comm: Communicator,
        *,
        sync_every: int,
        fragments: int | Sequence[nn.Module] = 1,
        outer_optimizer: OuterOptimizer | None = None,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        error_feedback: bool | None = None,
        low_rank: int | None = None,
        low_rank_start: int | None = None,
    ) -> None:
        chosen = settings_from({"error_feedback": error_feedback, "low_rank": low_rank})
        error_feedback, low_rank = chosen.error_feedback, chosen.low_rank
        if low_rank_start is None:
            low_rank_start = hook_environment().get("low_rank_start", WHOLE_SYNCHRONISATIONS)
        require_low_rank(low_rank, low_rank_start, error_feedback=error_feedback)
        self.low_rank, self.low_rank_start = low_rank, low_rank_start
        self.comm = comm
        self.owner, self.workers = str(comm.rank), comm.workers
        """This rank's name in states, and the number of replicas."""
        self.fragments = make_fragments(model, fragments)
        self.sync_every = sync_every
        self.fragment_sync_delay = fragment_sync_delay
        self.fragment_update_alpha = fragment_update_alpha
        self._require_fit()
        parameters = [each for fragment in self.fragments for each in fragment.global_parameters]
        self.outer_optimizer = (outer_optimizer or _nesterov)(parameters)
        """The outer optimiser. A learning rate that is set here is to be set on all ranks at the same step."""
        self.error_feedback = error_feedback and feeds_back(comm.codec)
        self.steps = 0
        """Inner steps, the same on all ranks."""
        self.allreduces = 0
        """Numbers of vectors that were handed to the communicator, the same on all ranks."""
        self._residuals = Residuals()
        self._sent: _Sent | None = None
        self._counts = _Counts(sum(fragment.elements for fragment in self.fragments), comm.rank)
        self._factors = Factors()
        names, matrices = self._names, None
        if low_rank is not None:
            pairs = frozenset(name for fragment in self.fragments for name in fragment.complex_names)
            matrices = matrices_of(names, pairs, low_rank, comm.codec, self._factors)
        self._sender = Sender(
            communicator=comm,
            names=names,
            uncompressed=frozenset(),
            group=None,
            drops_unused=False,
            residuals=self._residuals,
            error_feedback=self.error_feedback,
            on_nonfinite="raise",
            times=self._counts,
            matrices=matrices,
        )

    @property
    def _names(self) -> dict[torch.Tensor, str]:
        """Return the global parameters' names."""
        return {
            each: name
            for fragment in self.fragments
            for name, each in zip(fragment.names, fragment.global_parameters, strict=True)
        }

    def _require_fit(self) -> None:
        most = self.sync_every // len(self.fragments)
        if most < 1:
            raise ValueError(f"sync_every={self.sync_every} with {len(self.fragments)} fragments: a step for each")
        if not 0 <= self.fragment_sync_delay <= most or self.fragment_sync_delay == self.sync_every:
            raise ValueError(
                f"fragment_sync_delay={self.fragment_sync_delay}: 0 to {most}, the steps from one fragment to the "
                f"next (sync_every={self.sync_every}, {len(self.fragments)} fragments), and below sync_every"
            )
        if not 0 <= self.fragment_update_alpha < 1:
            raise ValueError(f"fragment_update_alpha={self.fragment_update_alpha}: 0 up to, but not including, 1")

    def step(self) -> None:
        """Count an inner step, send the fragment that has its turn, and apply the mean that is due.

        Call it after the inner optimiser's step.

        Raises:
            HopsumError: of the all-reduce, see `Communicator.submit`. The synchronisation is as if it had not been.
            MismatchError: the replicas have other global parameters, options or steps.
        """
        self.steps += 1
        # Before the next fragment is sent: one at a time is on its way.
        if self._sent is not None and self.steps >= self._sent.due_step:
            self._apply()
        for number in range(len(self.fragments)):
            if self.steps % self.sync_every == self._turn(number):
                self._send(number)
                if not self.fragment_sync_delay:
                    self._apply()

    def _turn(self, number: int) -> int:
        """Return the step of every period at which a fragment is sent. The last one's turn ends the period."""
        return (number + 1) * self.sync_every // len(self.fragments) % self.sync_every

    def finish(self) -> None:
        """Synchronise everything now, and make the local parameters the global ones, the same on all replicas.

        All ranks call it after the same step: at the end, or where a training is to continue without DiLoCo. A fragment
        that has had no step since it was sent is not sent again. Raises as `step` does.
        """
        if self._sent is not None:
            self._apply()
        for number, fragment in enumerate(self.fragments):
            if fragment.synced_at != self.steps:
                self._send(number)
                self._apply()
        for fragment in self.fragments:
            fragment.merge()

    @contextmanager
    def global_parameters(self) -> Iterator[None]:
        """Put the global parameters into the model inside the context, to measure or to export them.

        Afterwards the model has its local parameters again, also after an error.
        """
        local = [fragment.read_local() for fragment in self.fragments]
        for fragment in self.fragments:
            fragment.merge()
        try:
            yield
        finally:
            for fragment, values in zip(self.fragments, local, strict=True):
                fragment.write_local(values)

    def _send(self, number: int) -> None:
        """Begin the sums of a fragment's pseudo-gradient. Randomness follows from the count of all-reduces."""
        fragment = self.fragments[number]
        # A new array, which becomes the mean in place.
        vector = torch.from_numpy(fragment.pseudo_gradient())
        # The names of tensors are compared by the communicator before the sum: a digest among them compares parameters
        # too.
        told = f"global parameters and options with digest {fragment.digest(self._facts)} at step {self.steps}"
        step, portions = self._sender.send_alone(
            vector,
            fragment.global_parameters,
            number=self.allreduces,
            factor=self._factors_matrices,
            told=[(told, 0)],
        )
        self.allreduces += sum(each.allreduces for each in portions)
        self._sent = _Sent(number, self.steps + self.fragment_sync_delay, vector, step, portions)

    @property
    def _factors_matrices(self) -> bool:
        """Return whether matrices travel as factors in the period in progress: each fragment has a turn in each."""
        return self.low_rank is not None and self.steps > self.low_rank_start * self.sync_every

    @property
    def _facts(self) -> str:
        """Return the options that replicas need to have in common, as text for a digest."""
        outer = self.outer_optimizer
        groups = [{key: value for key, value in group.items() if key != "params"} for group in outer.param_groups]
        options = (self.sync_every, self.fragment_sync_delay, self.fragment_update_alpha, len(self.fragments))
        ways = "" if self.low_rank is None else f"low_rank={self.low_rank} from {self.low_rank_start}, "
        return f"{options}, {ways}{type(outer).__name__} {groups}"

    def _arrive(self, sent: _Sent) -> Floats:
        """Wait for a mean. What fails is undone: the fragment counts as not sent."""
        if sent.step is None:
            return sent.vector.numpy()
        began_s = time.perf_counter()
        try:
            sent.step.over.result()
        except Exception as error:
            self._sent = None
            for each in sent.portions:
                # The vector may be in the residual, but stays in the local parameters: it would count twice.
                each.undo()
            if isinstance(error, MismatchError):
                raise MismatchError(
                    f"{error}. DiLoCo needs the same parameters on all replicas at the beginning (the same seed, or "
                    "the same checkpoint), and the same options and outer optimiser"
                ) from error
            raise
        self._counts.wait_s += time.perf_counter() - began_s
        for each in sent.portions:
            each.scatter()
        sent.step, sent.portions = None, ()
        return sent.vector.numpy()

    def _apply(self) -> None:
        """Wait for the mean of the fragment that was sent, take the outer step, and merge."""
        assert self._sent is not None
        mean, fragment = self._arrive(self._sent), self.fragments[self._sent.number]
        fragment.synced_at = self._sent.due_step - self.fragment_sync_delay
        # Before the optimiser's step: a failure there must not apply the mean twice.
        self._sent = None
        fragment.set_gradients(mean)
        self.outer_optimizer.step()
        fragment.clear_gradients()
        fragment.merge(self.fragment_update_alpha)

    def compression_stats(self) -> dict[str, float]:
        """Return counts, bytes and seconds of all synchronisations so far, for a log. NaN before the first one.

        `bytes_per_step` are bytes at this rank's interface in the busier direction, headers included, by inner steps.
        To compare: the bytes that DDP would send in each step by a ring in fp32 (`ddp_ring_fp32_bytes_per_step`), and
        through the same communicator (`ddp_hopsum_bytes_per_step`, from the bytes of an element so far). `wait_s` are
        all seconds in which `step` waited for means. `delivered` is the share of this rank's chunks that were in sums
        (below 1 where a quorum continued without it). Error feedback delivers the rest later.
        """
        return {"steps": self.steps, "allreduces": self.allreduces, **self._counts.scalars(self.steps, self.comm)}

    def shared_state_dict(self) -> DiLoCoSharedStateDict:
        """Return the part of the state that all replicas have in common, copied: for `Communicator.resume`."""
        named = (pair for each in self.fragments for pair in zip(each.names, each.global_parameters, strict=True))
        return DiLoCoSharedStateDict(
            version=_VERSION,
            steps=self.steps,
            allreduces=self.allreduces,
            synced_at=[each.synced_at for each in self.fragments],
            global_parameters={name: each.detach().clone() for name, each in named},
            outer_optimizer=_copied(self.outer_optimizer.state_dict()),
            factors=self._factors.as_dict(),
        )

    def load_shared_state_dict(self, state: DiLoCoSharedStateDict) -> None:
        """Begin where other replicas are, with their global parameters in the model and without residuals.

        A fragment that is on its way is dropped. Raises ValueError for another version or model. Nothing was changed
        then.
        """
        self._take(state)
        self._residuals.load({})
        for fragment in self.fragments:
            fragment.merge()

    def state_dict(self) -> DiLoCoStateDict:
        """Return a copy of this rank's state for a checkpoint, without its model and inner optimiser.

        All ranks call it after the same step: it waits for a mean that is on its way. Raises as `step` does.
        """
        sent = None
        if self._sent is not None:
            mean = torch.from_numpy(self._arrive(self._sent).copy())
            sent = {"number": self._sent.number, "due_step": self._sent.due_step, "mean": mean}
        residuals = self._residuals.as_dict()
        return DiLoCoStateDict(
            **self.shared_state_dict(),
            workers=self.workers,
            norms={self.owner: norm_of(residuals)},
            residuals={self.owner: residuals},
            sent=sent,
        )

    def load_state_dict(self, saved: DiLoCoStateDict | Iterable[DiLoCoStateDict]) -> None:
        """Take over the states of all ranks (`state_dict`), in any order, whatever their number: see `redistribute`.

        Where that number is as it was, this rank's own state is enough. The model's parameters are the caller's to
        load: a replica that has none of its own takes those of any other one.

        Raises ValueError for another version or model, or two states of one rank. Nothing was changed then.
        """
        sizes = dict(pair for each in self.fragments for pair in zip(each.names, each.sizes, strict=True))
        state, residuals = redistribute(saved, self.owner, self.workers, sizes, version=_VERSION)
        self._take(cast(DiLoCoStateDict, state))
        self._residuals.load(residuals)
        sent = state["sent"]
        if sent is not None:
            self._sent = _Sent(sent["number"], sent["due_step"], sent["mean"].clone())

    def _take(self, state: DiLoCoSharedStateDict) -> None:
        """Take counts, global parameters and the outer optimiser. Raises ValueError. Nothing was changed then."""
        if state["version"] != _VERSION:
            raise ValueError(f"state of version {state['version']}, this hopsum reads version {_VERSION}")
        here = {
            name: each.shape
            for fragment in self.fragments
            for name, each in zip(fragment.names, fragment.global_parameters, strict=True)
        }
        names = own_names(state["global_parameters"], here)
        parameters = {names[name]: each for name, each in state["global_parameters"].items()}
        saved = {name: each.shape for name, each in parameters.items()}
        # Also the order: the outer optimiser's state knows parameters by number.
        if list(saved.items()) != list(here.items()) or len(state["synced_at"]) != len(self.fragments):
            differing = next((name for name in {**here, **saved} if here.get(name) != saved.get(name)), "its fragments")
            raise ValueError(f"state of another model or other fragments: {differing} differs")
        outer = _copied(state["outer_optimizer"])
        # A distributed checkpoint makes texts of these numbers, which the optimiser would not know, and drops no state.
        outer["state"] = {int(number): each for number, each in outer.get("state", {}).items()}
        self.outer_optimizer.load_state_dict(outer)
        # What is on its way belongs to what is replaced here.
        self._sent = None
        if self._sender.low_rank is not None:
            self._sender.low_rank.begin_step()
        self._factors.load(state.get("factors", {}), here)
        with torch.no_grad():
            for fragment, synced_at in zip(self.fragments, state["synced_at"], strict=True):
                fragment.synced_at = synced_at
                for name, each in zip(fragment.names, fragment.global_parameters, strict=True):
                    each.copy_(parameters[name])
        self.steps, self.allreduces = state["steps"], state["allreduces"]


class _Counts:
    """The totals of what synchronisations took so far."""

    def __init__(self, elements: int, rank: int) -> None:
        """Begin to count, for a model of so many elements, on this rank."""
        self._model_elements, self._rank = elements, rank
        self._elements = self._bytes_up = self._bytes_down = self._chunks = self._own_chunks = 0
        self.wait_s = 0.0
        """For which steps waited."""

    def end_allreduce(self, result: AllReduceResult, elements: int) -> None:
        """Count an all-reduce. See `Tally`."""
        self._elements += elements
        self._bytes_up += result.traffic.interface_bytes_sent
        self._bytes_down += result.traffic.interface_bytes_received
        self._chunks += result.contributors.size
        self._own_chunks += int(np.count_nonzero(result.contributors >> np.uint64(self._rank) & np.uint64(1)))

    def scalars(self, steps: int, comm: Communicator) -> dict[str, float]:
        """Return the figures of `compression_stats`."""
        own_bytes = max(self._bytes_up, self._bytes_down)
        return {
            "elements": self._elements,
            "bytes_up": self._bytes_up,
            "bytes_down": self._bytes_down,
            "bytes_per_step": ratio(own_bytes, steps),
            "ddp_ring_fp32_bytes_per_step": 2 * (comm.workers - 1) / comm.workers * 4 * self._model_elements,
            "ddp_hopsum_bytes_per_step": ratio(own_bytes * self._model_elements, self._elements),
            "wait_s": self.wait_s,
            "delivered": ratio(self._own_chunks, self._chunks),
        }


def _nesterov(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the outer optimiser of the paper."""
    return torch.optim.SGD(parameters, lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)


def _copied(value: Any) -> Any:
    """Return a copy of an optimiser's state, tensors included."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value
