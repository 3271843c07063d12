# SPDX-License-Identifier: Apache-2.0
"""The common part of all targets with a P4Runtime server.

One client per switch and no state outside it, so one process can hold any number of switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import Message

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.devices.device import CONTROLLER_ELECTION_ID, Capabilities, Device, PipelineConfig
from hopsum_controlplane.devices.p4runtime_session import ElectionId, Session
from hopsum_controlplane.entries import CounterValue, MulticastGroup, TableEntry, Update
from hopsum_controlplane.errors import (
    ControlPlaneError,
    FailedUpdate,
    NotPrimaryError,
    SessionLostError,
    WriteError,
)
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_controlplane.p4runtime_encoding import decode_counter, decode_entity, fill_update
from hopsum_controlplane.switch_channel import refusals
from hopsum_controlplane.switch_tls import SwitchTls

_GetConfig = p4runtime_pb2.GetForwardingPipelineConfigRequest
_SetConfig = p4runtime_pb2.SetForwardingPipelineConfigRequest
PROBE_TIMEOUT_S = 5.0
"""The wait for what a switch says of its program. Asked every second or so, it also finds out whether the connection is
dead."""
_NO_PIPELINE = "the switch runs no program"


class P4RuntimeDevice(Device):
    """A switch with a P4Runtime server. Subclasses have what is special about a target. A context manager that closes.

    address, device_id: of the server. election_id: of this client, see `p4runtime_session`.
    connect_timeout_s: seconds for which construction waits for the server.
    rpc_timeout_s, push_timeout_s: seconds for each call, and for pushing a program.
    owner: whose sessions the low word of the election id counts, 0 for none.
    tls: None for an unencrypted session.

    Raises SessionLostError when there is no server, and NotPrimaryError when another client is primary, as every call
    does afterwards, before it sends anything.
    """

    capabilities = Capabilities("p4runtime")
    write_updates: int | None = None
    """Updates that one RPC may have, or None for as many as a batch has."""

    def __init__(
        self,
        address: str,
        device_id: int = 0,
        *,
        election_id: ElectionId = CONTROLLER_ELECTION_ID,
        connect_timeout_s: float = 10.0,
        rpc_timeout_s: float = 10.0,
        push_timeout_s: float = 60.0,
        owner: int = 0,
        tls: SwitchTls | None = None,
    ) -> None:
        self._device_id = device_id
        self._rpc_timeout_s = rpc_timeout_s
        self._push_timeout_s = push_timeout_s
        self._session = Session.open(address, device_id, election_id, connect_timeout_s, owner, tls)
        self.where = self._session.where
        try:
            config = self._get_config(_GetConfig.P4INFO_AND_COOKIE)
        except BaseException:
            self._session.close()
            raise
        self._p4info: P4Info | None = None
        if config.p4info.tables:
            self._runs(P4Info(config.p4info))

    @property
    def p4info(self) -> P4Info:
        """Return the P4Info of the running program. Raises ControlPlaneError when none runs."""
        if self._p4info is None:
            raise ControlPlaneError(_NO_PIPELINE, where=self.where, hint="push one")
        return self._p4info

    def device_config(self, pipeline: PipelineConfig) -> bytes:
        """Return the bytes of a program that the target takes. Subclasses override it."""
        return pipeline.device_config

    def write(self, updates: Sequence[Update]) -> None:
        """Write one batch, as Device.write says, with one RPC for each `write_updates` of it."""
        step = self.write_updates or max(1, len(updates))
        # An empty batch is one empty RPC: it still finds out whether this client is primary.
        starts = range(0, len(updates), step) or range(1)
        requests = [self._write_request(updates[at : at + step]) for at in starts]
        failures: list[FailedUpdate] = []
        for at, request in zip(starts, requests, strict=True):
            failures += self._write(request, updates, at)
        if failures:
            hint = (
                "the other updates of the batch are installed"
                if len(failures) < len(updates)
                else _hint(grpc.StatusCode.UNKNOWN)
            )
            raise WriteError(updates, failures, where=self.where, hint=hint)

    def read_table(self, table: str) -> list[TableEntry]:
        entry = p4runtime_pb2.TableEntry(table_id=self.p4info.tables[table].id)
        found = self._read([p4runtime_pb2.Entity(table_entry=entry)])
        entries = (decode_entity(self.p4info, entity) for entity in found)
        return [entry for entry in entries if isinstance(entry, TableEntry)]

    def read_groups(self) -> list[MulticastGroup]:
        query = p4runtime_pb2.Entity()
        query.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 0
        groups = (decode_entity(self.p4info, entity) for entity in self._read([query]))
        found = [group for group in groups if isinstance(group, MulticastGroup)]
        return sorted(found, key=lambda group: group.id)

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        info = self.p4info.counters[counter]
        stop = info.size if count is None else start + count
        query = [p4runtime_pb2.Entity(counter_entry=p4runtime_pb2.CounterEntry(counter_id=info.id))]
        # An entry without an index asks for all cells.
        if (start, stop) != (0, info.size):
            query = [p4runtime_pb2.Entity() for _ in range(start, stop)]
            for index, entity in enumerate(query, start):
                entity.counter_entry.counter_id = info.id
                entity.counter_entry.index.index = index
        cells = dict(decode_counter(entity.counter_entry) for entity in self._read(query))
        return [cells[index] for index in range(start, stop)]

    def read_cookie(self) -> int | None:
        config = self._get_config(_GetConfig.COOKIE_ONLY)
        return int(config.cookie.cookie) if config.HasField("cookie") else None

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        p4info = P4Info.from_text(pipeline.p4info)
        # No call of P4Runtime tells that another client became primary: the stream is read before every call.
        self._session.check()
        request = _SetConfig(device_id=self._device_id, action=_SetConfig.VERIFY_AND_COMMIT)
        request.election_id.high, request.election_id.low = self._session.election_id
        request.config.p4info.CopyFrom(p4info.message)
        request.config.p4_device_config = self.device_config(pipeline)
        request.config.cookie.cookie = pipeline.cookie
        self._call("SetForwardingPipelineConfig", request, self._push_timeout_s)
        self._runs(p4info)

    def close(self) -> None:
        self._session.close()

    def _runs(self, p4info: P4Info) -> None:
        self._p4info, self.program = p4info, read_program(p4info)

    def _get_config(self, response_type: int) -> p4runtime_pb2.ForwardingPipelineConfig:
        self._session.check()
        request = _GetConfig(device_id=self._device_id, response_type=response_type)
        try:
            timeout_s = min(self._rpc_timeout_s, PROBE_TIMEOUT_S)
            return self._session.stub.GetForwardingPipelineConfig(request, timeout=timeout_s).config
        except grpc.RpcError as error:
            # In P4Runtime FAILED_PRECONDITION means that no program runs yet.
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return p4runtime_pb2.ForwardingPipelineConfig()
            raise self._rpc_error("GetForwardingPipelineConfig", error) from None

    def _read(self, query: Iterable[p4runtime_pb2.Entity]) -> list[p4runtime_pb2.Entity]:
        self._session.check()
        request = p4runtime_pb2.ReadRequest(device_id=self._device_id, entities=query)
        try:
            responses = self._session.stub.Read(request, timeout=self._rpc_timeout_s)
            return [entity for response in responses for entity in response.entities]
        except grpc.RpcError as error:
            raise self._rpc_error("Read", error) from None

    def _call(self, name: str, request: Message, timeout_s: float) -> None:
        method: Callable[..., Any] = getattr(self._session.stub, name)
        try:
            method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._rpc_error(name, error) from None

    def _rpc_error(self, name: str, error: grpc.RpcError) -> ControlPlaneError:
        return _KINDS.get(error.code(), ControlPlaneError)(
            f"{name} failed: {error.code().name} {error.details()!r}",
            where=self.where,
            hint=_hint(error.code()),
        )

    def _write_request(self, updates: Sequence[Update]) -> p4runtime_pb2.WriteRequest:
        request = p4runtime_pb2.WriteRequest(device_id=self._device_id)
        for update in updates:
            fill_update(self.p4info, update, request.updates.add())
        request.election_id.high, request.election_id.low = self._session.election_id
        return request

    def _write(self, request: p4runtime_pb2.WriteRequest, batch: Sequence[Update], at: int) -> list[FailedUpdate]:
        """Write the part of a batch that begins at `at`. Return what was refused. Raises as Device.write does."""
        why: ControlPlaneError
        try:
            self._session.check()
            self._session.stub.Write(request, timeout=self._rpc_timeout_s)
            return []
        except grpc.RpcError as error:
            if refused := refusals(error, p4runtime_pb2.Error, len(request.updates)):
                return [FailedUpdate(each.position + at, batch[each.position + at], *each[1:]) for each in refused]
            # The switch may have applied the batch: the caller learns that by a WriteError without failures.
            if error.code() in _UNANSWERED:
                reason = f"{error.code().name} {error.details()!r}"
                text = f"Write of {len(batch)} updates ended without an answer: {reason}"
                raise WriteError(batch, (), why=text, where=self.where, hint=_hint(error.code())) from None
            why = self._rpc_error("Write", error)
        except ControlPlaneError as error:
            why = error
        # The parts before `at` are written, or were refused one by one.
        if at:
            text = f"Write of {len(batch)} updates ended after {at}: {why.what}"
            raise WriteError(batch, (), why=text, where=self.where, hint=why.hint)
        raise why


_KINDS: dict[grpc.StatusCode, type[ControlPlaneError]] = {
    grpc.StatusCode.PERMISSION_DENIED: NotPrimaryError,
    grpc.StatusCode.UNAVAILABLE: SessionLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: SessionLostError,
}

# After these it is not known what the switch did with the batch.
_UNANSWERED = {
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}


def _hint(code: grpc.StatusCode) -> str:
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return "another client is primary: stop it, or open the device with a higher election id"
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return "see whether the switch runs and is reachable"
    return "look at the log of the switch"
