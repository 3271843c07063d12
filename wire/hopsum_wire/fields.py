# SPDX-License-Identifier: Apache-2.0
"""Header fields of any width to bytes and back, driven by the generated layout."""

from __future__ import annotations

from collections.abc import Mapping

from hopsum_wire._layout import Drop, Field
from hopsum_wire.errors import WireError


def header_bytes(fields: tuple[Field, ...]) -> int:
    """Return the size of a header in bytes."""
    return (fields[-1].offset_bits + fields[-1].bits) // 8


def pack_fields(fields: tuple[Field, ...], values: Mapping[str, int]) -> bytes:
    """Return one header, big-endian. Fields that `values` does not name are 0.

    Raises:
        WireError: a value does not fit its field, or no field has its name, with reason BAD_VALUE.
    """
    unknown = values.keys() - {field.name for field in fields}
    if unknown:
        raise WireError(Drop.BAD_VALUE, f"no header field is named {', '.join(sorted(unknown))}")
    total = 0
    for field in fields:
        value = values.get(field.name, 0)
        if not 0 <= value < 1 << field.bits:
            raise WireError(Drop.BAD_VALUE, f"{field.name} = {value} does not fit in {field.bits} bits")
        total = total << field.bits | value
    return total.to_bytes(header_bytes(fields), "big")


def unpack_fields(fields: tuple[Field, ...], data: bytes) -> dict[str, int]:
    """Return the values, by name, of the fields of the header at the start of `data`. Further bytes are ignored.

    Raises:
        WireError: `data` is shorter than the header, with reason TRUNCATED.
    """
    size = header_bytes(fields)
    if len(data) < size:
        raise WireError(Drop.TRUNCATED, f"{len(data)} bytes are no {size}-byte header")
    total = int.from_bytes(data[:size], "big")
    bits = size * 8
    return {field.name: total >> (bits - field.offset_bits - field.bits) & ((1 << field.bits) - 1) for field in fields}
