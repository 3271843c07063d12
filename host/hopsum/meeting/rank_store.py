# SPDX-License-Identifier: Apache-2.0
"""torch's store for ranks that have not met yet: the store of the process group, or torchrun's.

Under elastic torchrun a store outlives a round of ranks: it has the messages of ranks of earlier rounds, and nothing
else says in which round a rank is. The agents' counts of restarts differ. So the ranks first agree on a name.

    rank r     puts a new random text at here/r
    rank 0     puts the texts of all ranks at round, and again when one has changed
    rank r     finds its own text there: rank 0 of this round has read it. The text of rank 0 names the round

A rank that gives up before all have met leaves the reason, for ranks that come later. Ranks that were started after
that, or have come into that round, are of another round or call.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hopsum.config import ConfigError
from hopsum.meeting.meeting import (
    SAY_EVERY_S,
    KeyValueStore,
    Meeting,
    MeetingError,
    WaitLimit,
    as_meeting_errors,
    await_ranks,
    failures_key,
)

_ANSWER_S: Final = 60.0
"""Seconds for an answer of the store, once it is there."""
_GLOO_S: Final = 1800.0
"""Seconds for which torch's process groups wait unless a program says otherwise."""
_log: Final = logging.getLogger(__name__)
_known: Final[set[tuple[int, str]]] = set()
"""(rank, name) of each round of this process, and of each failure that it has read: a later call ignores these."""


class _HeardError(MeetingError):
    """Another rank, `rank`, has given up."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class RankStore:
    """torch's store, with this process's rank, and a `name` that only this call has, the same on all ranks.

    The constructor blocks until all ranks have called it.

    Args:
        patience: the limit of the wait for the other ranks.
        what: the name of the communicator that is opened, the beginning of messages.
        group: a process group. Its ranks meet without the others, and `rank` is the rank in the group.
        failure: the reason if this rank meets the others only to report its failure, else empty.

    Raises:
        ConfigError: no process group and no RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment, as torchrun
            sets them; the store does not answer, or some rank does not come.
    """

    def __init__(self, patience: WaitLimit, what: str, group: Any = None, failure: str = "") -> None:
        self.rank, self.workers, self._store = _find(patience.wait_s, what)
        if group is not None:
            # The other ranks need not open anything: nobody waits for them.
            ranks = dist.get_process_group_ranks(group)
            prefix = f"hopsum of {ranks}"
            self._store = dist.PrefixStore(prefix, self._store)  # type: ignore[attr-defined]  # public, by the manual
            self.rank, self.workers = ranks.index(self.rank), len(ranks)
        with as_meeting_errors(what, "round"):
            self.name = agree_on_round(self, self.rank, self.workers, patience, what, failure)

    def put(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(key, value)

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    def has_all(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values, by one question to the store."""
        return bool(self._store.check([*keys]))

    def admit(self, ranks: Collection[int]) -> None:
        """Let restarted ranks find the name of this call, unless another call has begun. For rank 0."""
        told = json.loads(self.find("hopsum/round") or "[]")
        heard = [self.name, *(self.find(f"hopsum/here/{rank}") for rank in ranks)]
        # Another call has begun where another name is told: its ranks must find that one.
        if told[:1] == heard[:1] and told != heard:
            self.put("hopsum/round", json.dumps(heard))


def meet_ranks(what: str, patience: WaitLimit | None, group: Any = None, failure: str = "") -> Meeting | None:
    """Return the meeting of all ranks that open `what`, None for collective:// without a process group. Blocks.

    Args:
        patience: the limit of the wait for missing ranks. None: the timeout of the process group. That timeout also
            replaces a limit of setting "deadline_s" if it is longer than the limit and than torch's default.
        group: a process group whose ranks meet without the others. Several groups may do so at the same time.
        failure: see `RankStore`.

    Raises:
        ConfigError: as RankStore.
    """
    if what.startswith("collective") and not (dist.is_available() and dist.is_initialized()):
        return None
    group_s = _group_timeout_s(group)
    if patience is None or (patience.setting == "deadline_s" and group_s > max(patience.wait_s, _GLOO_S)):
        patience = WaitLimit(group_s or _GLOO_S, "the process group's timeout")
    store = RankStore(patience, what, group, failure)
    return Meeting(store, f"{store.name}/all", store.rank, store.workers, patience, what)


def _group_timeout_s(group: Any) -> float:
    """Return the longest timeout of a process group, by default of that of all ranks, 0.0 without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0.0
    group, longest_s = group or dist.group.WORLD, 0.0
    for device in group._device_types:  # of no public name
        # Backends of others need not tell their options.
        with suppress(AttributeError, RuntimeError):
            longest_s = max(longest_s, group._get_backend(device).options._timeout.total_seconds())
    return longest_s


def agree_on_round(
    store: KeyValueStore, rank: int, workers: int, patience: WaitLimit, what: str, failure: str = ""
) -> str:
    """Return a name that these ranks have in common, and that no ranks before them had. Blocks until all have come.

    Args:
        failure: the reason for which this rank fails after it has come, else empty. If this wait fails, the other
            ranks get the reason as their error, also ranks that come later.

    Raises:
        MeetingError: ranks do not come, or a rank that did not wait for all has failed. Then the reason is in the
            store for the other ranks.
    """
    own = name = secrets.token_hex(8)
    told = ""
    _known.add((rank, own))
    store.put(f"hopsum/here/{rank}", own)

    def lead() -> list[int]:
        nonlocal told
        if store.find(failures_key(own)) is not None:
            failed = {each: store.find(f"{failures_key(own)}/{each}") for each in range(1, workers)}
            raise MeetingError(f"{what}: {'; '.join(f'rank {each}: {why}' for each, why in failed.items() if why)}")
        texts = [store.find(f"hopsum/here/{each}") for each in range(workers)]
        # Below this round's name: a rank of a round before, whose text is still there, has not come.
        missing = [each for each in range(1, workers) if not store.find(f"hopsum/{own}/come/{each}")]
        # Looked at after the texts: one that has come may be ahead, with the text of its next round.
        heard = json.dumps([own, *(texts[each] if each in missing else None for each in range(1, workers))])
        if missing and heard != told:
            store.put("hopsum/round", heard)
            told = heard
        if missing:
            _require_no_failure(store, rank, what, missing)
        return missing

    def follow() -> list[int]:
        nonlocal name
        names = json.loads(store.find("hopsum/round") or "[]")
        if own not in names:
            _require_no_failure(store, rank, what, [0])
            return [0]
        name = str(names[0])
        _known.add((rank, name))
        store.put(f"hopsum/{name}/come/{rank}", "true")
        return []

    try:
        await_ranks(follow if rank else lead, what, "round", rank, workers, patience)
    except MeetingError as error:
        heard_of = error.rank if isinstance(error, _HeardError) else rank
        # A reason that was heard is there already: as one of this rank it would be news to those that try again.
        if rank and heard_of != rank:
            raise
        why = failure or str(error).removeprefix(f"{what}: ")
        note = {"rank": rank, "name": own, "of": heard_of, "at": time.time(), "why": why}
        with suppress(RuntimeError, OSError):
            store.put(f"hopsum/gave up/{'follower' if rank else 'leader'}", json.dumps(note))
            if rank == 0:
                # Those that have come wait for this rank under the name that it has told them.
                Meeting(store, f"{own}/all", rank, workers, patience, what).fail(ConfigError(why))
        raise
    return name


def _require_no_failure(store: KeyValueStore, rank: int, what: str, missing: Collection[int]) -> None:
    """Raise MeetingError where a rank that is missing has given up while this process ran, with its reason."""
    note = json.loads(store.find(f"hopsum/gave up/{'leader' if rank else 'follower'}") or "{}")
    if not note or note["rank"] not in missing or note["of"] == rank or (rank, note["name"]) in _known:
        return
    if note["at"] > _started_at():
        _known.add((rank, note["name"]))
        raise _HeardError(f"{what}: rank {note['rank']}: {note['why']}", note["rank"])


def _started_at() -> float:
    """Return when this process was started, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _find(timeout_s: float, what: str) -> tuple[int, int, Any]:
    if dist.is_available() and dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()  # of no public name
        return dist.get_rank(), dist.get_world_size(), store
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if lacking := [name for name in needed if not os.environ.get(name)]:
        raise ConfigError(
            f"{what}: no process group and no {', '.join(lacking)} in the environment: start the program with "
            "torchrun, or call torch.distributed.init_process_group first"
        )
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        # torch's own wait for the rank that has the store, and there for all others.
        with _saying(f"{what}: rank {os.environ['RANK']} waits for torch's store at {where}, and for all ranks there"):
            store, rank, workers = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
        store.set_timeout(timedelta(seconds=min(timeout_s, _ANSWER_S)))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{what}: no answer of torch's store at {where}: {error}") from error
    return rank, workers, store


@contextmanager
def _saying(text: str) -> Iterator[None]:
    """Say this on the log every minute that the block takes."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(SAY_EVERY_S):
            _log.warning(text)

    # A thread, since torch holds this one.
    threading.Thread(target=say, name="hopsum-store", daemon=True).start()
    try:
        yield
    finally:
        over.set()
