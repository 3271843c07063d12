# SPDX-License-Identifier: Apache-2.0
"""torch's store, as ranks that have not met yet use it: the one of the process group, or torchrun's.

Under elastic torchrun a store outlives a round of ranks: it has what the ranks of rounds before told each other, and
nothing else says in which round a rank is. The agents' counts of restarts differ. So the ranks first agree on a name.

    rank r     puts a new random text at here/r
    rank 0     puts the texts of all ranks at round, and again when one has changed
    rank r     finds its own text there: rank 0 of this round has heard it. The text of rank 0 names the round
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hopsum.config import ConfigError
from hopsum.hosts.meeting import KeyValueStore, Meeting, await_ranks, store_answers


class RankStore:
    """A store with this process's rank. `name` is of this call, the same on all ranks, and of no call before.

    Args:
        timeout_s: for the other ranks.
        what: is being opened. Messages begin with it.
        group: a process group whose ranks have a part of the store, and ranks, of their own.

    Raises:
        ConfigError: no process group and no RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment, as torchrun
            sets them; the store does not answer, or some rank does not come.
    """

    def __init__(self, timeout_s: float, what: str = "hosts://", group: Any = None) -> None:
        self.rank, self.workers, self._store = _find(timeout_s, what)
        if group is not None:
            # The other ranks need not open anything: nobody waits for them.
            ranks = dist.get_process_group_ranks(group)
            prefix = f"hopsum of {ranks}"
            self._store = dist.PrefixStore(prefix, self._store)  # type: ignore[attr-defined]  # public, by the manual
            self.rank, self.workers = ranks.index(self.rank), len(ranks)
        with store_answers(what, "round"):
            self.name = agree_on_round(self, self.rank, self.workers, timeout_s, what)

    def put(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(key, value)

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    def admit(self, ranks: Collection[int]) -> None:
        """Let ranks that were started again find the name of this call. Rank 0 calls it."""
        told = json.loads(self.find("hopsum/round") or "[]")
        heard = [self.name, *(self.find(f"hopsum/here/{rank}") for rank in ranks)]
        # Another call has begun where another name is told: its ranks must find that one.
        if told[:1] == heard[:1] and told != heard:
            self.put("hopsum/round", json.dumps(heard))


def meet_all_ranks(wait_s: float, what: str, group: Any = None) -> Meeting | None:
    """Return the meeting of all ranks that open `what`, None for collective:// without a process group.

    Args:
        group: a process group whose ranks meet by themselves. Several groups may do so at one time.

    Raises:
        ConfigError: as RankStore.
    """
    if what.startswith("collective") and not (dist.is_available() and dist.is_initialized()):
        return None
    store = RankStore(wait_s, what, group)
    return Meeting(store, f"{store.name}/all", store.rank, store.workers, wait_s, what)


def agree_on_round(store: KeyValueStore, rank: int, workers: int, wait_s: float, what: str) -> str:
    """Return a name that these ranks have in common, and that no ranks before them had. Raises ConfigError."""
    own = name = secrets.token_hex(8)
    told = ""
    store.put(f"hopsum/here/{rank}", own)

    def lead() -> list[int]:
        nonlocal told
        texts = [store.find(f"hopsum/here/{each}") for each in range(workers)]
        # Below this round's name: a rank of a round before, whose text is still there, has not come.
        missing = [each for each in range(1, workers) if not store.find(f"hopsum/{own}/come/{each}")]
        # Looked at after the texts: one that has come may be ahead, with the text of its next round.
        heard = json.dumps([own, *(texts[each] if each in missing else None for each in range(1, workers))])
        if missing and heard != told:
            store.put("hopsum/round", heard)
            told = heard
        return missing

    def follow() -> list[int]:
        nonlocal name
        names = json.loads(store.find("hopsum/round") or "[]")
        if own not in names:
            return [0]
        name = str(names[0])
        store.put(f"hopsum/{name}/come/{rank}", "true")
        return []

    await_ranks(follow if rank else lead, what, "round", rank, workers, wait_s)
    return name


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
    try:
        store, rank, workers = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConfigError(f"{what}: no answer of torch's store at {where}: {error}") from error
    return rank, workers, store
