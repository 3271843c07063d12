# SPDX-License-Identifier: Apache-2.0
"""The oracle behind a UDP socket, in a thread: a switch for transport tests."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

from hopsum_oracle.aggregator import Aggregator, JobConfig, WorkerConfig

LOCALHOST = "127.0.0.1"


def address_bits(host: str) -> int:
    return int.from_bytes(socket.inet_aton(host), "big")


def job_for(
    locals_: list[tuple[str, int]], *, generation: int, slots: int, **tables: tuple[int, ...] | None
) -> JobConfig:
    """Return the job whose workers live at these addresses; switch port = rank."""
    workers = tuple(
        WorkerConfig(rank, rank, rank, address_bits(host), port) for rank, (host, port) in enumerate(locals_)
    )
    return JobConfig(generation, 0, 0, slots, workers, quorum=len(workers), **tables)


class UdpSwitch:
    """Serves until closed, then what had arrived. Look at `aggregator` once it is closed; an empty datagram ends it."""

    def __init__(self, aggregator: Aggregator, ip: str = LOCALHOST) -> None:
        self.aggregator = aggregator
        # Both in the network namespace of the caller: the second one only ends the thread.
        self._socket, self._waker = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self._socket.bind((ip, 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self.failure: BaseException | None = None

    def _serve(self) -> None:
        try:
            while True:
                data, (host, port) = self._socket.recvfrom(65535)
                if not data:
                    return
                self._answer(data, host, port)
        except BaseException as failure:
            self.failure = failure

    def _answer(self, data: bytes, host: str, port: int) -> None:
        where = {
            (worker.ip, worker.udp_port): worker.port for job in self.aggregator.jobs.values() for worker in job.workers
        }
        ip = address_bits(host)
        outcome = self.aggregator.receive(where.get((ip, port), 511), ip, port, data)
        for output in outcome.outputs:
            to = (socket.inet_ntoa(output.worker.ip.to_bytes(4, "big")), output.worker.udp_port)
            self._socket.sendto(output.header.pack() + output.payload, to)

    def __enter__(self) -> UdpSwitch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Serve what has arrived, and close the socket. Harmless when that is done."""
        if not self._thread.is_alive() and self._socket.fileno() < 0:
            return
        with self._waker:
            self._waker.sendto(b"", self.address)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        self._socket.close()
        if self.failure is not None:
            raise self.failure
