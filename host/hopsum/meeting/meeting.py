# SPDX-License-Identifier: Apache-2.0
"""A meeting of ranks over a key-value store: values by topic, and the same error on all ranks if one fails."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from hopsum.config import ConfigError
from hopsum.errors import HopsumError
from hopsum_base.shown import describe_differences

# torch's stores cannot wait for one of several keys, so the ranks poll: often at first, and then rarely, because one
# process answers all of them.
_LOOK_AGAIN_S: Final = 0.02
_LOOK_SELDOM_S: Final = 0.25
SAY_EVERY_S: Final = 60.0
"""Seconds between two log lines that name the missing ranks."""
STEP_S: Final = 300.0
"""Seconds for a step of ranks that are present. Compiling a kernel on a busy machine takes minutes."""
ERRORS_S: Final = 4.0
"""Seconds to wait for other ranks' errors after the first one, so that all ranks have the same text."""
# Longer than ERRORS_S plus the pause between two polls.
_STAY_S: Final = ERRORS_S + 2
COMING: Final = "here"
"""The topic of arrivals."""
_TOLD_MAX: Final = 4
"""Most ranks' errors in one message."""
Value = TypeVar("Value")
_log: Final = logging.getLogger(__name__)


class MeetingError(ConfigError):
    """Ranks are missing, or one cannot take part. All ranks have the same text."""


class KeyValueStore(Protocol):
    """A store that all ranks reach, such as torch's."""

    def put(self, key: str, value: str) -> None:
        """Set a value."""

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""

    def has_all(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values, by one question to the store."""

    def admit(self, ranks: Collection[int]) -> None:
        """Let restarted ranks find the name of this call, unless another call has begun."""


@contextmanager
def as_meeting_errors(what: str, topic: str) -> Iterator[None]:
    """Turn RuntimeError and OSError of the block, as of a store whose process has ended, into MeetingError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise MeetingError(f"{what}: torch's store does not answer any more ({topic}): {error}") from error


class WaitLimit(NamedTuple):
    """The limit of the wait for missing ranks, and the name of its setting, empty if no setting has the limit."""

    wait_s: float
    setting: str = "membership_wait_s"


def await_ranks(
    look: Callable[[], Sequence[int]],
    what: str,
    topic: str,
    rank: int,
    workers: int,
    patience: WaitLimit,
    missing: Callable[[], Sequence[int]] | None = None,
) -> None:
    """Call `look` until no rank is missing. Logs the missing ranks every minute. Raises MeetingError after the limit.

    Args:
        look: returns the missing ranks, or a superset.
        missing: returns exactly the missing ranks, if that takes longer.
    """
    began, lines = time.monotonic(), 0
    while found := look():
        waited_s, left_s = (now := time.monotonic()) - began, began + patience.wait_s - now
        if left_s <= 0:
            ranks = ", ".join(map(str, missing() if missing else found))
            raise MeetingError(
                f"{what}: rank {rank} has not heard of ranks {ranks} within {patience.wait_s:g} s ({topic}). "
                + _advice(workers, patience)
            )
        if waited_s >= (lines + 1) * SAY_EVERY_S:
            lines += 1
            absent = missing() if missing else found
            # One line for all ranks, from rank 0 unless it is missing itself.
            if rank == 0 or (topic != COMING and 0 in absent):
                text = "%s: rank %d has waited %.0f s for ranks %s (%s), and waits %.0f s more at most%s"
                shown = f" ({patience.setting})" if patience.setting else ""
                _log.warning(text, what, rank, waited_s, ", ".join(map(str, absent)), topic, left_s, shown)
        time.sleep(min(max(waited_s / 10, _LOOK_AGAIN_S), _LOOK_SELDOM_S, left_s))


def _advice(workers: int, patience: WaitLimit) -> str:
    if not patience.setting:
        return "They had come: see whether their processes still run, and at what"
    return (
        f"Let all {workers} ranks make this call at the same point of the program, or wait longer ({patience.setting})"
    )


def failures_key(name: str) -> str:
    """Return the store's key that is set when a rank has failed in the call of that name, or in a part of the call."""
    return f"hopsum/{name.partition('/')[0]}/failed"


class Arrival(NamedTuple):
    """The first message of a rank in a meeting."""

    settings: Mapping[str, str]
    """The texts that must be equal on all ranks, by name."""
    host: str = ""
    """The identity of its host."""
    group: str = ""
    """The name of its `local_group`."""


class Meeting:
    """Messages between the ranks that open one communicator together, over a key-value store.

    Args:
        name: of the call, the same on all ranks, and unique over the store.
        patience: limit of the wait for missing ranks, and for each topic of present ranks, there 300 s at most.
        what: the name of the communicator that is opened, the beginning of errors.
        ranks: the numbers in the store of the ranks that meet, if the store has further ranks.
    """

    def __init__(
        self,
        store: KeyValueStore,
        name: str,
        rank: int,
        workers: int,
        patience: WaitLimit,
        what: str = "hosts://",
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.store, self._name, self.rank, self.workers, self._patience = store, name, rank, workers, patience
        self._what, self._ranks, self._has_all = what, range(workers) if ranks is None else ranks, ranks is None
        self.arrivals: list[Arrival] = []
        """The arrival of each rank, set by `opening`."""
        self.absent: Collection[int] = ()
        """Lost ranks, whose leave is not awaited."""

    def among(self, ranks: Sequence[int]) -> Meeting:
        """Return a meeting of some of the ranks, including this one, for hosts://. They are numbered 0, 1, ... in it.

        The arrivals are taken over: the new meeting needs no `opening`.
        """
        made = Meeting(
            self.store, f"{self._name}/{ranks}", ranks.index(self.rank), len(ranks), self._patience,
            ranks=[self._ranks[rank] for rank in ranks],
        )  # fmt: skip
        made.arrivals = [self.arrivals[rank] for rank in ranks]
        return made

    def ranks_by(self, name: Callable[[Arrival], str]) -> tuple[tuple[int, ...], ...]:
        """Group the ranks by the name of their arrival. Return the groups in the order of their lowest ranks.

        The ranks of a group are ascending.
        """
        named: dict[str, list[int]] = {}
        for rank, arrival in enumerate(self.arrivals):
            named.setdefault(name(arrival), []).append(rank)
        return tuple(map(tuple, named.values()))

    @contextmanager
    def opening(self, arrival: Arrival) -> Iterator[None]:
        """Meet the other ranks and compare settings, then run the block. Its error is reported to the waiting ranks.

        Sets `arrivals`. After an error rank 0 stays for some seconds, until all ranks have read the error. Raises
        MeetingError on all ranks if some are missing or have other settings.
        """
        try:
            self.arrivals = [Arrival(*each) for each in self.exchange(COMING, lambda: arrival)]
            if why := describe_differences({rank: each.settings for rank, each in enumerate(self.arrivals)}):
                raise MeetingError(f"{self._what}: {why}")
            yield
        # Rank 0, which may have the store, stays until all ranks have read an error of the meeting.
        except MeetingError:
            self.leave(_STAY_S, waits=self.rank == 0)
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Report the failure of this rank to the ranks that wait for it, and leave. Rank 0 waits for some seconds.

        Raises nothing if the store's process has ended.
        """
        told = str(error) if isinstance(error, HopsumError | OSError) else f"{type(error).__name__}: {error}"
        # The store's process may have ended.
        with suppress(RuntimeError, OSError):
            self.store.put(self._failure_key(self.rank), told)
            self.store.put(failures_key(self._name), "true")
        self.leave(_STAY_S, waits=self.rank == 0)

    def exchange(
        self, topic: str, make: Callable[[], Any], ranks: Sequence[int] | None = None, wait_s: float | None = None
    ) -> list[Any]:
        """All-gather the values of `make`. Block until all are there, and return them in the order of `ranks`.

        All ranks call this, with a topic that the meeting has not used.

        Args:
            make: returns a JSON value.
            ranks: the ranks with a value, by default all. The others do not call `make`.
            wait_s: limit of the wait, in place of the meeting's own; STEP_S at most once the ranks have met.

        Raises:
            MeetingError: on all ranks, if `make` raised HopsumError or OSError on some, or some are missing. Any other
                exception of `make` is passed on here, and is a MeetingError on the other ranks.
        """
        telling = range(self.workers) if ranks is None else ranks
        if self.rank in telling:
            told: dict[str, Any]
            try:
                told = {"value": make()}
            except (HopsumError, OSError) as error:
                told = {"error": str(error)}
            # A programming error, or Ctrl-C: reported to the others before this rank ends.
            except BaseException as error:
                told = {"error": f"{type(error).__name__}: {error}"}
                with suppress(RuntimeError, OSError):
                    self._tell(topic, told)
                raise
        with as_meeting_errors(self._what, topic):
            if self.rank in telling:
                self._tell(topic, told)
            found = self._await(topic, telling, wait_s)
        errors = [f"rank {rank}: {found[rank]['error']}" for rank in sorted(found) if "error" in found[rank]]
        if errors:
            shown = errors[:_TOLD_MAX]
            more = f"; and {len(errors) - len(shown)} more ranks" if len(errors) > len(shown) else ""
            raise MeetingError(f"{self._what}: {'; '.join(shown)}{more}")
        return [found[rank]["value"] for rank in telling]

    def _tell(self, topic: str, told: Mapping[str, Any]) -> None:
        self.store.put(self._key(topic, self.rank), json.dumps(told))
        if "error" in told:
            self.store.put(failures_key(self._name), "true")

    def has_value(self, topic: str, rank: int) -> bool:
        """Return whether a rank's value of a topic is in the store. Raises MeetingError if that does not answer."""
        with as_meeting_errors(self._what, topic):
            return self.store.find(self._key(topic, rank)) is not None

    def admit(self, ranks: Collection[int]) -> None:
        """Let restarted ranks find the values of this meeting. Does nothing in a meeting of some of the ranks only."""
        if self._has_all:
            self.store.admit(ranks)

    def leave(self, wait_s: float, *, waits: bool) -> None:
        """Report that this rank needs the other processes no longer. Raises nothing if the store's process has ended.

        Args:
            wait_s: the longest wait.
            waits: whether to wait until all ranks but `absent` ones have reported the same.
        """
        try:
            self.store.put(self._key("left", self.rank), "true")
            until = time.monotonic() + wait_s
            while waits and time.monotonic() < until:
                awaited = (rank for rank in range(self.workers) if rank not in self.absent)
                if all(self.store.find(self._key("left", rank)) for rank in awaited):
                    return
                time.sleep(_LOOK_AGAIN_S)
        except (RuntimeError, OSError):  # the store's process has ended, so no rank waits there
            return

    def _await(self, topic: str, ranks: Sequence[int], wait_s: float | None) -> dict[int, Any]:
        errors_until = 0.0
        found: dict[int, Any] = {}

        def absent() -> list[int]:
            return [rank for rank in ranks if self.store.find(self._key(topic, rank)) is None]

        def look() -> list[int]:
            nonlocal errors_until
            missing = [rank for rank in ranks if rank not in found]
            # Two requests for any number of missing ranks: a request for each would keep the store busy.
            failed = self.store.find(failures_key(self._name)) is not None
            if not failed and not self.store.has_all([self._key(topic, rank) for rank in missing]):
                return missing
            for rank in missing:
                if (text := self.store.find(self._key(topic, rank))) is not None:
                    found[rank] = json.loads(text)
                elif failed and (why := self.store.find(self._failure_key(rank))) is not None:
                    found[rank] = {"error": why}
            missing = [rank for rank in ranks if rank not in found]
            if missing and any("error" in each for each in found.values()):
                # One error suffices to stop, but all ranks must raise the same text, so the others get time to add
                # theirs.
                errors_until = errors_until or time.monotonic() + ERRORS_S
                if time.monotonic() >= errors_until:
                    return []
            return missing

        patience = self._patience if wait_s is None else self._patience._replace(wait_s=wait_s)
        if topic != COMING and patience.wait_s > STEP_S:
            patience = WaitLimit(STEP_S, "")
        elif topic == COMING and self.rank:
            # Longer than rank 0, whose error names the missing ranks, and is the error of all.
            patience = patience._replace(wait_s=patience.wait_s + 4 * _LOOK_SELDOM_S)
        await_ranks(look, self._what, topic, self.rank, self.workers, patience, absent)
        return found

    def _failure_key(self, rank: int) -> str:
        # One for each call and rank, in every part of the meeting.
        return f"{failures_key(self._name)}/{self._ranks[rank]}"

    def _key(self, topic: str, rank: int) -> str:
        return f"hopsum/{self._name}/{topic}/{rank}"
