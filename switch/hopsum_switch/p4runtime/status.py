# SPDX-License-Identifier: Apache-2.0
"""Canonical error codes (google.rpc.Code) and the exception that carries one."""

from __future__ import annotations

import enum


class RpcCode(enum.IntEnum):
    """The codes that this server uses, with the numbers of google.rpc.Code."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13


class P4RuntimeError(Exception):
    """A request is refused. `code` is the canonical code for the client, the message has the reason."""

    def __init__(self, code: RpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> P4RuntimeError:
    """Return an INVALID_ARGUMENT error to raise."""
    return P4RuntimeError(RpcCode.INVALID_ARGUMENT, message)


def unsupported(message: str) -> P4RuntimeError:
    """Return an UNIMPLEMENTED error to raise: the request makes sense, and this server does not do it."""
    return P4RuntimeError(RpcCode.UNIMPLEMENTED, message)


# P4Runtime byte strings (big-endian, any padding accepted, shortest form sent) and other plain values.


def encode(value: int) -> bytes:
    """Return the shortest byte string of `value`; zero is one zero byte. Raises OverflowError for a negative value."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Return the value of a byte string for a field of `width` bits called `what` in messages.

    Raises P4RuntimeError (OUT_OF_RANGE): empty, or too large for the field.
    """
    if not data:
        raise P4RuntimeError(RpcCode.OUT_OF_RANGE, f"{what}: the value is empty; zero is one zero byte")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        shown = data.hex() if len(data) <= 32 else f"{data[:32].hex()}..."
        raise P4RuntimeError(RpcCode.OUT_OF_RANGE, f"{what}: 0x{shown} does not fit {width} bits")
    return value
