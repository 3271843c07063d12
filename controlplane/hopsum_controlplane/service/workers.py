# SPDX-License-Identifier: Apache-2.0
"""The service of workers. A wait for a membership holds a thread; so that joins and heartbeats always find one, only
some calls may wait, and the others are answered at once: ask again."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc

from hopsum.rpc import control_pb2 as pb
from hopsum_controlplane.cluster.errors import NoRoom, NotAdmitted
from hopsum_controlplane.cluster.views import Pending
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.handlers import Answer
from hopsum_controlplane.service.messages import beat_message, join_request, located_message, pending_message

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.manager import Manager

WAIT_S: Final = 10.0
"""That a call may wait, at most."""
AGAIN_S: Final = 1.0
"""Pause that a worker is told to make where nobody can wait for it here."""
_PIECE_S: Final = 0.5
_MARGIN_S: Final = 0.5
"""Before a call's deadline, for the answer to get there."""


class Workers:
    """Answers the calls of workers, `waits` of them waiting at a time. Thread-safe, as the manager is."""

    def __init__(self, manager: Manager, *, waits: int) -> None:
        self._manager = manager
        self._waits = threading.BoundedSemaphore(waits)
        self._closing = threading.Event()

    def answers(self) -> Mapping[str, Answer]:
        """Return an answer for each method."""
        return {
            "Locate": self._locate,
            "Join": self._join,
            "AwaitMembership": self._await_membership,
            "Heartbeat": self._heartbeat,
            "Leave": self._leave,
        }

    def close(self) -> None:
        """Let no call begin to wait any more."""
        self._closing.set()

    def _locate(self, request: Any, token: str, context: grpc.ServicerContext) -> Any:
        return located_message(self._manager.locate(request.job, token))

    def _join(self, request: Any, token: str, context: grpc.ServicerContext) -> Any:
        try:
            joined = self._manager.join(join_request(request, token))
        except NoRoom as error:  # its own status says "later", and later is not sooner than somebody leaves
            raise ControlPlaneError(error.what, where=error.where, hint=error.hint) from error
        return pb.JoinReply(
            rank=joined.rank, secret=joined.secret, lease_s=joined.lease_s, heartbeat_s=joined.heartbeat_s
        )

    def _await_membership(self, request: Any, token: str, context: grpc.ServicerContext) -> Any:
        secret = _secret(token)
        may_wait = not self._closing.is_set() and self._waits.acquire(blocking=False)
        try:
            wait_s = _wait_s(request.timeout_s, context.time_remaining()) if may_wait else 0.0
            found = self._wait(request, secret, wait_s, context)
        finally:
            if may_wait:
                self._waits.release()
        if isinstance(found, Pending):
            again_s = 0.0 if may_wait else AGAIN_S * random.uniform(0.5, 1.5)
            return pending_message(found, again_s)
        return pb.AwaitMembershipReply(membership=json.dumps(found))

    def _wait(
        self, request: Any, secret: bytes, wait_s: float, context: grpc.ServicerContext
    ) -> dict[str, Any] | Pending:
        """Wait in pieces, as nothing else ends it when the worker has gone or the service closes."""
        until = time.monotonic() + wait_s
        while True:
            left_s = until - time.monotonic()
            found = self._manager.await_membership(
                request.job,
                request.rank,
                secret,
                known_epoch=request.known_epoch,
                timeout_s=max(0.0, min(left_s, _PIECE_S)),
            )
            if not isinstance(found, Pending) or left_s <= _PIECE_S:
                return found
            if self._closing.is_set() or not context.is_active():
                return found

    def _heartbeat(self, request: Any, token: str, context: grpc.ServicerContext) -> Any:
        statistics = dict(request.statistics)
        beat = self._manager.heartbeat(
            request.job, request.rank, _secret(token), epoch=request.epoch, statistics=statistics
        )
        return beat_message(beat)

    def _leave(self, request: Any, token: str, context: grpc.ServicerContext) -> Any:
        unfinished = request.reason if request.unfinished else None
        self._manager.leave(request.job, request.rank, _secret(token), unfinished=unfinished)
        return pb.LeaveReply()


def _secret(token: str) -> bytes:
    """Return a member's secret. Raises NotAdmitted for a token that is none."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        raise NotAdmitted("this is no member's secret", hint="join first") from None


def _wait_s(asked_s: float, left_s: float | None) -> float:
    """Return how long a call may wait: what it asks for and its deadline leaves, 0 for what is no time."""
    most_s = WAIT_S if left_s is None else min(WAIT_S, left_s - _MARGIN_S)
    return max(0.0, min(asked_s, most_s)) if asked_s > 0 else 0.0
