# SPDX-License-Identifier: Apache-2.0
"""One backward pass: its buckets are dropped, or fail, together.

    state      event                                              then
    OPEN       a bucket is added; a sum of it begins or ends      OPEN
    OPEN       the last bucket is added and no sum is under way   OVER
    OVER       nothing follows

A bucket has its mean as soon as its own sums are done, unless something at the end of the step may still change it:
NaN for all buckets (`on_nonfinite="skip"`), the vote (`on_switch_lost="fall_back"`), or rule 3. A bucket without a mean
hears at the end why.

Rules at the end, the same on all ranks since all see the same results:

1. A sum that failed fails every bucket that has no mean yet, with the first failure. Residuals stay as the sums left
   them.
2. Where some rank's gradients were not finite the step is dropped: every bucket is NaN, or those without a mean fail if
   that is an error, and every residual is what it was before the step, also of the buckets that had a mean.
   The same where workers were replaced: the step fails on all ranks, as if it had not been; do it again.
   With `on_switch_lost="fall_back"` the ranks vote first; where one lost the switch, all of
   them average the buckets again by the process group.
3. A parameter whose gradient is zero on all ranks gets zero, and keeps its residual. DDP ignores the mean of one that
   no rank used (find_unused_parameters), so a residual that is delivered then would be lost.

The vote. A rank may have all means of a step while another one lost the switch in the middle of it. So the ranks vote
at the end of every step, one byte each: nobody applies a mean before all ranks have theirs. If one rank lost the
switch, all ranks put their residuals back to what they were before the step, and the process group averages gradients
and residuals.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, get_args

import torch
import torch.distributed as dist

from hopsum.codec.interface import CollectiveError, ErrorFeedback, OnNonfinite, nonfinite_error
from hopsum.config import OnSwitchLost
from hopsum.errors import AllReduceError, GenerationEndedError, RankLeftError, WorkersReplacedError
from hopsum.torch.device_reduction import DeviceFeedback
from hopsum.torch.residuals import Residuals
from hopsum.torch.tensors import clamp_to_float16, values_of
from hopsum_wire.membership import MembershipError


class Layout:
    """Parameters of a bucket that go through one sum: the same in every step until DDP builds other buckets.

    Args:
        names: of the parameters.
        places: of the parameters in the bucket's buffer.
        elements: of the buffer.
    """

    def __init__(self, names: Sequence[str], places: Sequence[slice], elements: int) -> None:
        self.names, self.places = tuple(names), tuple(places)
        self.sizes = tuple(place.stop - place.start for place in places)
        self.own_places = places_of(self.sizes)
        """The place of each parameter in a vector of these parameters alone."""
        self.tensors = tuple(zip(self.names, self.sizes, strict=True))
        """Name and elements of each parameter."""
        self.is_whole = sum(self.sizes) == elements
        """The parameters are all that the bucket has."""


class BucketSlice:
    """The sum of one layout of a bucket: the bucket's buffer, the vector to sum, and the error feedback.

    Args:
        compressed: the switch sums it, else torch's process group.
        x: in place of the gradients of the layout.
    """

    allreduces = 1
    """The vectors that a compressed portion hands to the communicator, which are numbered."""

    def __init__(
        self, buffer: torch.Tensor, layout: Layout, *, compressed: bool, x: torch.Tensor | None = None
    ) -> None:
        self.buffer, self.layout, self.compressed = buffer, layout, compressed
        self.x = self.gather() if x is None else x
        """The vector to sum; then the mean."""
        self.feedback: ErrorFeedback | DeviceFeedback | None = None
        """The error feedback that this sum commits."""
        self.has_mean = False
        self.settled = False
        """The feedback is committed: there is a mean, or workers were replaced and it has the whole vector."""
        self.carried: list[str] = []
        """Parameters whose residual is in x, and is to be cleared when the mean is applied."""
        self.submitted = False
        """The communicator has taken the vector, so it has changed the feedback or will do so."""
        self.told: Sequence[tuple[str, int]] = ()
        """Further words that ranks compare before they sum, as tensors of 0 elements."""
        self.residual_before: Any = None
        """The array or tensor of the residual before the sum. A commit puts another one in its place."""

    def gather(self) -> torch.Tensor:
        """Return the gradients; the buffer itself if they are all of it."""
        # The usual case: everything is compressed, and nothing is copied.
        if self.layout.is_whole:
            return self.buffer.detach()
        return torch.cat([self.buffer[place] for place in self.layout.places])

    def scatter(self) -> None:
        """Write the mean into the buffer, in its type."""
        if self.buffer.is_sparse:
            self.buffer.copy_(self.x)
            return
        # The mean may have been written in place.
        if self.x.data_ptr() != self.buffer.data_ptr():
            mean = clamp_to_float16(self.x, self.buffer.dtype)
            for place, own in zip(self.layout.places, self.layout.own_places, strict=True):
                self.buffer[place].copy_(mean[own])

    def rollback(self) -> None:
        """Take the gradients anew, with the error feedback as it was before the step. Only where x is a copy."""
        if self.feedback is not None and self.submitted:
            self.feedback.rollback(slice(None))
        self.feedback = None
        self.x.copy_(self.gather())

    def clear_mean(self, number: int) -> None:
        """Set the mean of a parameter of the layout to zero."""
        self.x[self.layout.own_places[number]] = 0

    def keep_factors(self) -> None:
        """Keep factors of low rank for the next step, now that the step has its means. There are none here."""

    def undo(self) -> None:
        """Roll the effect of the sum on the residual back, however it ended; harmless where the step did so."""
        before, feedback = self.residual_before, self.feedback
        if feedback is not None and before is not None and feedback.residual is not before:
            feedback.rollback(slice(None))

    def on_failed_step(self) -> None:
        """React to a step that failed as the generation ended. Here residuals stay as the sum left them."""

    def add_residuals(self, residuals: Residuals) -> None:
        """Add the residuals to the vector, and note whose they are."""
        for name, place in zip(self.layout.names, self.layout.own_places, strict=True):
            residual = residuals.read(name)
            if residual is not None:
                left = torch.from_numpy(residual).to(self.x.device, self.x.dtype)
                if self.x.is_sparse:
                    self.x = self.x + left.view(self.x.shape).to_sparse(self.x.sparse_dim())
                else:
                    self.x[place] += left
                self.carried.append(name)

    @property
    def is_finite(self) -> bool:
        """Whether the mean has neither NaN nor infinity."""
        return bool(values_of(self.x).isfinite().all())

    def nonfinite_error(self, rank: int) -> CollectiveError:
        """Return the error where some rank's gradients are not finite: it names those of this rank, if any are."""
        gradients = self.gather().to_dense().view(-1).to("cpu", torch.float32).numpy()
        return nonfinite_error(gradients, self.layout.tensors, rank)


class Step:
    """The buckets of one backward pass. Sums may end in any thread.

    Args:
        clear: forgets a parameter's residual.
        switch_loss: the votes of `on_switch_lost="fall_back"`; None: the step ends as its sums do.
        together: the end of the step may change the mean of every bucket, so that no bucket has one before.
    """

    def __init__(
        self, clear: Callable[[str], None], switch_loss: FallBack | None = None, *, together: bool = True
    ) -> None:
        self.over: Future[bool] = Future()
        """True: the step is dropped and buckets are NaN."""
        self._clear = clear
        self._switch_loss, self._together = switch_loss, together
        self._lock = threading.Lock()
        self._under_way = 0
        self._complete = False
        self._sums: list[BucketSlice] = []
        """The sums in the order in which they began."""
        self._undelivered: list[tuple[Sequence[BucketSlice], Callable[[], None]]] = []
        """Buckets that wait for their sums, or for the end of the step: their sums, and what to call then."""
        self._used: list[tuple[list[BucketSlice], torch.Tensor]] = []
        self._failures: list[BaseException] = []
        self._dropped = False

    @property
    def under_way(self) -> bool:
        """Whether an all-reduce of this step has begun and has not ended."""
        return self._under_way > 0

    def begin(self, added: BucketSlice | None = None) -> None:
        """Count one more all-reduce, of this sum if one is given. The step waits until `end` is called for it."""
        with self._lock:
            self._under_way += 1
            if added is not None:
                self._sums.append(added)

    def keep_unused(self, sums: list[BucketSlice], used: torch.Tensor) -> None:
        """Let parameters without a gradient on any rank get zero, and keep their residuals, at the end of the step.

        This is rule 3 of the module.

        Args:
            used: uint8[parameters of all sums], 0 for one without a gradient on any rank. It is read at the end only.
        """
        self._used.append((sums, used))

    def deliver(self, sums: Sequence[BucketSlice], call: Callable[[], None]) -> None:
        """Call `call` once a bucket has its mean, or once the step has ended without: now, or later in any thread.

        All sums of the bucket have begun.
        """
        with self._lock:
            waits = not self.over.done() and (self._together or not _have_means(sums))
            if waits:
                self._undelivered.append((sums, call))
        if not waits:
            call()

    def end(
        self, ended: BucketSlice | None = None, *, failure: BaseException | None = None, dropped: bool = False
    ) -> None:
        """Note the end of one all-reduce, of this sum if one is given. The last one may end the step, in this thread.

        Args:
            failure: the error of the sum, which fails the step.
            dropped: some rank's gradients are not finite: the step is dropped.
        """
        ready: list[Callable[[], None]] = []
        with self._lock:
            if failure is not None:
                self._failures.append(failure)
            self._dropped |= dropped
            if ended is not None:
                ended.has_mean = failure is None and not dropped
            self._under_way -= 1
            # Decided under the lock, acted upon outside of it: callbacks may take other locks.
            over = self._complete and self._under_way == 0
            if not over and not self._together:
                ready = [call for sums, call in self._undelivered if _have_means(sums)]
                self._undelivered = [each for each in self._undelivered if each[1] not in ready]
        for call in ready:
            call()
        if over:
            self._finish()

    def complete(self) -> None:
        """Note that the last bucket was added. If no all-reduce is under way, the step ends now, in this thread."""
        with self._lock:
            self._complete = True
            over = self._under_way == 0
        if over:
            self._finish()

    def fail(self, failure: BaseException) -> None:
        """Note the error of a sum that could not begin: it fails the step."""
        self.begin()
        self.end(failure=failure)

    def _finish(self) -> None:
        if self._switch_loss is None:
            self._settle()
        else:
            self._switch_loss.vote(self._failures, self._settle_vote)

    def _settle_vote(self, outcome: bool | BaseException) -> None:
        """End the step as all ranks do: as it is (False), by the process group (True), or with an error."""
        if isinstance(outcome, BaseException):
            self._failures.insert(0, outcome)
        elif outcome and self._switch_loss is not None:
            try:
                self._dropped = not self._switch_loss.redo(self._sums)
                self._failures.clear()
            except BaseException as error:
                self._failures = [error]
        self._settle()

    def _settle(self) -> None:
        try:
            # A CollectiveError is the same on all ranks, by the same results. Others end the generation, on this rank
            # at least.
            for error in self._failures:
                # It ends the generation, and residuals hold what was not delivered (docs/training.md).
                if not isinstance(error, CollectiveError | WorkersReplacedError):
                    for each in self._sums:
                        each.on_failed_step()
                    raise error
            # The step has no effect: what its sums have committed is taken back, on all ranks alike.
            if self._failures or self._dropped:
                for each in self._sums:
                    if each.feedback is not None and each.settled:
                        each.feedback.rollback(slice(None))
            if self._failures:
                raise self._failures[0]
            if not self._dropped:
                self._apply()
        except BaseException as failure:
            self.over.set_exception(failure)
        else:
            self.over.set_result(self._dropped)
        with self._lock:
            left, self._undelivered = self._undelivered, []
        for _, call in left:
            call()

    def _apply(self) -> None:
        """Keep the residuals of parameters without gradients (rule 3), and forget those that were carried."""
        # Rule 3: DDP would drop the mean, and a residual delivered in it would be lost.
        unused: set[str] = set()
        for sums, used in self._used:
            unused.update(_keep_residuals(sums, used))
        for each in self._sums:
            each.keep_factors()
            for name in each.carried:
                if name not in unused:
                    self._clear(name)


def _have_means(sums: Sequence[BucketSlice]) -> bool:
    # A bucket without sums could not be submitted: it has no mean.
    return bool(sums) and all(map(attrgetter("has_mean"), sums))


def _keep_residuals(sums: list[BucketSlice], used: torch.Tensor) -> list[str]:
    """Undo the sums of parameters that have no gradient on any rank, and return their names."""
    # One flag a parameter, in the order of all sums, which is the same on all ranks.
    flags, found = iter(used.tolist()), []
    for each in sums:
        for number, (name, place) in enumerate(zip(each.layout.names, each.layout.own_places, strict=True)):
            if not next(flags):
                found.append(name)
                each.clear_mean(number)
                if each.feedback is not None:
                    each.feedback.rollback(place)
    return found


def places_of(sizes: Sequence[int]) -> list[slice]:
    """Return where vectors of these sizes are, one after the other."""
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


# ---- a switch that is lost for good ------------------------------------------------------------------------

ON_SWITCH_LOST: Final = get_args(OnSwitchLost)
_log: Final = logging.getLogger(__name__)
_MEANS, _LOST, _FAILED = range(3)
"""Votes, of which the largest counts: means or an error of all ranks, the switch is lost here, any other error."""


def is_switch_loss(error: BaseException) -> bool:
    """Return whether an error says that the switch, or a result of it, is lost on this rank."""
    others = (RankLeftError, WorkersReplacedError, CollectiveError)
    # A rank that lost its switch leaves the job, which the others hear as a MembershipError. A rank that is dead has no
    # vote, so no step falls back without it.
    losses = (AllReduceError, GenerationEndedError, MembershipError)
    return isinstance(error, losses) and not isinstance(error, others)


class FallBack:
    """The votes of one rank, and whether the process group averages instead of the switch.

    Args:
        group: of all ranks. All make this object at the same point, as it makes a group of its own.
        residuals: of the state.
        on_nonfinite: as the state's.
    """

    def __init__(self, group: dist.ProcessGroup, residuals: Residuals, on_nonfinite: OnNonfinite) -> None:
        ranks = dist.get_process_group_ranks(group)
        # A group of its own: votes come from another thread, while the program may use the other group.
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._residuals, self._on_nonfinite = residuals, on_nonfinite
        self._workers, self._rank = len(ranks), dist.get_rank(group)
        self._cause: BaseException | None = None
        self.active = False
        """The process group averages, and the switch is asked no more."""

    def vote(self, failures: list[BaseException], then: Callable[[bool | BaseException], None]) -> None:
        """Vote on the end of a step, by the failures of this rank. Return at once, and call `then` in another thread.

        `then` gets True if the process group has to average this step, False if the step ends as its sums did, or an
        exception if some rank failed otherwise or the ranks could not vote.
        """
        # These are the same on all ranks anyway: no vote is needed for them.
        alike = (CollectiveError, WorkersReplacedError)
        own = [each for each in failures if not isinstance(each, alike)]
        lost = [each for each in own if is_switch_loss(each)]
        self._cause = lost[0] if lost else None
        # The largest vote counts: one rank that lost the switch makes all fall back, any other error stops all.
        vote = _FAILED
        if not own:
            vote = _MEANS
        elif len(lost) == len(own):
            vote = _LOST

        def count() -> None:
            ballot = torch.tensor([vote], dtype=torch.uint8, device="cpu")
            try:
                dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._group)
            except Exception as error:
                then(self._no_vote(error, own))
            else:
                then(self._verdict(int(ballot), own))

        # A thread, since the vote waits for the slowest rank, and the communicator's thread must not.
        threading.Thread(target=count, name="hopsum-vote", daemon=True).start()

    def _verdict(self, highest: int, own: list[BaseException]) -> bool | BaseException:
        if highest != _FAILED:
            return highest == _LOST
        text = f"rank {self._rank} has all means of this step, which failed on another rank: see what that rank says"
        return own[0] if own else AllReduceError(text)

    def _no_vote(self, error: Exception, own: list[BaseException]) -> BaseException:
        why = f"{own[0]}; " if own else ""
        return AllReduceError(f"{why}the ranks could not vote on this step: {error}. A rank has died or left")

    def redo(self, sums: list[BucketSlice]) -> bool:
        """Average by the process group the sums of the switch, and set `active`. Return whether all means are finite.

        Residuals are as before the step, and are added to the gradients. A warning names the cause.

        Raises:
            RuntimeError: from torch.
            NonFiniteError: on all ranks, some rank's gradients have NaN or infinity, and `on_nonfinite` is "raise".
        """
        why = "Another rank lost the switch" if self._cause is None else str(self._cause)
        _log.warning("rank %d: torch's process group averages gradients from here on. %s", self._rank, why)
        self.active = True
        for each in sums:
            if each.compressed:
                # Residuals as they were before the step, then added to the gradients: the exact mean delivers both.
                each.rollback()
                each.add_residuals(self._residuals)
                each.x.div_(self._workers)
                dist.all_reduce(each.x, group=self._group)
        broken = [each for each in sums if not each.is_finite]
        if broken and self._on_nonfinite == "raise":
            raise broken[0].nonfinite_error(self._rank)
        return not broken
