# SPDX-License-Identifier: Apache-2.0
"""All workers of a job in one process: sockets that keep every slot of a switch busy, for measurements.

The datagrams are stamped before the clock starts. A slot's next round leaves from all workers when the first of
them holds its RESULT, so the switch always has work, and no worker breaks the protocol's window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from hopsum.cli.stage.seat import open_link
from hopsum.cli.stage.targets import SWITCH, Stage
from hopsum.transport.link import UdpLink
from hopsum.wire import Header, Kind, Op, up_bytes
from hopsum.wire.datagrams import stamp_datagrams, update_template
from hopsum_controlplane import Controller, JobSpec

SILENCE_S = 0.25
"""After which what has no answer is sent again."""
MAX_SILENCES = 20


class LoadError(Exception):
    """The switch stopped answering."""


class Load:
    """A job on a stage and the sockets of its workers; a context manager that ends both."""

    def __init__(self, scene: Stage, table: tuple[int, ...], slots: int) -> None:
        self._stack = ExitStack()
        self.slots = slots
        self.retransmits = 0
        self._round = 0
        self._links: list[UdpLink] = []
        with ExitStack() as stack:
            for seat in scene.seats:
                self._links.append(link := open_link(seat))
                stack.callback(link.close)
            controller = Controller(scene.device, SWITCH)
            endpoints = tuple(
                seat.endpoint(link.local) for seat, link in zip(scene.seats, self._links, strict=True)
            )
            self.job = controller.create_job(JobSpec("load", endpoints, slots, table))
            stack.callback(controller.delete_job, self.job)
            self._stack = stack.pop_all()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, rounds: int, seed: int) -> list[list[memoryview]]:
        """Return the datagrams of every worker for the next rounds of all slots, in the order of the stream."""
        count = rounds * self.slots
        slots = np.tile(np.arange(self.slots), rounds)
        numbers = self._round + 1 + np.repeat(np.arange(rounds), self.slots)
        self._round += rounds
        rng = np.random.default_rng(seed)
        prepared = []
        for rank in range(len(self._links)):
            payloads = rng.integers(0, 256, (count, up_bytes(Op.LOOKUP_ADD8)), dtype=np.uint8)
            template = update_template(op=Op.LOOKUP_ADD8, epoch=self.job.epoch, worker=rank)
            stamped = stamp_datagrams(template, slots=slots, rounds=numbers, counts=1024, payloads=payloads)
            prepared.append(_views(stamped))
        return prepared

    def run(self, prepared: Sequence[Sequence[memoryview]]) -> None:
        """Send everything and see every RESULT. Raises LoadError when the switch stays silent."""
        positions = len(prepared[0])
        outstanding = dict(enumerate(range(min(self.slots, positions))))
        self._send(prepared, outstanding.values())
        silences = 0
        while outstanding:
            results = self._links[0].receive(SILENCE_S)
            if not results:
                silences += 1
                if silences > MAX_SILENCES:
                    raise LoadError(f"no RESULT in {silences * SILENCE_S:.0f} s for {len(outstanding)} slots")
                self.retransmits += len(outstanding) * len(self._links)
                self._send(prepared, outstanding.values())
            self._send(prepared, self._advance(results, prepared, outstanding))

    def _advance(
        self, results: Sequence[bytes], prepared: Sequence[Sequence[memoryview]], outstanding: dict[int, int]
    ) -> list[int]:
        """Take in RESULTs; return the positions that may be sent now."""
        ready = []
        for result in results:
            header = Header.unpack(result)
            position = outstanding.get(header.slot)
            if header.kind != Kind.RESULT or position is None or bytes(prepared[0][position][12:16]) != result[12:16]:
                continue
            if position + self.slots < len(prepared[0]):
                outstanding[header.slot] = position + self.slots
                ready.append(position + self.slots)
            else:
                del outstanding[header.slot]
        return ready

    def _send(self, prepared: Sequence[Sequence[memoryview]], positions: Iterable[int]) -> None:
        for position in positions:
            for link, datagrams in zip(self._links, prepared, strict=True):
                link.send(datagrams[position])


def _views(stamped: NDArray[np.uint8]) -> list[memoryview]:
    return [memoryview(row) for row in stamped]
