# SPDX-License-Identifier: Apache-2.0
"""One frame at a time through bmv2 (simple_switch_grpc), over its packet stream instead of interfaces. Needs no root.

The service is `p4.bm.DataplaneInterface`. A stream takes frames. When the client has closed its half, the switch
processes the remaining frames, sends the results and ends the stream. So no code here waits for silence. The two
messages have the fields id = 1, device_id = 2, port = 3 (varints) and packet = 4 (bytes).
"""

from __future__ import annotations

import time

from hopsum_base.quiet_grpc import grpc

_DEADLINE_S = 60.0
_TRY_AGAIN_S = 0.01
_STREAM = "/p4.bm.DataplaneInterface/PacketStream"
_DEVICE_ID, _PORT, _PACKET = 2, 3, 4

PacketStreamError = grpc.RpcError
"""The error of a frame without answers: the switch has ended, or it did not answer within the deadline of 60 s."""


class PacketStream:
    """A client that sends frames into a `Bmv2Switch` with `packet_stream` and receives the frames that it sends.

    Construction connects to nothing: the first `process` does.
    `address` is the `frames_address` of the switch. `device_id` is that of the switch.
    """

    def __init__(self, address: str, device_id: int) -> None:
        self._device_id = device_id
        self._channel = grpc.insecure_channel(address)
        self._stream = self._channel.stream_stream(
            _STREAM, request_serializer=self._encode, response_deserializer=_decode
        )

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Send a frame into a port. Return (port, frame) for every frame that the switch sends because of it.

        The list is empty where the switch drops the frame. Waits until the switch takes frames and has sent all, and
        raises PacketStreamError after 60 s without that, or when the switch has ended.
        """
        until = time.monotonic() + _DEADLINE_S
        while True:
            try:
                return list(self._stream(iter([(port, frame)]), timeout=_DEADLINE_S, wait_for_ready=True))
            except PacketStreamError as error:
                # bmv2 takes its first program before it has opened its ports, and refuses frames until then.
                if error.details() != "not ready" or time.monotonic() >= until:
                    raise
                time.sleep(_TRY_AGAIN_S)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    # The two messages are encoded by hand: bmv2 ships no Python for them, and four fields need no generated code.
    def _encode(self, message: tuple[int, bytes]) -> bytes:
        port, frame = message
        numbers = (_DEVICE_ID << 3, self._device_id, _PORT << 3, port, _PACKET << 3 | 2, len(frame))
        return b"".join(map(_varint, numbers)) + frame


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
