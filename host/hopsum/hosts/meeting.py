# SPDX-License-Identifier: Apache-2.0
"""A meeting of the ranks over a key-value store: values by topic, and one error on all ranks where one has an error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from hopsum.config import ConfigError
from hopsum.errors import HopsumError

# torch's stores have no wait for one of several keys, so the ranks look again.
_LOOK_AGAIN_S: Final = 0.02
ERRORS_S: Final = 4.0
"""Seconds for the other ranks' errors, once there is one: so all ranks have the same text."""
_TOLD_MAX: Final = 4
"""Errors of ranks that one message has."""
Value = TypeVar("Value")


class MeetingError(ConfigError):
    """The ranks do not come together, or one cannot take part. All ranks have the same text."""


class KeyValueStore(Protocol):
    """A store that all ranks reach, such as torch's."""

    def put(self, key: str, value: str) -> None:
        """Set a value."""

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""

    def admit(self, ranks: Collection[int]) -> None:
        """Let these ranks, which were started again, find the name of this call, unless another call has begun."""


@contextmanager
def store_answers(what: str, topic: str) -> Iterator[None]:
    """Raise MeetingError in place of the error of a store that went with the process that had it."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise MeetingError(f"{what}: torch's store does not answer any more ({topic}): {error}") from error


def await_ranks(
    look: Callable[[], Sequence[int]], what: str, topic: str, rank: int, workers: int, wait_s: float
) -> None:
    """Call `look`, which returns the ranks that are missing, until there are none. Raises MeetingError after a time."""
    until = time.monotonic() + wait_s
    while missing := look():
        if time.monotonic() >= until:
            raise MeetingError(
                f"{what}: rank {rank} has not heard of ranks {', '.join(map(str, missing))} within {wait_s:g} s "
                f"({topic}). Call hopsum.connect on all {workers} ranks at the same point of the program, or wait "
                "longer (membership_wait_s)"
            )
        time.sleep(_LOOK_AGAIN_S)


class Meeting:
    """Messages between the ranks that open one communicator together, over a key-value store.

    Args:
        name: of the call, the same on all ranks, and of no other call over the same store.
        wait_s: for the other ranks, at each topic.
        what: the name of the communicator that is being opened; texts of errors begin with it.
        ranks: the ranks that meet, by their numbers in the store, where that has others too.
    """

    def __init__(
        self,
        store: KeyValueStore,
        name: str,
        rank: int,
        workers: int,
        wait_s: float,
        what: str = "hosts://",
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.store, self._name, self.rank, self.workers, self._wait_s = store, name, rank, workers, wait_s
        self._what, self._ranks, self._has_all = what, range(workers) if ranks is None else ranks, ranks is None
        self.absent: Collection[int] = ()
        """Ranks that are lost: nobody waits until they have left."""

    @contextmanager
    def opening(self, opens: str) -> Iterator[None]:
        """Find out that all ranks open the same. Where the block fails, tell those that wait for this rank why."""
        try:
            told = self.exchange("here", lambda: opens)
            for rank, theirs in enumerate(told):
                if theirs != told[0]:
                    raise MeetingError(
                        f"{self._what}: rank 0 opens {told[0]}, and rank {rank} opens {theirs}: all ranks need the same"
                    )
            yield
        # All ranks hear of an error of the meeting, if rank 0, which may have the store, is there for so long.
        except MeetingError:
            self.leave(ERRORS_S, waits=self.rank == 0)
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
        self.leave(ERRORS_S, waits=self.rank == 0)

    def exchange(self, topic: str, make: Callable[[], Any], ranks: Sequence[int] | None = None) -> list[Any]:
        """Tell the others what `make` returns or fails with. Return what each rank told, in the order of ranks.

        Args:
            make: returns what JSON can hold.
            ranks: who tells, by default all. The others do not call `make`.

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
                    self.store.put(self._key(topic, self.rank), json.dumps(told))
                raise
        with store_answers(self._what, topic):
            if self.rank in telling:
                self.store.put(self._key(topic, self.rank), json.dumps(told))
            found = self._await(topic, telling)
        errors = [f"rank {rank}: {found[rank]['error']}" for rank in sorted(found) if "error" in found[rank]]
        if errors:
            shown = errors[:_TOLD_MAX]
            more = f"; and {len(errors) - len(shown)} more ranks" if len(errors) > len(shown) else ""
            raise MeetingError(f"{self._what}: {'; '.join(shown)}{more}")
        return [found[rank]["value"] for rank in telling]

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

    def _await(self, topic: str, ranks: Sequence[int]) -> dict[int, Any]:
        errors_until = 0.0
        found: dict[int, Any] = {}

        def look() -> list[int]:
            nonlocal errors_until
            for rank in ranks:
                if rank not in found and (text := self.store.find(self._key(topic, rank))) is not None:
                    found[rank] = json.loads(text)
            missing = [rank for rank in ranks if rank not in found]
            for rank in missing:
                if (why := self.store.find(self._failure_key(rank))) is not None:
                    found[rank] = {"error": why}
            if missing and any("error" in each for each in found.values()):
                # One error is enough to stop, but all ranks shall raise the same text, so the others get time to add
                # theirs.
                errors_until = errors_until or time.monotonic() + ERRORS_S
                if time.monotonic() >= errors_until:
                    return []
            return missing

        await_ranks(look, self._what, topic, self.rank, self.workers, self._wait_s)
        return found

    def _failure_key(self, rank: int) -> str:
        # One for each call and rank, in whatever part of the meeting the rank fails.
        return f"hopsum/{self._name.partition('/')[0]}/failed/{self._ranks[rank]}"

    def _key(self, topic: str, rank: int) -> str:
        return f"hopsum/{self._name}/{topic}/{rank}"
