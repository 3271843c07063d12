# SPDX-License-Identifier: Apache-2.0
"""Worker processes in network namespaces, which do what they are told one word at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import hopsum
from hopsum.communicator import Communicator
from hopsum.errors import HopsumError
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.seat import Seat
from hopsum_topologies.worker_pool import WorkerPool
from hopsum_wire.control.values import message_to_dict

FOLDER = str(Path(__file__).resolve().parent)
ELEMENTS = 2500
ANSWER_S = 300.0
SETTINGS: dict[str, Any] = {"codec": "fixed", "backend": "numpy", "deadline_s": ANSWER_S}


class Member:
    """What one process can be told; the results go back through its pipe."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._job: Communicator | None = None
        self._future: Future[Any] | None = None
        self._joined: list[Any] = []

    def create(self, target: str, name: str, workers: int, lease_s: float, admin: str) -> str:
        with Channel(ControllerAddress.of(target, tls=False)) as channel:
            return JobsClient(channel, admin).create(name, workers, 16, lease_s=lease_s).token

    def show(self, target: str, name: str, admin: str) -> dict[str, Any]:
        with Channel(ControllerAddress.of(target, tls=False)) as channel:
            return message_to_dict(JobsClient(channel, admin).job(name))

    def connect(self, url: str, token: str, rank: int, wait_s: float) -> int:
        """Join; the JOIN that was sent is kept."""
        call = Channel.call

        def watched(channel: Channel, service: str, name: str, request: Any, **given: Any) -> Any:
            reply = call(channel, service, name, request, **given)
            if name == "Join":
                self._joined = [service, name, request, reply]
            return reply

        Channel.call = watched  # type: ignore[method-assign]
        try:
            self._job = hopsum.connect(url, token=token, rank=rank, membership_wait_s=wait_s, **SETTINGS)
        finally:
            Channel.call = call  # type: ignore[method-assign]
        return self._job.rank

    def replay(self, target: str, token: str) -> str:
        """Send the JOIN again, as somebody who has seen it; say what came of it."""
        service, name, request, before = self._joined
        with Channel(ControllerAddress.of(target, tls=False)) as channel:
            try:
                again = channel.call(service, name, request, secret=token)
            except ControllerError as error:
                return str(error)
        return "the same answer" if again == before else "another answer"

    def submit(self) -> None:
        assert self._job is not None
        self._future = self._job.submit(np.linspace(-1, 1, ELEMENTS, dtype=np.float32) * (self._job.rank + 1))

    def result(self) -> bytes:
        assert self._future is not None
        return bytes(self._future.result(ANSWER_S).mean.tobytes())

    def close(self) -> tuple[int, int]:
        """Leave; return how many messages of peers came, and how often one could not be reached."""
        assert self._job is not None
        self._job.close()
        statistics = self._job._transport.statistics.side  # type: ignore[attr-defined]
        return statistics.messages_received, statistics.unreachable


def serve(seat: Seat, _: None, pipe: Connection) -> None:
    """Be one member: threads, and so all connections, begin in the namespace."""
    assert seat.namespace is not None
    enter_namespace(seat.namespace)
    member = Member(seat)
    while True:
        name, *arguments = pipe.recv()
        try:
            pipe.send(("done", getattr(member, name)(*arguments)))
        except HopsumError as error:
            pipe.send(("done", error.__class__.__name__ + ": " + str(error)))


class Members:
    """The processes, by number; a context manager that ends them."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        if FOLDER not in sys.path:  # of the processes too, which import this module by name
            sys.path.insert(0, FOLDER)
        self._pool = WorkerPool(seats, serve, None)

    def tell(self, number: int, *words: Any) -> None:
        self._pool.pipes[number].send(words)

    def hear(self, number: int) -> Any:
        pipe = self._pool.pipes[number]
        assert pipe.poll(ANSWER_S), f"member {number} says nothing"
        kind, answer = pipe.recv()
        assert kind == "done", answer
        return answer

    def ask(self, number: int, *words: Any) -> Any:
        self.tell(number, *words)
        return self.hear(number)

    def ask_all(self, numbers: Sequence[int], *words: Any) -> list[Any]:
        for number in numbers:
            self.tell(number, *words)
        return [self.hear(number) for number in numbers]

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()
