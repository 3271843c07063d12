# SPDX-License-Identifier: Apache-2.0
"""A process that answers every UPDATE with a RESULT of zeros: the datagrams of a switch without the switch.

What the load reaches against it bounds what it can reach against a switch on the same cores.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection

import numpy as np

from hopsum.transport.link import DATAGRAM_BYTES_MAX, RECEIVE_BUFFER_BYTES
from hopsum.transport.offload import GSO_BYTES_MAX, SEGMENTS_MAX, SOL_UDP, UDP_GRO, UDP_SEGMENT, Offload
from hopsum_evaluation.bench.traffic import RESULT_BYTES, UPDATE_BYTES, headers_of
from hopsum_topologies.child_launcher import die_with_parent
from hopsum_wire import HOPSUM_BYTES, Kind

_JOIN_S = 10.0
_START_S = 60.0


class Echo:
    """The process and its `address`, as a context manager that ends it.

    Raises RuntimeError: the process did not come up.
    """

    def __init__(self, workers: int, offload: Offload) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = ((1 << workers) - 1, offload, os.getpid(), theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        try:
            if not ours.poll(_START_S):
                raise RuntimeError(f"the echo process said nothing in {_START_S:.0f} s")
            self.address: tuple[str, int] = ours.recv()
        except (EOFError, RuntimeError) as error:
            self.close()
            raise RuntimeError(f"the echo process did not start: {error!r}") from error
        finally:
            ours.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid or 0

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join(_JOIN_S)

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(contributors: int, offload: Offload, parent_pid: int, pipe: Connection) -> None:
    die_with_parent(parent_pid)
    most = min(SEGMENTS_MAX, GSO_BYTES_MAX // RESULT_BYTES) if offload.segment else 1
    buffer = np.empty(DATAGRAM_BYTES_MAX + 1, np.uint8)
    results = np.zeros((len(buffer) // UPDATE_BYTES, RESULT_BYTES), np.uint8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        if offload.gro:
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        if offload.segment:
            sock.setsockopt(SOL_UDP, UDP_SEGMENT, RESULT_BYTES)
        pipe.send(sock.getsockname())
        pipe.close()
        while True:
            size, peer = sock.recvfrom_into(buffer.data)
            count = size // UPDATE_BYTES
            answers = results[:count]
            answers[:, :HOPSUM_BYTES] = buffer[: count * UPDATE_BYTES].reshape(count, UPDATE_BYTES)[:, :HOPSUM_BYTES]
            headers = headers_of(answers)
            headers["kind"], headers["contributors"] = Kind.RESULT, contributors
            headers["length"] = RESULT_BYTES - HOPSUM_BYTES
            for first in range(0, count, most):
                sock.sendto(answers[first : first + most].data, peer)
