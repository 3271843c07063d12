# SPDX-License-Identifier: Apache-2.0
"""The calls that may be in progress: decided by a call's token and peer, before its message is read.

A call without a token is refused. Calls with tokens that nobody here has are few at a time, in all and from each
address, so that a worker whose job is gone still hears why. Each token has a bound of its own: who holds one cannot
take another's calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

STRANGERS_MAX: Final = 32
"""Calls in progress whose tokens nobody here has."""
STRANGERS_OF_ADDRESS_MAX: Final = 8
_PORTLESS: Final = ("unix", "vsock")


class TooManyClientsError(Exception):
    """A call that is refused unread: gRPC's status code, and the reason in words."""

    def __init__(self, code: grpc.StatusCode, told: str) -> None:
        super().__init__(told)
        self.code, self.told = code, told


class Gate:
    """Counts the calls in progress. For one thread, the event loop's."""

    def __init__(self) -> None:
        self._of_token: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()

    @contextmanager
    def known(self, token: str, most: int) -> Iterator[None]:
        """Let a call with a known token pass, for the block. Raises TooManyClientsError at `most` in progress."""
        if self._of_token[token] >= most:
            raise _busy(f"{most} calls with this token are in progress")
        with _counted(self._of_token, token):
            yield

    @contextmanager
    def stranger(self, peer: str) -> Iterator[None]:
        """Let a call with an unknown token pass, for the block. Raises TooManyClientsError when there are too many."""
        address = address_of(peer)
        if self._strangers[address] >= STRANGERS_OF_ADDRESS_MAX or self._strangers.total() >= STRANGERS_MAX:
            raise _busy("too many calls with tokens that no job and no worker has are in progress")
        with _counted(self._strangers, address):
            yield


def address_of(peer: str) -> str:
    """Return gRPC's name of a peer, "ipv4:10.0.0.1:4321", without its port: "ipv4:10.0.0.1"."""
    return peer if peer.startswith(_PORTLESS) else peer.rpartition(":")[0]


@contextmanager
def _counted(counter: Counter[str], key: str) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _busy(why: str) -> TooManyClientsError:
    return TooManyClientsError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{why}: ask again later")
