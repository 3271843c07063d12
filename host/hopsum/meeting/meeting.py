# SPDX-License-Identifier: Apache-2.0
"""A meeting of the ranks over a key-value store: values by topic, and one error on all ranks where one has an error."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from hopsum.config import ConfigError
from hopsum.errors import HopsumError
from hopsum_base.shown import difference

# torch's stores have no wait for one of several keys, so the ranks look again: soon at first, and then seldom, since
# one process answers all of them.
_LOOK_AGAIN_S: Final = 0.02
_LOOK_SELDOM_S: Final = 0.25
SAY_EVERY_S: Final = 60.0
"""Seconds between two lines on the log that name the ranks which are waited for."""
STEP_S: Final = 300.0
"""Seconds for a step of ranks that have come. A kernel that is compiled on a busy machine takes minutes."""
ERRORS_S: Final = 4.0
"""Seconds for the other ranks' errors, once there is one: so all ranks have the same text."""
# Longer than those seconds, and than the pause between two looks.
_STAY_S: Final = ERRORS_S + 2
COMING: Final = "here"
"""The topic at which ranks come to a meeting."""
_TOLD_MAX: Final = 4
"""Errors of ranks that one message has."""
Value = TypeVar("Value")
_log: Final = logging.getLogger(__name__)


class MeetingError(ConfigError):
    """The ranks do not come together, or one cannot take part. All ranks have the same text."""


class KeyValueStore(Protocol):
    """A store that all ranks reach, such as torch's."""

    def put(self, key: str, value: str) -> None:
        """Set a value."""

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""

    def has_all(self, keys: Sequence[str]) -> bool:
        """Say in one question whether all keys have values."""

    def admit(self, ranks: Collection[int]) -> None:
        """Let these ranks, which were started again, find the name of this call, unless another call has begun."""


@contextmanager
def store_answers(what: str, topic: str) -> Iterator[None]:
    """Raise MeetingError in place of the error of a store that went with the process that had it."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise MeetingError(f"{what}: torch's store does not answer any more ({topic}): {error}") from error


class WaitLimit(NamedTuple):
    """The time for ranks that have not come, and the name of the setting that says it."""

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
    """Call `look` until nothing is missing. Raises MeetingError after a time, and names the missing ranks every minute.

    Args:
        look: returns the ranks that are missing.
        missing: returns the ranks that are missing, where that takes longer and `look` may return too many.
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
            # One line for all ranks: rank 0 has it, unless it is missing itself. Those that have come wait for rank 0,
            # as long as that waits for others.
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
    """Return the key that is set once a rank has failed in the call of that name, or in a part of it."""
    return f"hopsum/{name.partition('/')[0]}/failed"


class Arrival(NamedTuple):
    """The first words of a rank in a meeting."""

    settings: Mapping[str, str]
    """The texts that have to be equal on all ranks, by name."""
    host: str = ""
    """The identity of its host."""
    group: str = ""
    """The name of its `local_group`."""


class Meeting:
    """Messages between the ranks that open one communicator together, over a key-value store.

    Args:
        name: of the call, the same on all ranks, and of no other call over the same store.
        patience: with ranks that have not come. Those that have get as much for each topic, 300 s at most.
        what: the name of what is being opened; texts of errors begin with it.
        ranks: the ranks that meet, by their numbers in the store, where that has others too.
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
        """What each rank has told in `opening`."""
        self.absent: Collection[int] = ()
        """Ranks that are lost: nobody waits until they have left."""

    def among(self, ranks: Sequence[int]) -> Meeting:
        """Return the meeting of some of these ranks for hosts://, this one among them. They are numbered anew."""
        made = Meeting(
            self.store, f"{self._name}/{ranks}", ranks.index(self.rank), len(ranks), self._patience,
            ranks=[self._ranks[rank] for rank in ranks],
        )  # fmt: skip
        made.arrivals = [self.arrivals[rank] for rank in ranks]
        return made

    def ranks_by(self, name: Callable[[Arrival], str]) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that have each name, ascending, in the order of their lowest ranks."""
        named: dict[str, list[int]] = {}
        for rank, arrival in enumerate(self.arrivals):
            named.setdefault(name(arrival), []).append(rank)
        return tuple(map(tuple, named.values()))

    @contextmanager
    def opening(self, arrival: Arrival) -> Iterator[None]:
        """Meet the other ranks, and compare settings. Where the block fails, tell those that wait for this rank why.

        Raises MeetingError: on all ranks, where some do not come or have other settings.
        """
        try:
            self.arrivals = [Arrival(*each) for each in self.exchange(COMING, lambda: arrival)]
            if why := difference({rank: each.settings for rank, each in enumerate(self.arrivals)}):
                raise MeetingError(f"{self._what}: {why}")
            yield
        # All ranks hear of an error of the meeting, if rank 0, which may have the store, is there for so long.
        except MeetingError:
            self.leave(_STAY_S, waits=self.rank == 0)
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Tell the ranks that wait for this one why it does not come."""
        told = str(error) if isinstance(error, HopsumError | OSError) else f"{type(error).__name__}: {error}"
        # The store may have gone with the process that had it.
        with suppress(RuntimeError, OSError):
            self.store.put(self._failure_key(self.rank), told)
            self.store.put(failures_key(self._name), "true")
        self.leave(_STAY_S, waits=self.rank == 0)

    def exchange(
        self, topic: str, make: Callable[[], Any], ranks: Sequence[int] | None = None, wait_s: float | None = None
    ) -> list[Any]:
        """Tell the others what `make` returns or fails with. Return what each rank told, in the order of ranks.

        Args:
            make: returns what JSON can hold.
            ranks: who tells, by default all. The others do not call `make`.
            wait_s: for what is told, in place of the meeting's own.

        Raises:
            MeetingError: on all ranks, if `make` raised HopsumError or OSError on some, or some did not come.
        """
        telling = range(self.workers) if ranks is None else ranks
        if self.rank in telling:
            told: dict[str, Any]
            try:
                told = {"value": make()}
            except (HopsumError, OSError) as error:
                told = {"error": str(error)}
            # A programming error, or Ctrl-C: the others hear of it before this rank goes down.
            except BaseException as error:
                told = {"error": f"{type(error).__name__}: {error}"}
                with suppress(RuntimeError, OSError):
                    self._tell(topic, told)
                raise
        with store_answers(self._what, topic):
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

    def has_told(self, topic: str, rank: int) -> bool:
        """Say whether a rank has told its value of a topic, without waiting. Raises MeetingError without a store."""
        with store_answers(self._what, topic):
            return self.store.find(self._key(topic, rank)) is not None

    def admit(self, ranks: Collection[int]) -> None:
        """Let these ranks, which were started again, find what was told, where all of the store's ranks meet here."""
        if self._has_all:
            self.store.admit(ranks)

    def leave(self, wait_s: float, *, waits: bool) -> None:
        """Say that this rank needs nothing more of the others' processes. With `waits`, wait until all have said so."""
        try:
            self.store.put(self._key("left", self.rank), "true")
            until = time.monotonic() + wait_s
            while waits and time.monotonic() < until:
                awaited = (rank for rank in range(self.workers) if rank not in self.absent)
                if all(self.store.find(self._key("left", rank)) for rank in awaited):
                    return
                time.sleep(_LOOK_AGAIN_S)
        except (RuntimeError, OSError):  # the store went with the process that had it: nobody waits for anything there
            return

    def _await(self, topic: str, ranks: Sequence[int], wait_s: float | None) -> dict[int, Any]:
        errors_until = 0.0
        found: dict[int, Any] = {}

        def absent() -> list[int]:
            return [rank for rank in ranks if self.store.find(self._key(topic, rank)) is None]

        def look() -> list[int]:
            nonlocal errors_until
            missing = [rank for rank in ranks if rank not in found]
            # Two questions, however many ranks are missing: ranks that looked for each would keep the store busy.
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
                # One error is enough to stop, but all ranks shall raise the same text, so the others get time to add
                # theirs.
                errors_until = errors_until or time.monotonic() + ERRORS_S
                if time.monotonic() >= errors_until:
                    return []
            return missing

        patience = self._patience if wait_s is None else self._patience._replace(wait_s=wait_s)
        if topic != COMING and patience.wait_s > STEP_S:
            patience = WaitLimit(STEP_S, "")
        elif topic == COMING and self.rank:
            # Rank 0 waits for them too, and knows who has come: its error is the one that all shall have.
            patience = patience._replace(wait_s=patience.wait_s + 4 * _LOOK_SELDOM_S)
        await_ranks(look, self._what, topic, self.rank, self.workers, patience, absent)
        return found

    def _failure_key(self, rank: int) -> str:
        # One for each call and rank, in whatever part of the meeting the rank fails.
        return f"{failures_key(self._name)}/{self._ranks[rank]}"

    def _key(self, topic: str, rank: int) -> str:
        return f"hopsum/{self._name}/{topic}/{rank}"
