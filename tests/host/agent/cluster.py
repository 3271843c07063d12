# SPDX-License-Identifier: Apache-2.0
"""Agents on loopback around the oracle behind a UDP socket, and what they send."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from hopsum.agent import Agent
from hopsum.codec import Codec, job_tables, make_codec
from hopsum.protocol.worker import Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator, JobConfig, WorkerConfig
from hopsum_wire import LANE_GROUP_CODES, Header, Op
from hopsum_wire.membership import Endpoint, JobMembership, RankEndpoint

from ...support.server import LOCALHOST, UdpSwitch
from ..transport.lossy import LossyLink, Mishaps, WrappedLink

GENERATION, SLOTS, WINDOW = 41, 16, 8
EAGER = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0)
PATIENT = Timing(retransmit_s=30.0, retransmit_max_s=30.0, deadline_s=60.0)
"""A slow machine is no loss: nothing is sent twice."""
HASTY = Timing(retransmit_s=0.02, deadline_s=0.3)
ASKING = Timing(retransmit_s=0.02, deadline_s=4.0)
"""Asks the switch a second before: it answers in that time, also on a machine that pauses for a while."""


class RecordingLink(WrappedLink):
    """Notes the header of everything that is sent."""

    def __init__(self, link: DatagramLink) -> None:
        super().__init__(link)
        self.headers: list[Header] = []

    def send(self, datagram: bytes | memoryview) -> None:
        self.headers.append(Header.unpack(datagram))
        self._link.send(datagram)


class Gate(WrappedLink):
    """A link that holds back the sums of one op until it is opened."""

    def __init__(self, link: DatagramLink, op: Op, opened: threading.Event) -> None:
        super().__init__(link)
        self._op, self._opened = op, opened
        self._held: list[bytes] = []

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        self._held += [bytes(datagram) for datagram in self._link.receive(min(timeout_s, 0.01))]
        shut = not self._opened.is_set()
        passing = [each for each in self._held if not (shut and Header.unpack(each).op == self._op)]
        self._held = [each for each in self._held if each not in passing]
        return passing


@dataclass
class Cluster:
    """A switch, a job, and one link per worker; `agent` puts an agent on one. All is closed with the stack."""

    stack: ExitStack
    workers: int
    quorum: int = 0
    mishaps: Mishaps | None = None
    seed: int = 0
    links: list[RecordingLink] = field(default_factory=list)
    code_group: int = LANE_GROUP_CODES
    ops: frozenset[Op] = frozenset(Op)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Besides those of thc."""
    looped: tuple[int, ...] = ()
    """Ranks that have the link itself, without `headers`: the compiled loop serves them."""

    def __post_init__(self) -> None:
        self.aggregator = Aggregator()
        self.switch = self.stack.enter_context(UdpSwitch(self.aggregator))
        locals_ = []
        for rank in range(self.workers):
            link = UdpLink((LOCALHOST, 0), self.switch.address)
            self.stack.callback(link.close)
            locals_.append(link.local)
            rng = random.Random(f"{self.seed} {rank}")
            self.links.append(RecordingLink(link if self.mishaps is None else LossyLink(link, self.mishaps, rng)))
        members = [self._member(rank, local) for rank, local in enumerate(locals_)]
        quorum = self.quorum or self.workers
        thc = make_codec("thc", workers=self.workers, backend="numpy")
        tables: dict[str, Any] = {**job_tables(thc), **self.tables}
        job = JobConfig(GENERATION, 0, 0, SLOTS, tuple(members), quorum, code_group=self.code_group, **tables)
        self.aggregator.add_job(job)
        self.membership = JobMembership(
            "test",
            GENERATION,
            SLOTS,
            WINDOW,
            quorum,
            switch=Endpoint(*self.switch.address),
            workers=tuple(
                RankEndpoint(rank, Endpoint(*local), Endpoint(*self.switch.address))
                for rank, local in enumerate(locals_)
            ),
            tables=tables,
            code_group=self.code_group,
            ops=self.ops,
        )

    def agent(self, rank: int, codec: str | Codec, timing: Timing = EAGER) -> Agent:
        link: DatagramLink = self.links[rank]._link if rank in self.looped else self.links[rank]
        made = Agent(self.membership, rank, codec=codec, timing=timing, link=link)
        return self.stack.enter_context(made)

    def agents(self, codec: str | Codec, timing: Timing = EAGER) -> list[Agent]:
        return [self.agent(rank, codec, timing) for rank in range(self.workers)]

    @staticmethod
    def _member(rank: int, local: tuple[str, int]) -> WorkerConfig:
        return WorkerConfig(rank, rank, rank, int.from_bytes(socket.inet_aton(local[0]), "big"), local[1])
