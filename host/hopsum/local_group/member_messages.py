# SPDX-License-Identifier: Apache-2.0
"""Messages between the leader of a host's ranks and each of its members.

from      message                                          meaning
member    hello: rank                                      its rank
member    call: number, call, segment [memory]             its next vector is in this segment; a new one is attached
member    abandon: why                                     its program ends before its work is done
leader    begun: number                                    the sum of the host is on its way
leader    done: number, skipped, seconds, contributors     the mean is in that segment
leader    failed: number, error, over                      that all-reduce, which had begun, has failed, and all with it
leader    over: error                                      the leader takes nothing more
leader    fetching                                         it fetches the state of another worker
leader    state: error [memory]                            the state from `fetch_state`; without memory, its error

A message is a JSON object in one packet of a Unix socket. The end of the connection is the end of the other process.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from contextlib import suppress
from typing import Any, Final

import numpy as np

from hopsum import errors
from hopsum.agent import CommunicatorClosedError, MismatchError
from hopsum.codec import CodecError, CollectiveError, NonFiniteError
from hopsum.codec.interface import Floats
from hopsum.errors import AllReduceError, GenerationEndedError, HopsumError

# Memory that two processes share, for one vector at a time. It has no name, and ends with the processes.


class SharedVector:
    """Memory that two processes share, for a vector of up to `elements` float32. The constructor maps it.

    Args:
        number: its name between the two processes.
        descriptor: of the memory; the constructor closes it.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        try:
            size = os.fstat(descriptor).st_size
            # The mapping keeps the memory alive, so the descriptor can be closed at once.
            self._words: Floats = np.frombuffer(mmap.mmap(descriptor, size), np.float32)
        finally:
            os.close(descriptor)

    @property
    def elements(self) -> int:
        """The number of elements that fit."""
        return self._words.size

    def vector(self, elements: int) -> Floats:
        """Return a view of the first elements, float32[elements]: writes change the shared memory."""
        return self._words[:elements]


class SegmentPool:
    """The segments that a member has made; the smallest free one serves the next vector."""

    def __init__(self) -> None:
        self._free: list[SharedVector] = []
        self._made = 0

    def allocate(self, elements: int) -> tuple[SharedVector, int | None]:
        """Take a segment for at least so many elements out of the pool, or make one. Return it and its descriptor.

        It is out of the pool until `release`. The descriptor is None for a segment that was free, the smallest that
        fits. The other process needs that of a new one, and the caller closes it. Raises OSError if there is not
        enough memory.
        """
        # Best fit: buckets of a model have few sizes, so after one step no segment is made any more.
        fitting = [each for each in self._free if each.elements >= elements]
        if fitting:
            found = min(fitting, key=lambda each: each.elements)
            self._free.remove(found)
            return found, None
        descriptor = os.memfd_create(f"hopsum-vector-{self._made}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, 4 * max(1, elements))  # now, and not by SIGBUS when it is written
            made = SharedVector(self._made, os.dup(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        return made, descriptor

    def release(self, segment: SharedVector) -> None:
        """Put a segment back into the pool. The other process no longer uses it."""
        self._free.append(segment)


_BYTES_MAX: Final = 1 << 16
_TEXT_MAX: Final = 8000
_KINDS: Final[dict[str, type[HopsumError]]] = {
    kind.__name__: kind
    for kind in (
        *(getattr(errors, name) for name in errors.__all__),
        CodecError,
        CollectiveError,
        NonFiniteError,
        MismatchError,
        CommunicatorClosedError,
    )
}
_WITH_RANKS: Final = {
    "AllReduceTimeoutError": "missing_ranks",
    "RankLeftError": "ranks",
    "WorkersReplacedError": "ranks",
}


class Connection:
    """One end of the socket between a leader and a member. Several threads may send, one receives.

    Args:
        end: a connected Unix socket of packets; closed with this object.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self._end.fileno()

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> bool:
        """Send a message, with a duplicate of the descriptor if one is given. Return whether the message was sent.

        False: the other process has ended, or sending failed. Raises nothing. The caller keeps the descriptor.
        """
        told = json.dumps(message).encode()
        with self._lock, suppress(OSError):
            return socket.send_fds(self._end, [told], [] if descriptor is None else [descriptor]) > 0
        return False

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """Wait for the next message. Return it with its descriptor or None, or None if the other process has ended.

        The caller closes the descriptor.
        """
        try:
            try:
                told, found, _, _ = socket.recv_fds(self._end, _BYTES_MAX, 1)
            except ConnectionResetError:  # the other process ended without having read all; what it said before follows
                told, found, _, _ = socket.recv_fds(self._end, _BYTES_MAX, 1)
        except OSError:
            told, found = b"", []
        # An end with descriptors attached would leak them.
        if not told:
            for each in found:
                os.close(each)
            return None
        message: dict[str, Any] = json.loads(told)
        return message, found[0] if found else None

    def close(self) -> None:
        """End the connection. A waiting `receive`, here or in the other process, returns None."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error as the JSON values of a message: its nearest known class, its text (shortened), its ranks.

    An error of an unknown class becomes an AllReduceError.
    """
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), AllReduceError.__name__)
    ranks = list(getattr(error, _WITH_RANKS.get(name, ""), ()))
    return {"kind": name, "text": str(error)[:_TEXT_MAX], "ranks": ranks}


def error_from_json(told: dict[str, Any]) -> HopsumError:
    """Return a new error of the class, text and ranks in a message. An unknown class is AllReduceError."""
    kind = _KINDS.get(told["kind"], AllReduceError)
    if kind is NonFiniteError:
        return NonFiniteError(told["text"], 0)
    if told["kind"] in _WITH_RANKS:
        made: HopsumError = kind(told["text"], tuple(told["ranks"]))
        return made
    return kind(told["text"])


def generation_ended_error(who: str, failure: BaseException) -> GenerationEndedError:
    """Return the error of all-reduces after a failure. `failure` is its cause, and `who` begins its text."""
    error = GenerationEndedError(f"{who} takes no more all-reduces: {failure}. Connect all ranks again")
    error.__cause__ = failure
    return error
