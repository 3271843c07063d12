# SPDX-License-Identifier: Apache-2.0
"""torch's store, as ranks that have not met yet use it: the one of the process group, or torchrun's."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hopsum.config import ConfigError
from hopsum.hosts.meeting import Meeting

_calls: dict[str, int] = {}
"""Stores that were opened in this process, by life of the group of ranks."""


class RankStore:
    """A store with this process's rank. `name` is of this call, the same on all ranks.

    Args:
        what: is being opened. Messages begin with it.

    Raises:
        ConfigError: no process group and no RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment, as torchrun
            sets them, or the store does not answer.
    """

    def __init__(self, timeout_s: float, what: str = "hosts://") -> None:
        self.rank, self.workers, self._store = _find(timeout_s, what)
        life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        _calls[life] = _calls.get(life, 0) + 1
        # Ranks open stores in one order, so the count is equal on all of them. An elastic restart begins anew.
        self.name = f"{life}.{_calls[life]}"

    def put(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(key, value)

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""
        return self._store.get(key).decode() if self._store.check([key]) else None


def meet_all_ranks(wait_s: float, what: str) -> Meeting | None:
    """Return the meeting of all ranks that open `what`, None for collective:// without a process group.

    Raises ConfigError as RankStore does.
    """
    if what.startswith("collective") and not (dist.is_available() and dist.is_initialized()):
        return None
    store = RankStore(wait_s, what)
    return Meeting(store, f"{store.name}/all", store.rank, store.workers, wait_s, what)


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
