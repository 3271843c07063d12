# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client that checks everything and waits for nothing longer than a deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.v1.p4runtime_pb2 import Entity, Error, TableEntry, Update

from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc

DEADLINE_S = 60.0
PROGRAM = Path(__file__).parent / "program" / "station.json"
P4INFO = Path(__file__).parent / "program" / "station.p4info.txtpb"
CPU_PORT = 510
INSERT, MODIFY, DELETE = Update.INSERT, Update.MODIFY, Update.DELETE


class Names:
    """Ids of the test program by the last part of their names."""

    def __init__(self) -> None:
        self.message = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
        self.tables = {t.preamble.alias: t.preamble.id for t in self.message.tables}
        self.actions = {a.preamble.alias: a.preamble.id for a in self.message.actions}
        self.counter = self.message.counters[0].preamble.id
        self.register = self.message.registers[0].preamble.id


NAMES = Names()


class Controller:
    """One client with its stream. Use as a context manager."""

    def __init__(self, address: str, device_id: int = 1) -> None:
        self.device_id = device_id
        self.channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self._outgoing: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
        self.received: queue.Queue[p4runtime_pb2.StreamMessageResponse | grpc.RpcError | None] = queue.Queue()
        self._reader: threading.Thread | None = None
        self.election_id: int | None = None

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_stream()
        self.channel.close()

    def open_stream(self) -> None:
        stream = self.stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, args=(stream,))
        self._reader.start()

    def close_stream(self) -> None:
        if self._reader is not None:
            self._outgoing.put(None)
            self._reader.join(DEADLINE_S)
            assert not self._reader.is_alive()
            self._reader = None

    def send(self, message: p4runtime_pb2.StreamMessageRequest) -> None:
        if self._reader is None:
            self.open_stream()
        self._outgoing.put(message)

    def next(self) -> p4runtime_pb2.StreamMessageResponse:
        """Return the next message of the stream; fail if the stream ends."""
        message = self.received.get(timeout=DEADLINE_S)
        assert isinstance(message, p4runtime_pb2.StreamMessageResponse), message
        return message

    def stream_end(self) -> grpc.StatusCode | None:
        """Return how the stream ends, skipping messages."""
        while True:
            message = self.received.get(timeout=DEADLINE_S)
            if message is None or isinstance(message, grpc.RpcError):
                return None if message is None else message.code()

    def arbitrate(self, election_id: int | None, *, role: str = "", device_id: int | None = None) -> None:
        message = p4runtime_pb2.StreamMessageRequest()
        message.arbitration.device_id = self.device_id if device_id is None else device_id
        if election_id is not None:
            message.arbitration.election_id.high = election_id >> 64
            message.arbitration.election_id.low = election_id & (1 << 64) - 1
        if role:
            message.arbitration.role.name = role
        self.election_id = election_id
        self.send(message)

    def told(self) -> tuple[int, int | None]:
        """Return code and highest election id of the next message, which is an arbitration."""
        message = self.next().arbitration
        assert message.device_id == self.device_id
        highest = message.election_id.high << 64 | message.election_id.low
        return message.status.code, highest if message.HasField("election_id") else None

    def become_primary(self, election_id: int = 1) -> Controller:
        self.arbitrate(election_id)
        assert self.told() == (code_pb2.OK, election_id)
        return self

    def write(self, *updates: p4runtime_pb2.Update, **fields: int) -> None:
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id, updates=updates, **fields)
        self._sign(request)
        self.stub.Write(request, timeout=DEADLINE_S)

    def refusals(self, *updates: p4runtime_pb2.Update) -> list[int]:
        """Write and return the code of each update of a batch that fails as a whole."""
        with pytest.raises(grpc.RpcError) as caught:
            self.write(*updates)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN, caught.value
        return [detail.canonical_code for detail in details(caught.value)]

    def read(self, *entities: Entity) -> list[Entity]:
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)
        return [entity for response in self.stub.Read(request, timeout=DEADLINE_S) for entity in response.entities]

    def read_tables(self, **fields: object) -> list[TableEntry]:
        return [entity.table_entry for entity in self.read(Entity(table_entry=TableEntry(**fields)))]

    def set_pipeline(
        self,
        action: str,
        *,
        with_config: bool = True,
        cookie: int | None = None,
        p4info: p4info_pb2.P4Info | None = None,
        program: bytes | None = None,
    ) -> None:
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id, action=action)
        self._sign(request)
        if with_config:
            request.config.p4info.CopyFrom(NAMES.message if p4info is None else p4info)
            request.config.p4_device_config = PROGRAM.read_bytes() if program is None else program
            if cookie is not None:
                request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request, timeout=DEADLINE_S)

    def get_pipeline(self, parts: str = "ALL") -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=parts)
        return self.stub.GetForwardingPipelineConfig(request, timeout=DEADLINE_S)

    def _sign(self, request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest) -> None:
        if self.election_id is not None:
            request.election_id.high = self.election_id >> 64
            request.election_id.low = self.election_id & (1 << 64) - 1

    def _read(self, stream: Iterator[p4runtime_pb2.StreamMessageResponse]) -> None:
        try:
            for message in stream:
                self.received.put(message)
            self.received.put(None)
        except grpc.RpcError as error:
            self.received.put(error)


def details(error: grpc.RpcError) -> list[Error]:
    """Return the p4.v1.Error messages of a failed batch."""
    data = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(data)
    assert (status.code, status.message) == (code_pb2.UNKNOWN, error.details())
    found = [Error() for _ in status.details]
    for message, packed in zip(found, status.details, strict=True):
        assert packed.Unpack(message)
    return found


def entry(
    kind: int,
    table: str,
    action: str | None = None,
    *params: bytes,
    match: dict[int, tuple[bytes, ...]] | None = None,
    **fields: object,
) -> Update:
    """Return an update of a table entry; the match is by field id, its kind by the number of its values."""
    message = TableEntry(table_id=NAMES.tables[table], **fields)
    if action is not None:
        message.action.action.action_id = NAMES.actions[action]
        for number, value in enumerate(params, 1):
            message.action.action.params.add(param_id=number, value=value)
    for number, value in (match or {}).items():
        message.match.add(field_id=number).exact.value = value[0]
    return Update(type=kind, entity=Entity(table_entry=message))


def l2(kind: int, address: bytes, action: str | None = "forward", *params: bytes, **fields: object) -> Update:
    """Return an update of table l2."""
    return entry(kind, "l2", action, *(params or (b"\x02",) if action else ()), match={1: (address,)}, **fields)
