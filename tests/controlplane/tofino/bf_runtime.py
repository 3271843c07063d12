# SPDX-License-Identifier: Apache-2.0
"""A BF Runtime server that holds entries, and checks every message against the compiled bfrt.json.

Its manners are those of the public sources of SDE 9.13.4 (bf_rt_server_impl.cpp): one client for a program, a refused
batch is UNKNOWN with an Error for each update in the details, updates are made in their order. No claim is made that a
switch is the same. The chip's own tables (ports, replication, traffic manager) are described here as far as the driver
uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

from hopsum_controlplane.bfruntime.bfrt_messages import ALL_PIPES, CALLS, CLASSES, SERVICE, ConfigAction, UpdateType

DEVICE_ID = 0
LOOPS = (6, 68, 128, 192, 196)
"""The loop ports of a Tofino 1 and a Tofino 2 with two pipes."""


class RefusedError(Exception):
    """One update that is refused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code_pb2.Code.Value(code), text


def _field(number: int, name: str, kind: str, **more: Any) -> dict[str, Any]:
    choices = {"choices": more.pop("choices")} if "choices" in more else {}
    return {"id": number, "name": name, "type": {"type": kind, **choices}, **more}


def _fixed(number: int, name: str, keys: list[dict[str, Any]], data: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [{**key, "match_type": "Exact"} for key in keys]
    table = {"id": number, "name": name, "table_type": "Fixed", "size": 65536, "key": keys}
    return table | {"data": [{"singleton": each} for each in data]}


_PRIORITIES = ["LOW", *map(str, range(8)), "HIGH"]
_SPEEDS = [f"BF_SPEED_{speed}G" for speed in (1, 10, 25, 40, 50, 100, 200, 400)]
_QUEUE = [_field(1, "pg_id", "uint8"), _field(2, "pg_queue", "uint8")]
CHIP_TABLES = [
    _fixed(4278321153, "$pre.mgid", [_field(1, "$MGID", "uint16")], [
        _field(1, "$MULTICAST_NODE_ID", "uint32", repeated=True),
        _field(2, "$MULTICAST_NODE_L1_XID_VALID", "bool", repeated=True),
        _field(3, "$MULTICAST_NODE_L1_XID", "uint16", repeated=True),
    ]),
    _fixed(4278321154, "$pre.node", [_field(1, "$MULTICAST_NODE_ID", "uint32")], [
        _field(1, "$MULTICAST_RID", "uint16"),
        _field(2, "$MULTICAST_LAG_ID", "uint8", repeated=True),
        _field(3, "$DEV_PORT", "uint32", repeated=True),
    ]),
    _fixed(4278255617, "$PORT", [_field(1, "$DEV_PORT", "uint32")], [
        _field(1, "$SPEED", "string", choices=_SPEEDS),
        _field(2, "$FEC", "string", choices=["BF_FEC_TYP_NONE", "BF_FEC_TYP_FC", "BF_FEC_TYP_RS"]),
        _field(3, "$N_LANES", "uint32"),
        _field(4, "$PORT_ENABLE", "bool"),
        _field(6, "$LOOPBACK_MODE", "string", choices=["BF_LPBK_NONE", "BF_LPBK_MAC_NEAR"]),
    ]),
    _fixed(4278517776, "tf1.tm.port.cfg", [_field(1, "dev_port", "uint32")], [
        _field(1, "pg_id", "uint8"), _field(5, "egress_qid_queues", "uint8", repeated=True),
    ]),
    _fixed(4278517797, "tf1.tm.queue.sched_cfg", _QUEUE, [_field(4, "max_priority", "string", choices=_PRIORITIES)]),
    _fixed(4278517796, "tf1.tm.queue.buffer", _QUEUE, [
        _field(1, "guaranteed_cells", "uint32"), _field(3, "tail_drop_enable", "bool"),
    ]),
]  # fmt: skip


class CheckedTables:
    """The tables of a program and of the chip, with the entries that clients wrote."""

    def __init__(self, program: bytes) -> None:
        self.tables = {table["id"]: table for table in [*json.loads(program)["tables"], *CHIP_TABLES]}
        self.entries: dict[int, dict[tuple[Any, ...], Any]] = {number: {} for number in self.tables}
        self.packets: dict[tuple[str, int], int] = {}

    def named(self, name: str) -> dict[str, Any]:
        """Return a table by its name, or an end of it."""
        found = [table for table in self.tables.values() if f".{table['name']}".endswith(f".{name}")]
        assert len(found) == 1, name
        return found[0]

    def update(self, kind: int, entry: Any, pipe: int) -> None:
        """Make one update. Raises RefusedError."""
        table = self._table(entry)
        if entry.is_default_entry:
            raise RefusedError("UNIMPLEMENTED", "default entries")
        key, name = self._key(table, entry), table["name"]
        if ".tm." in name and pipe == ALL_PIPES:
            raise RefusedError("INVALID_ARGUMENT", f"{name} wants one pipe")
        if "ConstTable" in table.get("attributes", ()) or table["table_type"] not in ("MatchAction_Direct", "Fixed"):
            raise RefusedError("INVALID_ARGUMENT", f"{name} takes no entries")
        if kind != UpdateType.DELETE:
            self._check_data(table, entry)
        self._references(name, kind, entry)
        if ".tm." in name:
            key = (pipe, *key)
        self._put(table, kind, key, entry)

    def read(self, entry: Any, pipe: int) -> list[Any]:
        """Return what one question asks for. Raises RefusedError."""
        table = self._table(entry)
        if table["table_type"] == "Counter":
            return [self._counted(table, entry)]
        if table["name"] == "tf1.tm.port.cfg":
            return [self._port_config(table, entry, pipe)]
        if entry.is_default_entry:
            spec = table["action_specs"][-1]
            answer = CLASSES["TableEntry"](table_id=table["id"], is_default_entry=True)
            answer.data.action_id = spec["id"]
            return [answer]
        if not entry.HasField("key") or not entry.key.fields:
            return list(self.entries[table["id"]].values())
        found = self.entries[table["id"]].get(self._key(table, entry))
        if found is None:
            raise RefusedError("NOT_FOUND", f"Entry not found in table:{table['name']}")
        return [found]

    def _put(self, table: dict[str, Any], kind: int, key: tuple[Any, ...], entry: Any) -> None:
        held, name = self.entries[table["id"]], table["name"]
        there = key in held or ".tm." in name
        if kind == UpdateType.INSERT and there:
            raise RefusedError("ALREADY_EXISTS", f"Table Add failed table:{name}")
        if kind in (UpdateType.MODIFY, UpdateType.DELETE) and not there:
            raise RefusedError("NOT_FOUND", f"no such entry in table:{name}")
        if kind == UpdateType.DELETE:
            del held[key]
            return
        if not there and len(held) >= table["size"]:
            raise RefusedError("RESOURCE_EXHAUSTED", f"Table Add failed table:{name}")
        held[key] = entry

    def _table(self, entry: Any) -> dict[str, Any]:
        table = self.tables.get(entry.table_id)
        if table is None:
            raise RefusedError("NOT_FOUND", f"Table not found for id {entry.table_id}")
        return table

    def _key(self, table: dict[str, Any], entry: Any) -> tuple[Any, ...]:
        wanted = {field["id"]: field for field in table["key"]}
        given = {field.field_id: field for field in entry.key.fields}
        if set(wanted) != set(given) or len(given) != len(entry.key.fields):
            raise RefusedError(
                "INVALID_ARGUMENT", f"{table['name']} has the keys {sorted(wanted)}, not {sorted(given)}"
            )
        found: list[Any] = []
        for number, field in sorted(wanted.items()):
            kind = given[number].WhichOneof("match_type")
            if kind != field["match_type"].lower():
                raise RefusedError("INVALID_ARGUMENT", f"{field['name']} is {field['match_type']}, not {kind}")
            value = getattr(given[number], kind)
            _check_number(field, value.value)
            if kind == "ternary":
                _check_number(field, value.mask)
                found.append((value.value, value.mask))
            elif field["name"] != "$MATCH_PRIORITY":
                found.append(value.value)
        return tuple(found)

    def _check_data(self, table: dict[str, Any], entry: Any) -> None:
        specs = {spec["id"]: spec for spec in table.get("action_specs", ())}
        if specs:
            spec = specs.get(entry.data.action_id)
            if spec is None or spec["action_scope"] == "DefaultOnly":
                raise RefusedError("INVALID_ARGUMENT", f"{table['name']} has no action {entry.data.action_id}")
            fields = {field["id"]: field for field in spec["data"]}
            if sorted(fields) != sorted(field.field_id for field in entry.data.fields):
                raise RefusedError("INVALID_ARGUMENT", f"{spec['name']} wants the data {sorted(fields)}")
        else:
            fields = {each["singleton"]["id"]: each["singleton"] for each in table["data"]}
        for field in entry.data.fields:
            if field.field_id not in fields:
                raise RefusedError("INVALID_ARGUMENT", f"{table['name']} has no data {field.field_id}")
            _check_value(fields[field.field_id], field)

    def _references(self, name: str, kind: int, entry: Any) -> None:
        """Refuse a group of nodes that are not there, and the removal of a node that a group has."""
        nodes = {each.key.fields[0].exact.value for each in self.entries[4278321154].values()}
        if name == "$pre.mgid" and kind != UpdateType.DELETE:
            for node in entry.data.fields[0].int_arr_val.val:
                if node.to_bytes(4, "big") not in nodes:
                    raise RefusedError("NOT_FOUND", f"no node {node}")
        if name == "$pre.node" and kind == UpdateType.DELETE:
            node = int.from_bytes(entry.key.fields[0].exact.value, "big")
            if any(node in group.data.fields[0].int_arr_val.val for group in self.entries[4278321153].values()):
                raise RefusedError("ALREADY_EXISTS", f"a group has node {node}")

    def _counted(self, table: dict[str, Any], entry: Any) -> Any:
        (key,) = self._key(table, entry)
        index = int.from_bytes(key, "big")
        if index >= table["size"] or not entry.table_flags.from_hw:
            raise RefusedError("INVALID_ARGUMENT", f"cell {index} of {table['name']}, as software has it")
        answer = CLASSES["TableEntry"]()
        answer.CopyFrom(entry)
        packets = self.packets.get((table["name"].removeprefix("pipe."), index), 0)
        answer.data.fields.add(field_id=65554, stream=packets.to_bytes(8, "big"))
        return answer

    def _port_config(self, table: dict[str, Any], entry: Any, pipe: int) -> Any:
        (key,) = self._key(table, entry)
        port = int.from_bytes(key, "big")
        if pipe != port >> 7 or port not in LOOPS:
            raise RefusedError("NOT_FOUND", f"port {port} in pipe {pipe}")
        answer = CLASSES["TableEntry"]()
        answer.CopyFrom(entry)
        answer.data.fields.add(field_id=1, stream=bytes([(port & 127) // 4]))
        answer.data.fields.add(field_id=5).int_arr_val.val.extend(range(8 * (port % 4), 8 * (port % 4) + 8))
        return answer


def _bits(field: dict[str, Any]) -> int:
    kind = field["type"]
    return int(kind["width"] if kind["type"] == "bytes" else kind["type"].removeprefix("uint"))


def _check_number(field: dict[str, Any], value: bytes) -> None:
    bits = _bits(field)
    if len(value) != (bits + 7) // 8 or int.from_bytes(value, "big") >> bits:
        raise RefusedError("INVALID_ARGUMENT", f"{field['name']} = {value.hex()} is not of {bits} bits")


def _check_value(field: dict[str, Any], given: Any) -> None:
    kind = field["type"]["type"]
    if field.get("repeated"):
        wanted = "bool_arr_val" if kind == "bool" else "int_arr_val"
    else:
        wanted = {"bool": "bool_val", "string": "str_val"}.get(kind, "stream")
    if given.WhichOneof("value") != wanted:
        raise RefusedError("INVALID_ARGUMENT", f"{field['name']} is {wanted}, not {given.WhichOneof('value')}")
    if wanted == "stream":
        _check_number(field, given.stream)
    if wanted == "str_val" and given.str_val not in field["type"]["choices"]:
        raise RefusedError("INVALID_ARGUMENT", f"{field['name']} = {given.str_val}")


class BfRuntime:
    """One chip. `pushed` has the configurations, `writes` the number of updates of each call."""

    def __init__(self) -> None:
        self.config: Any = None
        self.tables: CheckedTables | None = None
        self.pushed: list[Any] = []
        self.writes: list[int] = []
        self.before_writes: Callable[[int], None] | None = None  # with the number of the call in `writes`, from 1
        self.clients: dict[int, str] = {}
        self.address = ""
        self._contexts: list[grpc.ServicerContext] = []

    def count(self, counter: str, index: int, packets: int) -> None:
        """Let a counter have counted so many packets."""
        assert self.tables is not None
        self.tables.packets[counter, index] = packets

    def end_streams(self) -> None:
        """End all sessions."""
        for context in self._contexts:
            context.cancel()

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        client = None
        self._contexts.append(context)
        try:
            for request in requests:
                if request.client_id in self.clients:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Can't have two clients with the same client id")
                client = request.client_id
                self.clients[client] = ""
                answer = CLASSES["StreamMessageResponse"]()
                answer.subscribe.status.code = code_pb2.OK
                yield answer
        finally:
            if client is not None:
                del self.clients[client]

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = CLASSES["GetForwardingPipelineConfigResponse"]()
        if self.config is not None:
            program = answer.config.add(p4_name=self.config.p4_name)
            program.bfruntime_info = self.config.bfruntime_info
        answer.non_p4_config.bfruntime_info = json.dumps({"tables": CHIP_TABLES}).encode()
        return answer

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        (config,) = request.config
        if request.client_id not in self.clients:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"Unknown client. Client_id:{request.client_id}")
        if request.action == ConfigAction.BIND:
            self._bind(request.client_id, config.p4_name, context)
        elif not (config.p4_name and config.bfruntime_info and config.profiles):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Invalid device config sent")
        else:
            self.pushed.append(config)
            self.config, self.tables = config, CheckedTables(config.bfruntime_info)
        return CLASSES["SetForwardingPipelineConfigResponse"]()

    def _bind(self, client: int, name: str, context: grpc.ServicerContext) -> None:
        if self.config is None or name != self.config.p4_name:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Failed to find BfRtInfo for program {name}")
        for other, bound in self.clients.items():
            if bound == name and other != client:
                text = f"Client ID {client} trying to bind but Client ID {other} already owns this P4"
                context.abort(grpc.StatusCode.ALREADY_EXISTS, text)
        self.clients[client] = name

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.writes.append(len(request.updates))
        if self.before_writes is not None:
            self.before_writes(len(self.writes))
        tables, errors = self._bound(request, context), []
        for update in request.updates:
            error = CLASSES["Error"](canonical_code=code_pb2.OK)
            try:
                tables.update(update.type, update.entity.table_entry, request.target.pipe_id)
            except RefusedError as refused:
                error = CLASSES["Error"](canonical_code=refused.code, message=refused.text)
            errors.append(error)
        self._report(errors, "Write Error Status", context)
        return CLASSES["WriteResponse"]()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        tables, errors = self._bound(request, context), []
        answer = CLASSES["ReadResponse"]()
        for entity in request.entities:
            try:
                found = tables.read(entity.table_entry, request.target.pipe_id)
                for entry in found:
                    answer.entities.add().table_entry.CopyFrom(entry)
            except RefusedError as refused:
                errors.append(CLASSES["Error"](canonical_code=refused.code, message=refused.text))
        yield answer
        self._report(errors, "Read Error Status", context)

    def _bound(self, request: Any, context: grpc.ServicerContext) -> CheckedTables:
        bound = self.config is not None and self.clients.get(request.client_id) == self.config.p4_name
        if self.tables is None or not bound or request.target.device_id != DEVICE_ID:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Error getting BfRtInfo")
        return self.tables

    @staticmethod
    def _report(errors: list[Any], text: str, context: grpc.ServicerContext) -> None:
        if all(error.canonical_code == code_pb2.OK for error in errors):
            return
        status = status_pb2.Status(code=code_pb2.UNKNOWN, message=text)
        for error in errors:
            detail = any_pb2.Any(type_url="type.googleapis.com/bfrt_proto.Error", value=error.SerializeToString())
            status.details.append(detail)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.UNKNOWN, text)


@contextmanager
def bf_runtime(credentials: grpc.ServerCredentials | None = None) -> Iterator[BfRuntime]:
    """Serve on loopback for the block, in the clear without `credentials`."""
    service = BfRuntime()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 4 << 20)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=options)
    server.add_generic_rpc_handlers([_handlers(service)])
    at = "127.0.0.1:0"
    port = server.add_insecure_port(at) if credentials is None else server.add_secure_port(at, credentials)
    service.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield service
    finally:
        service.end_streams()
        server.stop(grace=0).wait()


def _handlers(service: BfRuntime) -> grpc.GenericRpcHandler:
    kinds = {"Read": grpc.unary_stream_rpc_method_handler, "StreamChannel": grpc.stream_stream_rpc_method_handler}
    methods = {}
    for name, part in CALLS.items():
        make: Any = kinds.get(name, grpc.unary_unary_rpc_method_handler)
        request, response = CLASSES[f"{part}Request"], CLASSES[f"{part}Response"]
        methods[name] = make(
            getattr(service, name),
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(SERVICE, methods)
