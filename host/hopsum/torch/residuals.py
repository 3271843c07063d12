# SPDX-License-Identifier: Apache-2.0
"""Error feedback of vectors that are put together from parameters, in ways that change.

A residual belongs to a parameter. It lives in the error feedback of the bucket that the parameter was last in, so
that nothing is copied while buckets stay as they are; when parameters come in other company (DDP rebuilds its
buckets after the first iteration, a checkpoint is loaded), they bring their residuals along, also from the host to a
device and back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

import torch

from hopsum.codec import ErrorFeedback
from hopsum.codec.interface import Floats
from hopsum.torch.device_reduction import DeviceFeedback

Layout = tuple[str, ...]
Kept = TypeVar("Kept", ErrorFeedback, DeviceFeedback)
Named = Mapping[str, torch.Tensor]
"""Residuals, float32[elements] on the CPU, by the parameter's name."""
Saved = Mapping[str, Any]
"""A `RankStateDict` with other entries."""
_log: Final = logging.getLogger(__name__)
WRAPPERS: Final = frozenset(("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"))
"""Attributes in which torch.compile, activation checkpointing, FSDP and Lightning keep the module that they wrap."""


class RankStateDict(TypedDict):
    """The keys that saved states of all kinds have. One rank's own state has that rank's entries only."""

    workers: int
    """The ranks of the mean; with FSDP2 the replicas."""
    norms: dict[str, float]
    """The norm of a rank's residuals, by the name of the rank."""
    residuals: dict[str, dict[str, torch.Tensor]]
    """float32[elements] on the CPU by the name of the rank, RANK or REPLICA/SHARD, and that of the parameter."""


class _Place(NamedTuple):
    """The place of a parameter's residual."""

    layout: Layout
    elements: slice


class Residuals:
    """The undelivered part of each parameter's all-reduces. Between all-reduces only."""

    def __init__(self) -> None:
        self._feedback: dict[Layout, ErrorFeedback | DeviceFeedback] = {}
        self._places: dict[str, _Place] = {}
        self._members: Counter[Layout] = Counter()
        """The number of parameters whose residuals are in each layout."""
        self._left: set[Layout] = set()
        """Layouts that a parameter has left: what they have of its residual is stale."""
        self._empty: set[str] = set()
        """Parameters that were cleared and have been in no sum since: nobody copies their zeros to look at them."""

    def feedback(self, names: Sequence[str], sizes: Sequence[int]) -> ErrorFeedback:
        """Return the error feedback of a vector of these parameters, in order, with the residuals that they have.

        It is valid until a call has one of them in another vector, or on a device: its residual moves there.

        Args:
            sizes: elements of each parameter.
        """
        self._empty.difference_update(names)
        here = self._here(tuple(names))
        return here if isinstance(here, ErrorFeedback) else self._move(tuple(names), sizes, _on_host)

    def device_feedback(self, names: Sequence[str], sizes: Sequence[int], device: torch.device) -> DeviceFeedback:
        """Return the error feedback of these parameters on a device, as `feedback` does on the host."""
        self._empty.difference_update(names)
        here = self._here(tuple(names))
        if isinstance(here, DeviceFeedback) and here.device == device:
            return here
        return self._move(tuple(names), sizes, lambda elements: DeviceFeedback(elements, device))

    def as_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of each parameter's residual, float32[elements] on the CPU, for a checkpoint."""
        return {name: torch.from_numpy(self._copy(name)) for name in self._places}

    def read(self, name: str) -> Floats | None:
        """Return a copy of a parameter's residual, None if that is zero or missing; `clear` it once it is delivered."""
        if name in self._empty:
            return None
        residual = self._copy(name) if name in self._places else None
        return residual if residual is not None and residual.any() else None

    def clear(self, name: str) -> None:
        """Set a parameter's residual to zero."""
        if name in self._places:
            self._empty.add(name)
            place = self._places[name]
            feedback = self._feedback[place.layout]
            with _queue(feedback):
                _values(feedback)[place.elements] = 0

    def scale(self, factor: float) -> None:
        """Multiply all residuals: the unit of gradients has changed."""
        for feedback in self._feedback.values():
            with _queue(feedback):
                _values(feedback).mul_(factor)

    def load(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Replace everything by these residuals, [elements] each; they are copied."""
        self._feedback.clear()
        self._places.clear()
        self._members.clear()
        self._left.clear()
        self._empty.clear()
        for name, residual in residuals.items():
            kept = self._move((name,), (residual.numel(),), _on_host).residual
            kept[:] = residual.detach().to("cpu", torch.float32).numpy()

    def _here(self, layout: Layout) -> ErrorFeedback | DeviceFeedback | None:
        """Return the error feedback of this layout, if all residuals of its parameters are in it."""
        # All or none: a layout that lost a parameter would have a stale residual.
        return None if layout in self._left else self._feedback.get(layout)

    def _copy(self, name: str) -> Floats:
        place = self._places[name]
        feedback = self._feedback[place.layout]
        with _queue(feedback):
            copied: Floats = _values(feedback)[place.elements].to("cpu", copy=True).numpy()
        return copied

    def _move(self, layout: Layout, sizes: Sequence[int], make: Callable[[int], Kept]) -> Kept:
        """Make an error feedback of this layout, with the residuals that its parameters have elsewhere."""
        made, places, first, befores = make(sum(sizes)), {}, 0, list[Layout]()
        for name, size in zip(layout, sizes, strict=True):
            places[name] = _Place(layout, slice(first, first + size))
            first += size
            if name in self._places:
                before = self._places[name]
                befores.append(before.layout)
                kept = self._feedback[before.layout]
                # On one device in one order. From a device to the host the copy waits.
                with _queue(kept), _queue(made):
                    _values(made)[places[name].elements].copy_(_values(kept)[before.elements])
        self._places.update(places)
        for old in befores:
            self._left.add(old)
            self._members[old] -= 1
            # A layout that no parameter is in any more is forgotten, with its vector.
            if not self._members[old]:
                del self._members[old], self._feedback[old]
                self._left.discard(old)
        self._feedback[layout], self._members[layout] = made, len(layout)
        self._left.discard(layout)
        return made


def norm_of(residuals: Named) -> float:
    """Return the Euclidean norm of residuals of all parameters together."""
    return sqrt(sum(float(each.double().square().sum()) for each in residuals.values()))


def inherits_residuals(own: str, owner: str, *, same_workers: bool) -> bool:
    """Return whether the rank `own` continues with saved residuals of `owner`. Both are RANK, or REPLICA/SHARD."""
    return own == owner if same_workers else own.partition("/")[2] == owner.partition("/")[2]


def redistribute(
    saved: Saved | Iterable[Saved], own: str, workers: int, sizes: Mapping[str, int], **expected: int
) -> tuple[Saved, dict[str, torch.Tensor]]:
    """Return the last saved state, for its common entries, and the residuals with which this rank continues.

    The mean over n workers owes `sum(r_i) / n`. With n workers again each takes its own residuals. With m workers each
    takes `sum(r_i) / n`, so `sum(r'_j) / m` owes the same. The log has a line where residuals of a rank are missing.

    Args:
        saved: every state that was saved, the same on all ranks. With n workers again, this rank's own is enough.
            Of an iterator one state after the other is held in memory.
        own: the name of this rank in states, RANK or REPLICA/SHARD.
        workers: of the mean now.
        sizes: elements of this rank's parameters by name.
        expected: numbers that every state must have, by name, such as its version.

    Raises:
        ValueError: no state, states with other numbers, of different checkpoints, of another model, or two of one rank.
    """
    last: Saved = {}
    norms: dict[str, float] = {}
    shares: dict[str, torch.Tensor] = {}
    for state in [saved] if isinstance(saved, Mapping) else saved:
        facts, before = ({k: v for k, v in each.items() if isinstance(v, int | float)} for each in (state, last))
        for name, here in expected.items():
            if facts.get(name) != here:
                raise ValueError(f"state with {name} {facts.get(name)}: here it is {here}")
        if last and facts != before:
            raise ValueError(f"states of different checkpoints: {before} and {facts}")
        last = state
        for owner, norm in state["norms"].items():
            residuals = fit_residuals(state["residuals"].get(owner, {}), sizes)
            if owner in norms:
                raise ValueError(f"two states are of rank {owner} of {facts['workers']}: load each rank's once")
            # torch's Distributed Checkpoint fills the tensors that this rank has, and a new state has none.
            if norm and not residuals:
                raise ValueError(
                    f"state of rank {owner} of {facts['workers']} without its residuals, of norm {norm:.3g}: read a "
                    "distributed checkpoint by hopsum.torch.load_checkpoint(state, folder)"
                )
            norms[owner] = norm
            if inherits_residuals(own, owner, same_workers=facts["workers"] == workers):
                for name, residual in residuals.items():
                    shares[name] = shares[name] + residual if name in shares else residual
    if not last:
        raise ValueError("no state to load")
    before_workers = last["workers"]
    if before_workers != workers:
        shares = {name: residual / before_workers for name, residual in shares.items()}
    _, slash, shard = own.partition("/")
    owners = [own] if before_workers == workers else [f"{rank}{slash}{shard}" for rank in range(before_workers)]
    missing = [owner for owner in owners if owner not in norms]
    if missing:
        warn_of_lost_residuals(f"ranks {', '.join(missing)}", before_workers, list(norms.values()))
    return last, shares


def warn_of_lost_residuals(whose: str, workers: int, norms: Sequence[float]) -> None:
    """Log a warning that residuals are lost, with an estimate of their size.

    Args:
        whose: the lost ranks in words, or their number.
        workers: of the mean from which they are.
        norms: of the residuals that are there, by which the size is estimated.
    """
    # Nobody knows what was lost. Residuals of the ranks of one job are of about one norm.
    norm = sqrt(sum(each * each for each in norms) / max(1, len(norms)))
    _log.warning(
        "the residuals of %s of %d workers are lost: the mean will lack about %.3g for each (a residual's norm by %d)",
        whose, workers, norm / workers, workers,
    )  # fmt: skip


def bare_names(names: Iterable[str]) -> dict[str, str]:
    """Map names of parameters, or patterns of them, to the names without the attributes in WRAPPERS.

    DDP's `module.` stays, because a model may have an attribute of that name. If two of the resulting names are equal,
    all names map to themselves.
    """
    bare = {name: _bare(name) for name in names}
    # Residuals are kept by name: two parameters may not share one.
    return bare if len(set(bare.values())) == len(bare) else {name: name for name in bare}


def fit_residuals(saved: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return saved residuals by the names that parameters have here. Wrappers may have changed since.

    Raises:
        ValueError: a residual of a foreign parameter, of another number of elements, or two of one parameter.
    """
    names = own_names(saved, sizes)
    for name, residual in saved.items():
        if sizes.get(names[name]) != residual.numel() or residual.ndim != 1:
            here = f"{sizes[names[name]]} elements" if names[name] in sizes else "no such parameter"
            raise ValueError(
                f"residual of {name!r} with shape {list(residual.shape)}, but the module has {here}: load the state "
                "of the same model"
            )
    return {names[name]: residual for name, residual in saved.items()}


def own_names(saved: Iterable[str], own: Container[str]) -> dict[str, str]:
    """Map each saved name of a parameter to the parameter's name here. Wrappers may have changed it since.

    A name without a parameter here maps to itself. If two saved names map to one parameter, all map to themselves.
    """
    names = {}
    for name in saved:
        bare = _bare(name)
        # `module` may be a wrapper (DataParallel) or the model's own attribute: only names here can tell.
        forms = (name, bare, bare.removeprefix("module."), f"module.{bare}")
        names[name] = next((each for each in forms if each in own), name)
    # Two saved parameters that became one here are those of another model.
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def _bare(name: str) -> str:
    return ".".join(each for each in name.split(".") if each not in WRAPPERS)


def _on_host(elements: int) -> ErrorFeedback:
    # Hooks drop whole steps, also the means of buckets that were committed already.
    return ErrorFeedback(elements, revocable=True)


def _values(feedback: ErrorFeedback | DeviceFeedback) -> torch.Tensor:
    """Return the residual's own memory as a tensor, valid until the next commit."""
    return torch.from_numpy(feedback.residual) if isinstance(feedback, ErrorFeedback) else feedback.residual


def _queue(feedback: ErrorFeedback | DeviceFeedback) -> AbstractContextManager[None]:
    """Return a context that keeps operations on a residual in order. Those on the host are done at once."""
    return nullcontext() if isinstance(feedback, ErrorFeedback) else feedback.queue()
