# SPDX-License-Identifier: Apache-2.0
"""One client's session with a BF Runtime server.

BF Runtime has no election. A client subscribes under a number of its own, and binds to a program: a second client that
binds is refused while the first one is connected. So the first client has the program, for as long as its stream lasts.
Two clients with one number are refused as well.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.rpc import code_pb2

from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.bfruntime.bfrt_messages import (
    ALL_DIRECTIONS,
    ALL_PARSERS,
    ALL_PIPES,
    CLASSES,
    ConfigAction,
    Stub,
    new_message,
)
from hopsum_controlplane.errors import ControlPlaneError, NotPrimaryError, SessionLostError
from hopsum_controlplane.switch_channel import OPTIONS, SEARCH, RefusedUpdate, open_channel, refusals
from hopsum_controlplane.switch_tls import SwitchTls

_CLOSE_S: Final = 2.0
_OPTIONS: Final = (
    *OPTIONS,
    *SEARCH,
    # The description of a program is longer than the 4 MiB that gRPC takes by default.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_LOST: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_UNANSWERED: Final = (*_LOST, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Statuses after which a batch may have been applied, wholly or in part, or not at all."""


class BfrtSession:
    """A session with the switch `device_id` at `address`, as client `client_id`.

    Construction waits up to `timeout_s` for the server, and as long for its answer. Raises SessionLostError when there
    is none, or when a client with this number is connected; ControlPlaneError when files of `tls` cannot be used.
    Without `tls` the session is unencrypted.
    """

    def __init__(
        self, address: str, device_id: int, client_id: int, timeout_s: float, tls: SwitchTls | None = None
    ) -> None:
        self.where = f"switch {device_id} at {address}"
        self._device_id, self._client_id = device_id, client_id
        self._channel = open_channel(address, _OPTIONS, tls)
        self._stub = Stub(self._channel)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None
        self._closed = False
        atexit.register(self.close)
        try:
            self._subscribe(timeout_s)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise SessionLostError when the session has ended. Nothing is sent."""
        if self._closed or self._call.done():
            why = "closed" if self._closed else f"{self._call.code().name} {self._call.details()!r}"
            hint = "check that the switch runs, and whether another client pushed a program"
            raise SessionLostError(f"the BF Runtime session ended: {why}", where=self.where, hint=hint)

    def close(self) -> None:
        """End the session. Does nothing when it has ended."""
        atexit.unregister(self.close)
        if not self._closed:
            self._closed = True
            self._requests.put(None)
            if self._call is not None:
                self._receiver.join(_CLOSE_S)
                self._call.cancel()
            self._channel.close()

    def read_config(self, timeout_s: float) -> Any:
        """Read the running programs with the JSON of their tables, and the JSON of the chip's tables.

        Returns a GetForwardingPipelineConfigResponse. Raises SessionLostError without an answer, and ControlPlaneError
        when the server refuses.
        """
        request = new_message(
            "GetForwardingPipelineConfigRequest", device_id=self._device_id, client_id=self._client_id
        )
        return self._send("GetForwardingPipelineConfig", self._stub.get_config, request, timeout_s)

    def push(self, config: Any, timeout_s: float) -> None:
        """Make the switch run a ForwardingPipelineConfig in place of all programs that it runs.

        Tables, ports and queues are empty then. Raises NotPrimaryError when another client has the program, and
        otherwise as `read_config`.
        """
        self._set_config(ConfigAction.VERIFY_AND_WARM_INIT_BEGIN_AND_END, config, timeout_s)

    def bind(self, program: str, timeout_s: float) -> None:
        """Become the client of a program, by its name, which may then write its tables.

        Raises NotPrimaryError when another client has the program, and otherwise as `read_config`.
        """
        config = new_message("ForwardingPipelineConfig", p4_name=program)
        self._set_config(ConfigAction.BIND, config, timeout_s)

    def read(self, entries: Iterable[Any], timeout_s: float, *, pipe: int = ALL_PIPES) -> list[Any]:
        """Read entries, and return them. The list is empty when the switch lacks one of the keys that were asked for.

        An entry without a key asks for its whole table. Raises as `read_config`.
        """
        self.check()
        request = new_message("ReadRequest", client_id=self._client_id, target=self._target(pipe))
        for entry in entries:
            request.entities.add().table_entry.CopyFrom(entry)
        try:
            responses = list(self._stub.read(request, timeout=timeout_s))
        except grpc.RpcError as error:
            refused = refusals(error, CLASSES["Error"], len(request.entities))
            if refused and all(refusal.code == "NOT_FOUND" for refusal in refused):
                return []
            raise self._error("Read", error) from None
        return [entity.table_entry for response in responses for entity in response.entities]

    def write(self, updates: Sequence[Any], timeout_s: float, *, pipe: int = ALL_PIPES) -> list[RefusedUpdate]:
        """Write updates, in their order. Return the refused ones; the others are written.

        Raises SessionLostError without an answer, also where the switch may have written, and ControlPlaneError when it
        refused the call as a whole.
        """
        self.check()
        request = new_message("WriteRequest", client_id=self._client_id, target=self._target(pipe))
        request.updates.extend(updates)
        try:
            self._stub.write(request, timeout=timeout_s)
            return []
        except grpc.RpcError as error:
            if refused := refusals(error, CLASSES["Error"], len(updates)):
                return refused
            raise self._error("Write", error) from None

    def _subscribe(self, timeout_s: float) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            what = f"no BF Runtime server answered in {timeout_s:g} s"
            raise SessionLostError(what, where=self.where, hint="start the switch, or check the address") from None
        request = new_message("StreamMessageRequest", client_id=self._client_id)
        request.subscribe.device_id = self._device_id
        self._call = self._stub.stream(iter(self._requests.get, None))
        self._receiver = threading.Thread(target=self._receive, name=self.where, daemon=True)
        self._receiver.start()
        self._requests.put(request)
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            what = f"no answer to the subscription in {timeout_s:g} s"
            raise SessionLostError(what, where=self.where, hint="look at the log of the switch") from None
        if answer is None or answer.subscribe.status.code != code_pb2.OK:
            said = f"{self._call.code().name} {self._call.details()!r}" if answer is None else str(answer)
            raise SessionLostError(
                f"client {self._client_id} is not taken: {said}",
                where=self.where,
                hint="a client with this number is connected: end that client, or wait for the end of its session",
            )

    def _receive(self) -> None:
        try:
            for answer in self._call:
                if answer.HasField("subscribe"):
                    self._answers.put(answer)
        except grpc.RpcError:
            # The call keeps its code and details.
            pass
        finally:
            self._answers.put(None)

    def _set_config(self, action: ConfigAction, config: Any, timeout_s: float) -> None:
        request = new_message("SetForwardingPipelineConfigRequest", device_id=self._device_id, action=action)
        request.client_id = self._client_id
        request.config.add().CopyFrom(config)
        self._send("SetForwardingPipelineConfig", self._stub.set_config, request, timeout_s)

    def _send(self, name: str, call: Any, request: Any, timeout_s: float) -> Any:
        self.check()
        try:
            return call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._error(name, error) from None

    def _target(self, pipe: int) -> Any:
        return new_message(
            "TargetDevice", device_id=self._device_id, pipe_id=pipe, direction=ALL_DIRECTIONS, prsr_id=ALL_PARSERS
        )

    def _error(self, name: str, error: Any) -> ControlPlaneError:
        code = error.code()
        what = f"{name} failed: {code.name} {error.details()!r}"
        if code in _LOST or (name == "Write" and code in _UNANSWERED):
            hint = "see whether the switch runs and is reachable"
            return SessionLostError(what, where=self.where, hint=hint)
        if name == "SetForwardingPipelineConfig" and code is grpc.StatusCode.ALREADY_EXISTS:
            hint = "another client has the program: stop that client, and start this one again"
            return NotPrimaryError(what, where=self.where, hint=hint)
        return ControlPlaneError(what, where=self.where, hint="look at the log of the switch")
