# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job by their hosts, and the facts of a call that all ranks of a host have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsum.communicator.signature import digest_of
from hopsum.communicator.task import Task
from hopsum.errors import HopsumError


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """The hosts of a job, as one rank sees them."""

    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host, ascending; hosts in the order of their lowest ranks. A host's place is its worker."""
    rank: int
    """The rank that this is."""

    @property
    def ranks(self) -> int:
        """The number of ranks on all hosts."""
        return sum(map(len, self.hosts))

    @property
    def host(self) -> int:
        """Return the worker of the job that this rank's host is."""
        return next(number for number, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def local(self) -> tuple[int, ...]:
        """Return the ranks of this host; the first one is the leader."""
        return self.hosts[self.host]

    @property
    def leader(self) -> int:
        """Return the rank that takes part in the job for this host."""
        return self.local[0]

    def in_words(self, error: HopsumError) -> str:
        """Return an error of the job, whose workers are hosts, with the ranks that these are."""
        named = [*getattr(error, "ranks", ()), *getattr(error, "missing_ranks", ())] or [self.host]
        told = "; ".join(
            f"worker {number} is the host of {ranks_in_words(self.hosts[number])}"
            for number in named
            if number < len(self.hosts)
        )
        return f"{error} (with local_group a worker of the job is a host: {told})"


def ranks_in_words(ranks: tuple[int, ...]) -> str:
    """Return `rank 3`, or `ranks 0, 1, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def call_facts(task: Task) -> dict[str, Any]:
    """Return the facts of an all-reduce that must be equal on all ranks of a host, as plain values."""
    # A digest: the names of a model's tensors may be longer than a packet of the Unix socket.
    names = digest_of(repr([(name, int(elements)) for name, elements in task.tensors]))
    return {
        "elements": task.x.size,
        "step": None if task.given_step is None else int(task.given_step),
        "on_nonfinite": task.on_nonfinite,
        "names": names,
    }
