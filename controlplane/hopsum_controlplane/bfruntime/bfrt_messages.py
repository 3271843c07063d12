# SPDX-License-Identifier: Apache-2.0
"""Messages and calls of BF Runtime, as far as the driver uses them.

Names, numbers and types of fields are those of the public interface `bfrt_proto.BfRuntime` (bfruntime.proto of
p4lang/open-p4studio). Enumerations are int32 here, and nested messages are not nested: both are the same on the wire.
The messages have a descriptor pool of their own, so that they do not meet those of another BF Runtime client in one
process. A field that this module does not name is kept and ignored, as protobuf does with unknown fields.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hopsum_base.quiet_grpc import grpc

_PACKAGE: Final = "bfrt_proto"
SERVICE: Final = f"{_PACKAGE}.BfRuntime"

# number, type and name of each field; `*` repeats the field; a third word is the field's oneof.
_MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "TargetDevice": ("1 uint32 device_id", "2 uint32 pipe_id", "3 uint32 direction", "4 uint32 prsr_id"),
    "Exact": ("1 bytes value",),
    "Ternary": ("1 bytes value", "2 bytes mask"),
    "KeyField": ("1 uint32 field_id", "2 Exact exact match_type", "3 Ternary ternary match_type"),
    "TableKey": ("1 *KeyField fields",),
    "IntArray": ("1 *uint32 val",),
    "BoolArray": ("1 *bool val",),
    "DataField": (
        "1 uint32 field_id",
        "2 bytes stream value",
        "4 string str_val value",
        "5 IntArray int_arr_val value",
        "6 BoolArray bool_arr_val value",
        "8 bool bool_val value",
    ),
    "TableData": ("1 uint32 action_id", "2 *DataField fields"),
    "TableFlags": ("1 bool from_hw",),
    "TableEntry": (
        "1 uint32 table_id",
        "2 TableKey key",
        "3 TableData data",
        "4 bool is_default_entry",
        "8 TargetDevice entry_tgt",
        "9 TableFlags table_flags",
    ),
    "Entity": ("1 TableEntry table_entry",),
    "Update": ("1 int32 type", "2 Entity entity"),
    "WriteRequest": (
        "1 TargetDevice target",
        "2 uint32 client_id",
        "3 *Update updates",
        "4 int32 atomicity",
        "5 string p4_name",
    ),
    "WriteResponse": ("1 *Error status",),
    "ReadRequest": ("1 TargetDevice target", "2 uint32 client_id", "3 *Entity entities", "4 string p4_name"),
    "ReadResponse": ("1 *Entity entities", "2 *Error status"),
    "Error": ("1 int32 canonical_code", "2 string message", "3 string space", "4 int32 code"),
    "RpcStatus": ("1 int32 code", "2 string message"),
    "Subscribe": ("2 uint32 device_id", "4 RpcStatus status"),
    "StreamMessageRequest": ("1 uint32 client_id", "2 Subscribe subscribe"),
    "StreamMessageResponse": ("1 Subscribe subscribe",),
    "Profile": ("1 string profile_name", "2 bytes context", "3 bytes binary", "4 *uint32 pipe_scope"),
    "ForwardingPipelineConfig": ("1 string p4_name", "2 bytes bfruntime_info", "3 *Profile profiles"),
    "NonP4Config": ("1 bytes bfruntime_info",),
    "SetForwardingPipelineConfigRequest": (
        "1 uint32 device_id",
        "2 uint32 client_id",
        "3 int32 action",
        "4 int32 dev_init_mode",
        "5 string base_path",
        "6 *ForwardingPipelineConfig config",
    ),
    "SetForwardingPipelineConfigResponse": (),
    "GetForwardingPipelineConfigRequest": ("1 uint32 device_id", "2 uint32 client_id"),
    "GetForwardingPipelineConfigResponse": ("1 *ForwardingPipelineConfig config", "2 NonP4Config non_p4_config"),
}
CALLS: Final = {
    "Write": "Write",
    "Read": "Read",
    "StreamChannel": "StreamMessage",
    "SetForwardingPipelineConfig": "SetForwardingPipelineConfig",
    "GetForwardingPipelineConfig": "GetForwardingPipelineConfig",
}
"""The first part of the names of request and response of each call."""
_Field = descriptor_pb2.FieldDescriptorProto


class UpdateType(enum.IntEnum):
    """Type of an update."""

    INSERT = 1
    MODIFY = 2
    DELETE = 4
    INSERT_OR_MODIFY = 5


class ConfigAction(enum.IntEnum):
    """The effect of a SetForwardingPipelineConfigRequest."""

    BIND = 0
    VERIFY_AND_WARM_INIT_BEGIN_AND_END = 3


ALL_PIPES: Final = 0xFFFF
ALL_DIRECTIONS: Final = 0xFF
ALL_PARSERS: Final = 0xFF


def _describe() -> Iterator[descriptor_pb2.DescriptorProto]:
    for name, lines in _MESSAGES.items():
        message = descriptor_pb2.DescriptorProto(name=name)
        for line in lines:
            number, kind, field_name, *oneof = line.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in _MESSAGES:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")
            if oneof:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=oneof[0])
                field.oneof_index = 0
        yield message


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="hopsum/bfruntime.proto", package=_PACKAGE, syntax="proto3")
    file.message_type.extend(_describe())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # Since protobuf 4.22.
    newer: Any = getattr(message_factory, "GetMessageClass", None)
    make = newer or message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


CLASSES: Final = _classes()
"""The message classes by name."""


def new_message(name: str, **fields: Any) -> Any:
    """Return a new message of class CLASSES[name] with fields by name. Raises KeyError for an unknown class."""
    return CLASSES[name](**fields)


class Stub:
    """The calls of BF Runtime on a channel, one attribute for each call. Construction sends nothing."""

    def __init__(self, channel: grpc.Channel) -> None:
        def call(kind: Callable[..., Any], name: str) -> Any:
            request, response = CLASSES[f"{CALLS[name]}Request"], CLASSES[f"{CALLS[name]}Response"]
            return kind(
                f"/{SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )

        self.write = call(channel.unary_unary, "Write")
        self.read = call(channel.unary_stream, "Read")
        self.stream = call(channel.stream_stream, "StreamChannel")
        self.set_config = call(channel.unary_unary, "SetForwardingPipelineConfig")
        self.get_config = call(channel.unary_unary, "GetForwardingPipelineConfig")
