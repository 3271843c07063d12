# SPDX-License-Identifier: Apache-2.0
"""A message of control.proto as plain values, fit for JSON."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from typing import Any


def enum_word(enum: Any, number: int) -> str:
    """Return a value of an enum as a word, "running", or as its number where this version has no name for it.

    Args:
        enum: its descriptor, such as `control_pb2.JobState.DESCRIPTOR`.
    """
    value = enum.values_by_number.get(number)
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    # A controller of a later version may have values without a name here: the number is shown.
    return str(number) if value is None else str(value.name).removeprefix(prefix).lower()


def message_to_dict(message: Any) -> dict[str, Any]:
    """Return a message as a dictionary fit for JSON: all its fields by name, enums as words (`enum_word`).

    An optional field that the message lacks is None. Texts, some of which workers wrote, have their control characters
    escaped.
    """
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, str):
            value = _escaped(value)
        elif isinstance(value, MutableMapping):
            value = {_escaped(key): each for key, each in sorted(value.items())}
        elif isinstance(value, MutableSequence):
            value = [message_to_dict(each) if field.message_type else _escaped(each) for each in value]
        elif field.message_type is not None:
            value = message_to_dict(value) if message.HasField(field.name) else None
        elif field.enum_type is not None:
            value = enum_word(field.enum_type, value)
        elif field.containing_oneof is not None and not message.HasField(field.name):
            value = None
        values[field.name] = value
    return values


def _escaped(value: Any) -> Any:
    if not isinstance(value, str) or value.isprintable():
        return value
    # Workers write some of these texts: an escape sequence in one must not reach the operator's terminal.
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in value)
