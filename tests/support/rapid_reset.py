# SPDX-License-Identifier: Apache-2.0
"""A client that opens calls of HTTP/2 and resets them at once, again and again, on one connection."""

from __future__ import annotations

import socket
import struct

HEADERS, RST_STREAM, SETTINGS, PING = 1, 3, 4, 6
END_HEADERS = 4
CANCEL = 8
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TOGETHER = 100


def reset_calls(address: str, path: str, count: int) -> None:
    """Open and reset `count` calls. Return when the server has read them all."""
    host, _, port = address.rpartition(":")
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(b"\0" + _string(name) + _string(value) for name, value in fields.items())
    with socket.create_connection((host, int(port)), 60) as connection:
        reader = connection.makefile("rb")
        connection.sendall(_PREFACE + _frame(SETTINGS))
        for first in range(0, count, _TOGETHER):
            calls = range(first, min(first + _TOGETHER, count))
            connection.sendall(b"".join(_call(2 * number + 1, headers) for number in calls))
        connection.sendall(_frame(PING, body=b"all read"))
        while True:
            header = reader.read(9)
            assert len(header) == 9, "the server has closed the connection"
            reader.read(int.from_bytes(header[:3], "big"))
            if header[3] == PING and header[4] & 1:
                return


def _call(stream: int, headers: bytes) -> bytes:
    return _frame(HEADERS, END_HEADERS, stream, headers) + _frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def _frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _string(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
