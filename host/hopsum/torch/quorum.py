# SPDX-License-Identifier: Apache-2.0
"""A process group whose ranks change: what torchft's Manager configures anew for every quorum.

    group = QuorumProcessGroup()
    manager = torchft.Manager(pg=group, min_replica_size=2, load_state_dict=..., state_dict=...)

The number of workers is in a job's lookup table, its lanes and its bitmaps, so every quorum is a job of its own: its
ranks meet over the quorum's store, and the job of the quorum before is left. torchft itself is not imported here: this
is the interface of its `ProcessGroup` (0.2.0), as far as `Manager` and `ManagedProcessGroup` use it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, as torch documents

from hopsum.communicator import Communicator
from hopsum.config import Config, ConfigError, resolve
from hopsum.connection import Hooks, open_config
from hopsum.errors import HopsumError
from hopsum.hosts import Meeting
from hopsum.torch.group import BACKEND, ProcessGroupHopsum

_TIMEOUT: Final = timedelta(seconds=60)


class Quorum(NamedTuple):
    """One quorum, as a rank of it sees it."""

    store: Store
    """A store of this quorum alone, which all of its ranks reach."""
    number: int
    rank: int
    workers: int


Connect = Callable[[Quorum], Communicator]
"""A function that takes part in a job of the quorum's workers, with its rank. All ranks of a quorum call it."""


class QuorumProcessGroup(dist.ProcessGroup):
    """A `ProcessGroupHopsum` that `configure` replaces.

    An all-reduce that fails has the error in its work, and `errored` has the first one since `configure`. There is no
    error feedback: tensors of a process group have no names.

    Args:
        connect: takes part in the job of a quorum, by default a job over the ranks' own hosts (`hosts://`).
        timeout: of the store and of what goes through Gloo.
        min_elements: as of `ProcessGroupHopsum.Options`.
        settings: of `hopsum.connect`, where `connect` is left out.
    """

    def __init__(
        self,
        connect: Connect | None = None,
        *,
        timeout: timedelta = _TIMEOUT,
        min_elements: int = 1024,
        **settings: Any,
    ) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]
        if connect is not None and settings:
            raise ConfigError(f"settings {', '.join(settings)} with a connect of your own: pass them there")
        self._connect = connect or _over_hosts(settings)
        self._timeout, self._min_elements = timeout, min_elements
        self._comm: Communicator | None = None
        self._group: ProcessGroupHopsum | None = None
        self._error: Exception | None = None
        self._futures: deque[Any] = deque()
        """The futures of all-reduces since `configure` that `errored` has not looked at."""

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Leave the job of the quorum before, and take part in that of this one. torchft calls it.

        Args:
            store_addr: HOST:PORT/PREFIX of a store, of this quorum alone.
            rank: of this replica in the quorum.
            world_size: replicas in the quorum. A single one has nobody to average with, and no job.

        Raises:
            HopsumError: the ranks of the quorum do not come together.
        """
        self.abort()
        store = _store_at(store_addr, self._timeout)
        options = None
        if world_size > 1:
            number = -1 if quorum_id is None else quorum_id
            comm = self._connect(Quorum(PrefixStore("hopsum", store), number, rank, world_size))
            if (comm.rank, comm.workers) != (rank, world_size):
                comm.close()
                raise HopsumError(
                    f"replica {rank} of {world_size} in quorum {quorum_id}, and connect returned rank {comm.rank} of "
                    f"{comm.workers}: make a job for each quorum, of its number of workers"
                )
            self._comm, options = comm, ProcessGroupHopsum.Options(comm, self._min_elements)
        gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, world_size, self._timeout)
        self._group = ProcessGroupHopsum(gloo, options, is_told=True)
        self._futures, self._error = deque(), None

    def abort(self) -> None:
        """Leave the job, if there is one, so that no other rank waits for this one. torchft calls it."""
        comm, self._comm, self._group = self._comm, None, None
        if comm is not None:
            # Rank 0 of a hosts:// job waits for ranks that have died to leave: nobody here needs to wait for that.
            threading.Thread(target=comm.close, name="hopsum-quorum-close", daemon=True).start()

    def shutdown(self) -> None:
        """Leave the job, and wait until that is done."""
        comm, self._comm, self._group = self._comm, None, None
        if comm is not None:
            comm.close()

    def errored(self) -> Exception | None:
        """Return the first error of an all-reduce since `configure`. torchft calls it before it commits a step."""
        while self._futures and self._futures[0].done():
            try:
                self._futures.popleft().value()
            except Exception as error:
                self._error = self._error or error
        return self._error

    @property
    def communicator(self) -> Communicator | None:
        """Return what sums for this quorum, or None for a quorum of one, and before the first one."""
        return self._comm

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # all of torch's overloads
        """Begin to replace tensors, a list of one, by their sum or mean over the quorum. torchft calls it."""
        if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            options: Any = dist.AllreduceOptions()
            options.reduceOp = opts
            opts = options
        self.errored()  # which forgets those that are over
        work = self._configured().allreduce(tensors, opts)
        self._futures.append(work.get_future())
        return work

    def size(self) -> int:
        """Return how many replicas the quorum has."""
        return self._configured().size()

    def getBackendName(self) -> str:
        """Return the name that torch shows."""
        return BACKEND

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of quorums from the next one on."""
        self._timeout = timeout

    def _configured(self) -> ProcessGroupHopsum:
        if self._group is None:
            raise RuntimeError("this process group has no quorum yet: torchft's Manager calls configure")
        return self._group


def _of_group(name: str) -> Callable[..., Any]:
    """Return the method of a quorum's process group that is method `name` of its Gloo."""

    def operation(self: QuorumProcessGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self._configured(), name)(*arguments, **options)

    operation.__doc__ = f"Call `{name}` of Gloo; called by torch and torchft."
    return operation


_PASSED_ON: Final = (
    "allgather", "allreduce_coalesced", "alltoall_base", "barrier", "broadcast", "reduce_scatter", "send", "recv",
)  # fmt: skip
for _name in _PASSED_ON:
    setattr(QuorumProcessGroup, _name, _of_group(_name))


def _store_at(address: str, timeout: timedelta) -> Store:
    """Return the store at HOST:PORT/PREFIX. Raises HopsumError where nobody answers."""
    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    try:
        store = TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise HopsumError(f"no store of a quorum at {address}: {error}") from error
    return PrefixStore(prefix, store)


class _QuorumStore:
    """A store of torch, as `hopsum.hosts.Meeting` uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(key, value)

    def find(self, key: str) -> str | None:
        """Return a value, None if there is none yet, without waiting."""
        return self._store.get(key).decode() if self._store.check([key]) else None


def _over_hosts(settings: dict[str, Any]) -> Connect:
    """Return what makes a job over the ranks' own hosts for every quorum. Raises ConfigError for other settings.

    Nobody takes a place that another rank has left: torchft makes another quorum.
    """
    told = {"replacement_wait_s": 0.0, **settings, "url": "hosts://"}
    resolve({**told, "rank": 0})

    def connect(quorum: Quorum) -> Communicator:
        config: Config = resolve({**told, "rank": quorum.rank})
        meeting = Meeting(
            _QuorumStore(quorum.store), "quorum", quorum.rank, quorum.workers, config.membership_wait_s,
            f"quorum {quorum.number}",
        )  # fmt: skip
        return open_config(config, Hooks(meeting=meeting))

    return connect
