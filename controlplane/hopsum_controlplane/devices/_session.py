# SPDX-License-Identifier: Apache-2.0
"""One session with a P4Runtime server, on p4runtime-shell's client, whose manners are not a library's.

What has to be known about `P4RuntimeClient` (0.0.6), and what is done about it here and in `p4runtime`:
- a failed handshake ends the process (sys.exit) and leaves its receiving thread running; being a backup
  client is printed and not returned. The handshake is ours;
- its receiving thread is not a daemon: a process that forgot to close would hang at its end. Threads
  inherit being a daemon from their creator, so the client is made in a daemon thread;
- its calls have no deadline, and its decoder of write errors never returns when the first update of a batch
  succeeded and a later one failed. Calls go to its gRPC stub, and the errors are decoded by us;
- it tells nobody that another client became primary: the message waits in a queue. `check` looks, and a session
  that has lost the switch once does not take it back when that client leaves: what stands there now is in other
  books than ours;
- every kind of message is queued without bound. `check` empties all queues;
- closing waits for the server without limit. `close` cancels the stream when that takes too long;
- its channel obeys proxy variables, even for loopback addresses, which no switch is behind. The channel is ours.
"""

from __future__ import annotations

import atexit
import queue
import threading

import grpc
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4runtime_sh.p4runtime import P4RuntimeClient

from hopsum_controlplane.devices.election import OWNERS, Answer, ElectionId, next_id
from hopsum_controlplane.errors import ControlPlaneError, NotPrimaryError, SessionLostError

_CLOSE_S = 2.0
_NO_PROXY = ("grpc.enable_http_proxy", 0)
# Channels to one address share a connection otherwise, and so a dead one.
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
# A refused batch is answered with an error for each of its updates, in metadata: some 70 bytes each at least.
_METADATA_BYTES = 4 << 20
_METADATA = (("grpc.max_metadata_size", _METADATA_BYTES), ("grpc.absolute_max_metadata_size", _METADATA_BYTES))
# A switch that comes up is to be seen soon, and one that does not is not worth more than a packet now and then.
_SEARCH = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
)


class _Client(P4RuntimeClient):
    """p4runtime-shell's client with a handshake that returns; `verdict` is the answer, None for none."""

    def __init__(
        self, device_id: int, address: str, election_id: ElectionId, timeout_s: float, role: str, where: str
    ) -> None:
        self._handshake_s = timeout_s
        self._where = where
        self.verdict: p4runtime_pb2.StreamMessageResponse | None = None
        self.device_id, self.election_id = device_id, election_id  # as its constructor, but for the channel
        self.role_name = role or None
        self.channel = grpc.insecure_channel(address, (_NO_PROXY, _OWN_CONNECTION, *_METADATA))
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.set_up_stream()

    def handshake(self) -> None:
        self.stream_recv_thread.name = self._where  # logs have it: the library's messages do not say which switch
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        if self.role_name is not None:
            request.arbitration.role.name = self.role_name
        self.stream_out_q.put(request)
        self.verdict = self.get_stream_packet("arbitration", timeout=self._handshake_s)

    def raise_to(self, election_id: ElectionId) -> None:
        """Ask again, with a higher id, and wait for the answer to that; what was sent before it is passed over."""
        self.election_id = election_id
        self.handshake()
        while self.verdict is not None and not _answers(self.verdict, election_id):
            self.verdict = self.get_stream_packet("arbitration", timeout=self._handshake_s)


class Session:
    """A session in which we are the primary client: the one that may write."""

    def __init__(self, client: _Client, where: str) -> None:
        self.where = where
        self.stub = client.stub
        self._client = client
        self._lost: tuple[type[ControlPlaneError], str, str] | None = None  # the error's class, words and hint
        atexit.register(self.close)

    @classmethod
    def open(
        cls, address: str, device_id: int, election_id: ElectionId, timeout_s: float, role: str = "", owner: int = 0
    ) -> Session:
        """Wait up to `timeout_s` for a server at `address`, as long again for its answer, and become primary.

        `role` names a role on the server, none for full access. `owner` is whose sessions the low word of the election
        id counts, see `election`; 0 for a session of nobody's.

        Raises ControlPlaneError when nobody answers or another client is primary; nothing is left running
        then.
        """
        where = f"switch {device_id} at {address}"
        wait_for_server(address, where, timeout_s)
        client = _make_client(address, device_id, election_id, timeout_s, role, where)
        session = cls(client, where)
        try:
            session._count(owner)
            session._open_verdict(client.verdict, timeout_s)
        except BaseException:
            session.close()
            raise
        return session

    def check(self) -> None:
        """Read what the switch sent meanwhile.

        Raises NotPrimaryError when another client is primary, SessionLostError when the session has ended.
        """
        for kind, messages in self._client.stream_in_q.items():
            while True:
                try:
                    message = messages.get_nowait()
                except queue.Empty:
                    break
                if kind == "arbitration":
                    self._note(message)
        # A server that ends the stream in good order queues no message, nor do we when we have closed it.
        if not hasattr(self._client, "channel") or self._client.stream.done():
            self._note(None)
        self._raise_if_lost()

    def close(self) -> None:
        """End the session. Harmless when it has ended."""
        atexit.unregister(self.close)
        client = self._client
        if not hasattr(client, "channel"):  # tear_down deletes it
            return
        client.stream_out_q.put(None)
        client.stream_recv_thread.join(_CLOSE_S)
        if client.stream_recv_thread.is_alive():
            client.stream.cancel()
        client.tear_down()

    @property
    def election_id(self) -> ElectionId:
        """Return the id that this session has."""
        found: ElectionId = self._client.election_id
        return found

    def _count(self, owner: int) -> None:
        """Raise the election id where a session of ours, or one that is over, had it before."""
        client = self._client
        if client.verdict is not None:
            told = client.verdict.arbitration
            code = told.status.code
            answer = Answer(
                code == code_pb2.OK,
                code == code_pb2.ALREADY_EXISTS,
                (told.election_id.high, told.election_id.low),
            )
            following = next_id(client.election_id, owner, answer)
            if following is not None:
                client.raise_to(following)

    def _open_verdict(self, verdict: p4runtime_pb2.StreamMessageResponse | None, timeout_s: float) -> None:
        if verdict is None and not self._client.stream.done():
            raise SessionLostError(
                f"no answer to the P4Runtime handshake in {timeout_s:g} s",
                where=self.where,
                hint="look at its log",
            )
        self._note(verdict)
        self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            kind, what, hint = self._lost
            raise kind(what, where=self.where, hint=hint)

    def _note(self, message: p4runtime_pb2.StreamMessageResponse | None) -> None:
        """Take in one arbitration message; None is the end of the stream."""
        if self._lost is not None:
            return
        if message is None:
            stream = self._client.stream
            ended = f"{stream.code().name} {stream.details()!r}" if stream.done() else "without a reason"
            hint = "check that the switch runs, and the device id; then open the device again"
            if stream.done() and stream.code() is grpc.StatusCode.INVALID_ARGUMENT:
                ours = _show(self._client.election_id)
                hint = f"another client may have election id {ours}: give each controller one of its own"
            self._lost = SessionLostError, f"the P4Runtime session ended: {ended}", hint
        elif message.arbitration.status.code != code_pb2.OK:
            winner = message.arbitration.election_id
            self._lost = NotPrimaryError, *_not_primary(self._client.election_id, (winner.high, winner.low))


def _answers(message: p4runtime_pb2.StreamMessageResponse, election_id: ElectionId) -> bool:
    """Say whether a message can be the answer to an id: it is primary, or there is a higher one."""
    told = message.arbitration
    return told.status.code == code_pb2.OK or (told.election_id.high, told.election_id.low) > election_id


def _not_primary(ours: ElectionId, highest: ElectionId) -> tuple[str, str]:
    """Return what is the matter in words, with ids as they are configured, and what to do about it."""
    if ours[0] == highest[0] and ours[1] % OWNERS != highest[1] % OWNERS:
        what = f"another controller, with other books, has the switch with the same election_id {ours[0]} as this one"
        return what, "stop that one, or give each controller an election_id of its own: the higher one has the switch"
    what = f"our election id {_show(ours)} is not the primary's; the highest so far is {_show(highest)}"
    return what, "stop the other controller, or open the device with a higher election id"


def _show(election_id: ElectionId) -> str:
    """Return an id as it is configured; with the low word where that one was."""
    high, low = election_id
    return f"({high}, {low})" if low < OWNERS and (low or not high) else str(high)


def wait_for_server(address: str, where: str, timeout_s: float) -> None:
    """Wait for a server at `address`. Raises ControlPlaneError when none answers in time."""
    with grpc.insecure_channel(address, (_NO_PROXY, _OWN_CONNECTION, *_SEARCH)) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise SessionLostError(
                f"no P4Runtime server answered in {timeout_s:g} s",
                where=where,
                hint="start the switch, or check the address",
            ) from None


def _make_client(
    address: str, device_id: int, election_id: ElectionId, timeout_s: float, role: str, where: str
) -> _Client:
    made: list[_Client | BaseException] = []

    def make() -> None:
        try:
            made.append(_Client(device_id, address, election_id, timeout_s, role, where))
        except BaseException as error:  # SystemExit is how the library reports
            made.append(error)

    thread = threading.Thread(target=make, name=f"open {where}", daemon=True)
    thread.start()
    thread.join()
    client = made[0]
    if isinstance(client, BaseException):
        raise ControlPlaneError(f"no P4Runtime client: {client!r}", where=where, hint="check the address") from client
    return client
