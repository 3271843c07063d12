# SPDX-License-Identifier: Apache-2.0
"""Captures of every port's frames, both directions, in files that Wireshark, tcpdump and scapy read.

A captured port is a port around the port, so a switch without captures does nothing for them. A file is pcapng
(IETF draft-ietf-opsawg-pcapng): `portN.pcapng`, times in nanoseconds, and for every frame whether it came in or left::

  in    the frame as the program got it, at the time at which the switch read it. A UDP port makes the Ethernet, IPv4
        and UDP headers in front of a datagram, and the file has these headers
  out   the frame as the program sent it, unless the port dropped it and counted the reason

Frames of the CPU port begin with P4Runtime's controller header, so their link type is USER0. The switch truncates
a file that exists when it starts. A file that can no longer be written stays unchanged, and traffic continues.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

from hopsum_switch.ports.batches import FrameBuffer, Frames, batch_form
from hopsum_switch.ports.port import Port, PortCounters, PortError

_log = logging.getLogger("hopsum_switch.ports")

_SECTION, _INTERFACE, _ENHANCED_PACKET = 0x0A0D0D0A, 1, 6
# A length of -1 says that a section ends with the file.
_BYTE_ORDER_MAGIC, _UNKNOWN_LENGTH = 0x1A2B3C4D, -1
_END, _NAME, _TIME_RESOLUTION, _FLAGS = 0, 2, 9, 2  # codes of options; _FLAGS is a packet's
_NANOSECONDS = 9
_INBOUND, _OUTBOUND = 1, 2
_ETHERNET, _USER0 = 1, 147  # of https://www.tcpdump.org/linktypes.html


class CaptureFolder:
    """A folder with a file for each port of a switch."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if there is none. Raises PortError."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PortError(f"captures cannot be written to {folder}: {error.strerror}: name another folder") from error

    def capture_port(self, number: int, port: Port) -> CapturedPort:
        """Create or empty portN.pcapng. Return a port around `port` that also writes the file. Raises PortError."""
        path = self._folder / f"port{number}.pcapng"
        # Frames of the CPU port begin with the controller header, so Wireshark must not read them as Ethernet.
        link_type = _USER0 if port.describe()["kind"] == "cpu" else _ETHERNET
        try:
            file = CaptureFile(path, f"port {number}", link_type)
        except OSError as error:
            raise PortError(f"switch port {number}: capture {path} cannot be written: {error.strerror}") from error
        return CapturedPort(port, file)


class CaptureFile:
    """One pcapng file with one interface, open for writing. The first failed write is logged, and ends the capture."""

    def __init__(self, path: Path, name: str, link_type: int) -> None:
        """Create or empty the file, and write its header. Raises OSError: the file cannot be opened.

        `link_type`: the form of the frames, by a number of https://www.tcpdump.org/linktypes.html.
        """
        self.path = path
        self._file: BinaryIO | None = path.open("wb")
        self._write(_block(_SECTION, struct.pack("=IHHq", _BYTE_ORDER_MAGIC, 1, 0, _UNKNOWN_LENGTH)))
        options = _option(_NAME, name.encode()) + _option(_TIME_RESOLUTION, bytes([_NANOSECONDS])) + _option(_END, b"")
        self._write(_block(_INTERFACE, struct.pack("=HHI", link_type, 0, 0) + options))
        self.flush()

    def add(self, frame: bytes, *, inbound: bool) -> None:
        """Append one frame with the present time. `flush` makes it visible. Nothing is written after a failure."""
        now_ns = time.time_ns()
        head = struct.pack("=IIIII", 0, now_ns >> 32, now_ns & 0xFFFFFFFF, len(frame), len(frame))
        flags = _option(_FLAGS, struct.pack("=I", _INBOUND if inbound else _OUTBOUND)) + _option(_END, b"")
        self._write(_block(_ENHANCED_PACKET, head + _padded(frame) + flags))

    def flush(self) -> None:
        """Write the added frames to the file, so that other processes see them. Never raises.

        A failure is logged and ends the capture.
        """
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, block: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(block)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("capture %s ends here, the switch continues without it: %s", self.path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what is buffered cannot be written either
                file.close()


class CapturedPort(Port):
    """A port whose frames are also written to a file. It sends frames one by one, to leave out dropped ones."""

    def __init__(self, port: Port, file: CaptureFile) -> None:
        self.counters: PortCounters = port.counters
        self._port = port
        self._batches = batch_form(port)
        self._file = file

    def fileno(self) -> int | None:
        """Return the port's descriptor."""
        return self._port.fileno()

    def receive(self) -> list[bytes]:
        frames = self._port.receive()
        for frame in frames:
            self._file.add(frame, inbound=True)
        self._file.flush()
        return frames

    def receive_batch(self, frames: FrameBuffer) -> None:
        """Append waiting frames of the port, and write them to the file."""
        first = frames.count
        self._batches.receive_batch(frames)
        if frames.count > first:
            batch = frames.batch()
            for number in range(first, frames.count):
                self._file.add(batch.frame(number), inbound=True)
            self._file.flush()

    def record_injected(self, frame: bytes) -> None:
        """Write a frame to the file that enters here without being received. The wrapped port does nothing."""
        self._file.add(frame, inbound=True)
        self._file.flush()

    def send(self, frame: bytes) -> None:
        self._send(frame)
        self._file.flush()

    def send_batch(self, frames: Frames) -> None:
        """Send frames one by one, and write those that the port does not drop to the file."""
        for number in range(len(frames.lengths)):
            self._send(frames.frame(number))
        self._file.flush()

    def close(self) -> None:
        """Close the port and its capture file."""
        self._port.close()
        self._file.close()

    def describe(self) -> dict[str, Any]:
        """Return the description of the port, and the file's path under `capture`."""
        return {**self._port.describe(), "capture": str(self._file.path)}

    def _send(self, frame: bytes) -> None:
        # Only the counter tells whether the port dropped the frame: `send` returns nothing.
        before = self.counters.sent
        self._port.send(frame)
        if self.counters.sent > before:
            self._file.add(frame, inbound=False)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("=I", len(body) + 12)
    return struct.pack("=I", kind) + length + body + length


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
