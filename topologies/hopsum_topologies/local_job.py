# SPDX-License-Identifier: Apache-2.0
"""A job that a local cluster or a network control has made: its parts at switches, memberships and communicators."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from hopsum.agent import Agent
from hopsum.codec import Codec
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane import Job, SwitchController
from hopsum_controlplane.membership_file import write_membership_file
from hopsum_wire.membership import JobMembership


class OpenSockets(NamedTuple):
    """The sockets of one worker."""

    links: tuple[UdpLink, ...]
    """By shard."""
    side: socket.socket | None
    """The listener of its side channel. None: a job without side channels."""

    def close(self) -> None:
        """Close all sockets of this worker."""
        for link in self.links:
            link.close()
        if self.side is not None:
            self.side.close()


@dataclass(slots=True, eq=False)
class LocalJob:
    """A job at switches of this machine. The context manager closes its communicators and removes it."""

    parts: Mapping[SwitchController, Job]
    """By controller, the job at each switch that workers send to: its shards, or the leaves of its tree."""
    memberships: tuple[JobMembership, ...]
    """By rank, the data that a worker needs. All are the same, except in a tree."""
    where: str
    """A text for people: the switches that sum."""
    ending: ExitStack
    """The removal of the job, which `close` runs last."""
    codec: Codec | None = None
    """The codec of a job of `open_job`. None for a job of `create_job`."""
    opened: tuple[OpenSockets, ...] = ()
    """By rank, the sockets of `open_job` that no communicator has."""
    _comms: tuple[Agent, ...] = ()

    @property
    def generation(self) -> int:
        """Return the number of the job's generation, which all parts have in common."""
        return self.memberships[0].generation

    def connect(self, **options: Any) -> list[Agent]:
        """Connect all workers of a job of `open_job`, in this process. Return their communicators by rank.

        The communicators are the job's, which closes them. A second call returns the same ones, and ignores its
        options. Options are those of `Agent`, and so are errors. A job of `create_job` raises AssertionError.
        """
        assert self.codec is not None, "a job of create_job has the sockets of its caller"
        while self.opened:
            rank, (own, *others) = len(self._comms), self.opened
            agent = Agent(self.memberships[rank], rank, codec=self.codec, link=own.links, side=own.side, **options)
            self._comms, self.opened = (*self._comms, agent), tuple(others)
        return list(self._comms)

    def write(self, path: Path, rank: int = 0) -> Path:
        """Write a rank's membership into a file, for a worker in another process. Return `path`.

        An earlier file is replaced. Raises ControlPlaneError. One file serves all ranks, except in a tree.
        """
        write_membership_file(self.memberships[rank], path)
        return path

    def counters(self) -> dict[str, int]:
        """Read from the switches the packets of the job that they have counted. Return them by event, over all parts.

        Events are those of `SwitchController.job_counters`. Raises ControlPlaneError.
        """
        total = Counter[str]()
        for controller, part in self.parts.items():
            total.update(controller.job_counters(part))
        return dict(total)

    def close(self) -> None:
        """Close the communicators and sockets, and remove the job. Raises ControlPlaneError. May be repeated."""
        with self.ending as stack:
            for each in self.opened:
                stack.callback(each.close)
            self.opened = ()
            # Workers leave before their switch forgets the job, and together: each waits for the others' leave.
            comms, self._comms = self._comms, ()
            if comms:
                pool = stack.enter_context(ThreadPoolExecutor(len(comms)))
                stack.callback(lambda: [future.result() for future in [pool.submit(comm.close) for comm in comms]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
