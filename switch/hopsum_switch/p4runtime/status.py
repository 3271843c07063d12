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
    """A request that is refused: `code` for programs, the message for people."""

    def __init__(self, code: RpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code
