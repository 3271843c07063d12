# SPDX-License-Identifier: Apache-2.0
"""All-reduces over an ordinary UDP socket, blocking or several at a time: no root, no threads.

One loop: send what the worker wants sent, wait for datagrams or the worker's timer, hand them over; by the batch where
the link can.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Timing, Worker, WorkerStatistics
from hopsum.transport.link import DatagramLink, LinkStatistics, RowLink, UdpLink, WakingLink

_STEP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Counts of the traffic at the socket."""

    link: LinkStatistics
    worker: WorkerStatistics


class UdpTransport:
    """One worker on one socket. Not for several threads at once, but for `wake`.

    Args:
        local: (IPv4 address, port) that the switch admits this rank from.
        switch: (IPv4 address, port) of the service; messages name the switch by it.
        generation, rank, workers, slots, rack: this worker's part in the job, see `Membership`.
        link: instead of a UDP socket of its own; closed with the transport.
        on_lost: see `Worker`.

    Raises:
        OSError: the socket cannot be opened at `local`.
        ValueError: rank, workers or slots are out of range.
    """

    def __init__(
        self,
        local: tuple[str, int],
        switch: tuple[str, int],
        *,
        generation: int,
        rank: int,
        workers: int,
        slots: int,
        timing: Timing | None = None,
        link: DatagramLink | None = None,
        on_lost: Literal["fail", "zero"] = "fail",
        rack: tuple[int, ...] | None = None,
    ) -> None:
        label = f"switch {switch[0]}:{switch[1]}"
        self.worker = Worker(Membership(generation, rank, workers, slots, label, rack), timing, on_lost=on_lost)
        self._link = link or UdpLink(local, switch)
        self._rows = self._link if isinstance(self._link, RowLink) else None
        self._unreachable, self._failures = 0, Counter[str]()
        """Of what the link counted: what the worker was told."""

    @property
    def statistics(self) -> TransportStatistics:
        """Counts so far, live."""
        return TransportStatistics(self._link.statistics, self.worker.statistics)

    def allreduce(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> AllReduceDone:
        """Sum chunks over all workers; blocks until every result is here or the deadline passes.

        All ranks make the same calls in the same order.

        Args:
            op: what the switch does with the payloads.
            payloads: uint8[chunks, up_bytes(op)].
            counts: [chunks] or a scalar, elements in use.

        Raises:
            AllReduceTimeoutError: no result by the deadline; the message says what was sent and what came back.
            ResultLostError: the switch no longer has a result that this rank lacks.
            GenerationEndedError: an earlier all-reduce failed, or the generation's rounds are used up, or it is sealed.
                After these three, continue in a new generation with a new transport.
            WireError: unknown op or payloads of another shape; nothing was sent.
        """
        handle = self.submit(op, payloads, counts)
        while True:
            for event in self.step(_STEP_S):
                if event.handle != handle:
                    continue
                if isinstance(event, AllReduceDone):
                    return event
                raise event.error

    def submit(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the stream and return its handle; `step` sends it and brings its event.

        Several may be in progress. Arguments and errors as for `allreduce`; nothing is sent where it raises.
        """
        return self.worker.submit(op, payloads, now=time.monotonic(), counts=counts)

    def step(self, wait_s: float) -> list[AllReduceDone | AllReduceFailed]:
        """Send what is to be sent, wait for datagrams, a timer or `wake`, for `wait_s` at most; return events."""
        worker = self.worker
        self._send(worker.segments_to_send(time.monotonic()))
        timer = worker.get_timer()
        due_s = 0.0 if timer is None else timer - time.monotonic()
        arrived = self._receive(min(wait_s, due_s))
        self._hand_over(arrived, time.monotonic())
        events = []
        while (event := worker.next_event()) is not None:
            events.append(event)
        return events

    def probe(self) -> None:
        """Have the switch asked, at the next step, whom the oldest open sum waits for."""
        self.worker.probe()

    @property
    def can_wake(self) -> bool:
        """Say whether `wake` ends a wait: not every link can."""
        return isinstance(self._link, WakingLink)

    def wake(self) -> None:
        """Let the `step` in progress go on at once, or else the next one. Any thread may call it until `close`."""
        if isinstance(self._link, WakingLink):
            self._link.wake()

    def close(self, *, linger: bool = True) -> None:
        """Close the socket. `linger` is for transports with peers."""
        self._link.close()

    def _send(self, batches: Sequence[NDArray[np.uint8]]) -> None:
        """Send batches of datagrams, uint8[n, bytes] each, in this order."""
        for segments in batches:
            if self._rows is not None:
                self._rows.send_rows(segments)
            else:
                for datagram in segments:
                    self._link.send(memoryview(datagram))

    def _receive(self, timeout_s: float) -> Sequence[NDArray[np.uint8] | bytes | memoryview]:
        """Wait for what arrives: rows, or one datagram each."""
        return self._link.receive(timeout_s) if self._rows is None else self._rows.receive_rows(timeout_s)

    def _hand_over(self, arrived: Sequence[NDArray[np.uint8] | bytes | memoryview], now: float) -> None:
        """Give the worker what arrived, what the network said since the last time, and the time."""
        for received in arrived:
            if isinstance(received, np.ndarray):
                self.worker.receive_rows(received, now)
            else:
                self.worker.receive_datagram(received, now)
        said = self._link.statistics
        for _ in range(said.unreachable - self._unreachable):
            self.worker.note_unreachable(now)
        for name in (said.failures - self._failures).elements():
            self.worker.note_failed_send(name)
        self._unreachable, self._failures = said.unreachable, Counter(said.failures)
        self.worker.handle_timer(now)

    def __enter__(self) -> UdpTransport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
