# SPDX-License-Identifier: Apache-2.0
"""One frame at a time through bmv2 (simple_switch_grpc), over its packet stream instead of interfaces.

The service is `p4.bm.DataplaneInterface`. A stream takes frames; when the client has closed its half, the switch
works off what is left, sends it, and ends the stream: so nothing here waits for silence. The two messages have the
fields id = 1, device_id = 2, port = 3 (varints) and packet = 4 (bytes).
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

PROGRAM = "simple_switch_grpc"
DEVICE_ID = 1
DEADLINE_S = 60.0
_STREAM = "/p4.bm.DataplaneInterface/PacketStream"
_PORT, _PACKET = 3, 4


def unavailable() -> str | None:
    """Return why bmv2 cannot run here, or None."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not on PATH"


class Bmv2:
    """A running simple_switch_grpc without a program; `address` is where its P4Runtime server listens."""

    def __init__(self, folder: Path) -> None:
        grpc_port, frames_port, thrift_port = (free_port() for _ in range(3))
        self.address, frames = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{frames_port}"
        command = [PROGRAM, "--no-p4", "--device-id", str(DEVICE_ID), "--thrift-port", str(thrift_port)]
        command += ["--notifications-addr", f"ipc://{folder}/notifications.ipc", "--log-console", "--log-level", "warn"]
        command += ["--", "--grpc-server-addr", self.address, "--dp-grpc-server-addr", frames]
        self._process = ManagedProcess(command, folder / "log")
        self._process.wait_for(lambda: _serves(grpc_port) and _serves(frames_port), "both servers", DEADLINE_S)
        self._channel = grpc.insecure_channel(frames)
        self._stream = self._channel.stream_stream(_STREAM, request_serializer=_encode, response_deserializer=_decode)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return (port, frame) for all that the switch sends because of a frame."""
        return list(self._stream(iter([(port, frame)]), timeout=DEADLINE_S, wait_for_ready=True))

    def close(self) -> None:
        """Stop the switch."""
        self._channel.close()
        self._process.stop()


@contextmanager
def running(folder: Path) -> Iterator[Bmv2]:
    """Run a switch; its log goes to `folder`."""
    switch = Bmv2(folder)
    try:
        yield switch
    finally:
        switch.close()


def _serves(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _encode(message: tuple[int, bytes]) -> bytes:
    port, frame = message
    head = b"".join(_varint(number) for number in (2 << 3, DEVICE_ID, _PORT << 3, port, _PACKET << 3 | 2, len(frame)))
    return head + frame


def _decode(data: bytes) -> tuple[int, bytes]:
    port, frame, at = 0, b"", 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == 2:
            frame, at = data[at : at + value], at + value
        elif key >> 3 == _PORT:
            port = value
    return port, frame


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + _varint(rest)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return number, at
