# SPDX-License-Identifier: Apache-2.0
"""Messages between hosts and controller with every field filled in, as bytes.

A file in `data/` has the messages of one version, which later versions have to read. It is written once, at the
release, by `python -m wire.recorded > FILE` in the folder of the tests.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict

from hopsum_wire.control import control_pb2

_DEPTH = 3


def messages() -> dict[str, Any]:
    """Return the message classes by name."""
    return {name: getattr(control_pb2, name) for name in control_pb2.DESCRIPTOR.message_types_by_name}


def fill(message: Any, depth: int = _DEPTH) -> Any:
    """Give every field of a message a value that is not its default, made of the field's number."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field)
        elif field.message_type is not None:
            if depth:
                inner = getattr(message, field.name)
                fill(inner.add() if _repeats(field) else inner, depth - 1)
        elif _repeats(field):
            getattr(message, field.name).extend([_value(field), _value(field, 1)])
        else:
            setattr(message, field.name, _value(field))
    return message


def as_dict(message: Any) -> dict[str, Any]:
    """Return the fields that are set, by name."""
    return dict(MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True))


def recorded() -> dict[str, dict[str, Any]]:
    """Return by message its bytes in hexadecimal, and its fields."""
    filled = {name: fill(kind()) for name, kind in messages().items()}
    return {
        name: {"bytes": message.SerializeToString(deterministic=True).hex(), "fields": as_dict(message)}
        for name, message in filled.items()
    }


def _repeats(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)


def _fill_map(entries: Any, field: Any) -> None:
    kinds = field.message_type.fields_by_name
    entries[_value(kinds["key"])] = _value(kinds["value"])


def _value(field: Any, more: int = 0) -> Any:
    number = field.number + more
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"text {number}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes([number])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values[1].number
    return number / 4 if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT) else number


if __name__ == "__main__":
    json.dump(recorded(), sys.stdout, indent=1, sort_keys=True)
    print()
