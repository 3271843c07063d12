# SPDX-License-Identifier: Apache-2.0
"""One session with a P4Runtime server in which this process is the primary client.

The session uses the stubs of the package `p4runtime` and nothing else: p4runtime-shell is for people at a prompt.
P4Runtime 1.4, chapter 5, has the rules of arbitration. This module adds two of its own:
- a session that lost the switch once does not take the switch back when the other client leaves: what is installed by
  then is in another controller's database.
- `check` reads the messages of the server, since no call of P4Runtime tells that another client became primary.

The low word of an election id counts the sessions of one controller, so that its newer session has the switch. A
controller asks with (its configured id, 0). A switch without a primary accepts that id, which is raised at once to
(configured id, count << 32 | owner) with the count 1. Where a session of the same configured id is primary, the switch
answers with that one's id. If its owner is ours, it is our own session of before, perhaps on a dead connection, and the
next count wins against it. If it is another's, two controllers have the same configured id, and the second is refused.
An id without a primary is passed as well: P4Runtime never lets the highest id sink.
"""

from __future__ import annotations

import atexit
import queue
import threading
from typing import Final, NamedTuple

from google.rpc import code_pb2

from hopsum_base.p4runtime import p4runtime_pb2, p4runtime_pb2_grpc
from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.errors import ControlPlaneError, NotPrimaryError, SessionLostError
from hopsum_controlplane.switch_channel import OPTIONS, SEARCH, open_channel
from hopsum_controlplane.switch_tls import SwitchTls, diagnose_unreachable

ElectionId = tuple[int, int]
OWNERS: Final = 1 << 32
"""An owner is 1 .. OWNERS - 1. 0 means no owner."""


class ArbitrationAnswer(NamedTuple):
    """A switch's answer to an election id.

    ours: this client is primary. taken: another client is. Without a primary both are False. highest: the highest id
    that the switch has seen.
    """

    ours: bool
    taken: bool
    highest: ElectionId


def next_election_id(asked: ElectionId, owner: int, answer: ArbitrationAnswer) -> ElectionId | None:
    """Return the election id to ask with next, or None if the answer is final.

    Without an `owner` an id is only raised past one that no client has any more.
    """
    high, low = asked
    # An id with a low word was given in full, and is never changed.
    if low or (answer.ours and not owner):
        return None
    highest_high, highest_low = answer.highest
    if answer.ours or highest_high < high:
        return high, _low(1, owner)
    if highest_high > high or (answer.taken and not has_owner(answer.highest, owner)):
        return None
    # The high half of the low word counts sessions of the owner in its low half: the next count wins.
    count = (highest_low >> 32) + 1
    return (high, _low(count, owner)) if count < OWNERS else None


def has_owner(election_id: ElectionId, owner: int) -> bool:
    """Return whether an election id is of a session of this owner. False for owner 0, which means no owner."""
    return owner != 0 and election_id[1] % OWNERS == owner


def _low(count: int, owner: int) -> int:
    return count << 32 | owner


_CLOSE_S = 2.0


class _Stream:
    """The stream channel of a session: requests go out, arbitration messages come in.

    `arbitrations` has them in the order in which they came. None is the end of the stream. A daemon thread reads the
    stream, so that a process that forgot to close a session can end. Messages of other kinds (packet-ins, digests,
    idle timeouts) have no reader here and are dropped.
    """

    def __init__(self, stub: p4runtime_pb2_grpc.P4RuntimeStub, where: str) -> None:
        self._requests: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
        self.arbitrations: queue.SimpleQueue[p4runtime_pb2.MasterArbitrationUpdate | None] = queue.SimpleQueue()
        self.call = stub.StreamChannel(iter(self._requests.get, None))
        self.receiver = threading.Thread(target=self._receive, name=where, daemon=True)
        self.receiver.start()

    def _receive(self) -> None:
        try:
            for message in self.call:
                if message.WhichOneof("update") == "arbitration":
                    self.arbitrations.put(message.arbitration)
        except grpc.RpcError:
            # `call` keeps its code and details.
            pass
        finally:
            # None is the end of the stream for the thread that asks, whatever ended it.
            self.arbitrations.put(None)

    def send(self, request: p4runtime_pb2.StreamMessageRequest) -> None:
        self._requests.put(request)

    def next_arbitration(self, timeout_s: float) -> p4runtime_pb2.MasterArbitrationUpdate | None:
        """Return the next message, or None when the stream ends, or none comes in time."""
        try:
            return self.arbitrations.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def ended(self) -> bool:
        """Say whether the stream has ended. What came before its end is in `arbitrations` then."""
        if not self.call.done():
            return False
        # The reader thread may still hand over the last message before its end.
        self.receiver.join(_CLOSE_S)
        return True

    def close(self) -> None:
        """End the stream. Cancel it where the server does not end its side in time."""
        # None ends the request iterator, which half-closes the stream.
        self._requests.put(None)
        self.receiver.join(_CLOSE_S)
        if self.receiver.is_alive():
            self.call.cancel()


class Session:
    """A session in which this process is the primary client: the one that may write. `open` makes it."""

    def __init__(
        self, address: str, device_id: int, election_id: ElectionId, where: str, tls: SwitchTls | None
    ) -> None:
        self.where = where
        self.election_id = election_id
        """The id that the session has, higher than asked for where a session of the same owner had that one before."""
        self._device_id = device_id
        self._channel = open_channel(address, OPTIONS, tls)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._stream = _Stream(self.stub, where)
        self._closed = False
        # Class, words and hint of the error that every later call raises.
        self._lost: tuple[type[ControlPlaneError], str, str] | None = None
        # A process that forgets to close would else leave its stream to the switch's own time-out.
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        address: str,
        device_id: int,
        election_id: ElectionId,
        timeout_s: float,
        owner: int = 0,
        tls: SwitchTls | None = None,
    ) -> Session:
        """Wait up to `timeout_s` for a server at `address`, as long again for its answer, and become primary.

        `owner` is the controller whose sessions the low word of the election id counts, see `next_election_id`; 0 for
        none. Without `tls` the session is unencrypted.

        Raises ControlPlaneError when the server does not answer or another client is primary. Nothing is left running
        then.
        """
        where = f"switch {device_id} at {address}"
        # A channel of its own asks first: a stream on a dead address would wait for gRPC's own back-off.
        wait_for_server(address, where, timeout_s, tls)
        session = cls(address, device_id, election_id, where, tls)
        try:
            session._become_primary(owner, timeout_s)
        except BaseException:
            session.close()
            raise
        return session

    def check(self) -> None:
        """Read the messages that the switch has sent since the last call, without waiting. Nothing is sent.

        Raises NotPrimaryError when another client is primary, SessionLostError when the session has ended.
        """
        ended = self._closed or self._stream.ended()
        while True:
            try:
                told = self._stream.arbitrations.get_nowait()
            except queue.Empty:
                break
            if told is not None:
                self._note(told)
        if ended:
            self._note(None)
        self._raise_if_lost()

    def close(self) -> None:
        """End the session: another client may then become primary. A second call does nothing."""
        atexit.unregister(self.close)
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._channel.close()

    def _become_primary(self, owner: int, timeout_s: float) -> None:
        """Ask to be primary. Ask again with a higher id where another session of ours, or an ended one, had this id."""
        # The configured id with the low word 0 asks who is primary, and takes the switch where nobody is.
        told = self._arbitrate(timeout_s)
        if told is not None:
            code = told.status.code
            highest = (told.election_id.high, told.election_id.low)
            answer = ArbitrationAnswer(code == code_pb2.OK, code == code_pb2.ALREADY_EXISTS, highest)
            following = next_election_id(self.election_id, owner, answer)
            if following is not None:
                self.election_id = following
                told = self._arbitrate(timeout_s)
                # The answer to the first request may come again, when the other client leaves: it is not the answer
                # to the second.
                while told is not None and not _answers(told, following):
                    told = self._stream.next_arbitration(timeout_s)
        if told is None and not self._stream.ended():
            raise SessionLostError(
                f"no answer to the P4Runtime handshake in {timeout_s:g} s",
                where=self.where,
                hint="look at its log",
            )
        self._note(told)
        self._raise_if_lost()

    def _arbitrate(self, timeout_s: float) -> p4runtime_pb2.MasterArbitrationUpdate | None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self._device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self._stream.send(request)
        return self._stream.next_arbitration(timeout_s)

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            kind, what, hint = self._lost
            raise kind(what, where=self.where, hint=hint)

    def _note(self, told: p4runtime_pb2.MasterArbitrationUpdate | None) -> None:
        """Take in one arbitration message. None is the end of the stream."""
        if self._lost is not None:
            return
        if told is None:
            call = self._stream.call
            ended = f"{call.code().name} {call.details()!r}" if call.done() else "without a reason"
            hint = "check that the switch runs, and the device id; then open the device again"
            if call.done() and call.code() is grpc.StatusCode.INVALID_ARGUMENT:
                ours = _show(self.election_id)
                hint = f"another client may have election id {ours}: give each controller one of its own"
            self._lost = SessionLostError, f"the P4Runtime session ended: {ended}", hint
        elif told.status.code != code_pb2.OK:
            winner = told.election_id
            self._lost = NotPrimaryError, *_not_primary(self.election_id, (winner.high, winner.low))


def _answers(told: p4runtime_pb2.MasterArbitrationUpdate, election_id: ElectionId) -> bool:
    """Say whether a message can be the answer to an id: it is primary, or there is a higher one."""
    return told.status.code == code_pb2.OK or (told.election_id.high, told.election_id.low) > election_id


def _not_primary(ours: ElectionId, highest: ElectionId) -> tuple[str, str]:
    """Return why this session is not the primary one, with ids as they are configured, and the remedy."""
    if ours[0] == highest[0] and ours[1] % OWNERS != highest[1] % OWNERS:
        what = (
            f"another controller, with another database, has the switch with the same election_id {ours[0]} as this one"
        )
        return what, "stop that one, or give each controller an election_id of its own: the higher one has the switch"
    what = f"our election id {_show(ours)} is not the primary's; the highest so far is {_show(highest)}"
    return what, "stop the other controller, or open the device with a higher election id"


def _show(election_id: ElectionId) -> str:
    """Return an id as it is configured, with the low word of an id that was configured before."""
    high, low = election_id
    return f"({high}, {low})" if low < OWNERS and (low or not high) else str(high)


def wait_for_server(address: str, where: str, timeout_s: float, tls: SwitchTls | None = None) -> None:
    """Wait until a server accepts connections at `address`, by a channel that is closed again.

    Raises SessionLostError, with `where`, when none does within `timeout_s`, and ControlPlaneError for files of `tls`.
    """
    with open_channel(address, (*OPTIONS, *SEARCH), tls) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            why, hint = diagnose_unreachable(address, tls)
            raise SessionLostError(
                f"no P4Runtime server answered in {timeout_s:g} s{why}", where=where, hint=hint
            ) from None
