# SPDX-License-Identifier: Apache-2.0
"""Ports over AF_UNIX datagrams: one datagram is one Ethernet frame, no root needed.

A bound port has two names: the switch's end at PATH, the other end at PATH + ".peer". Both names are fixed, so
a frame can leave through a port whose peer has never sent one. While the peer's end does not exist, frames are dropped
and counted as `no_peer`. `open_peer` opens the other end. A socketpair's end serves as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

from hopsum_switch.ports.port import RECEIVE_BATCH, Port, PortCounters, PortError

PEER_SUFFIX = ".peer"
MAX_FRAME_BYTES = 65536
# sun_path of a socket address holds 108 with the closing zero.
_MAX_PATH_BYTES = 107
_NO_PEER = {errno.ENOENT, errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE}


class UnixPort(Port):
    """A port over an AF_UNIX datagram socket."""

    def __init__(self, sock: socket.socket, path: str | None = None) -> None:
        """Take over `sock`: connected (a socketpair's end), or bound to `path` with its peer at path.peer."""
        self.counters = PortCounters()
        sock.setblocking(False)
        self._sock = sock
        self._path = path

    @classmethod
    def bind(cls, path: str) -> UnixPort:
        """Open the switch's end at `path`. A socket that a dead process left there is replaced.

        Raises PortError where the path is too long, in use or not a socket. Choose another path or stop its owner.
        """
        return cls(_bind(path), path)

    def fileno(self) -> int | None:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        while len(frames) < RECEIVE_BATCH:
            try:
                frame = self._sock.recv(MAX_FRAME_BYTES)
            except OSError:  # nothing waits, or the other end of a pair is gone
                break
            if not frame:
                break
            self.counters.count_received(frame)
            frames.append(frame)
        return frames

    def send(self, frame: bytes) -> None:
        try:
            if self._path is None:
                self._sock.send(frame)
            else:
                self._sock.sendto(frame, self._path + PEER_SUFFIX)
        except OSError as error:
            self.counters.dropped[_reason(error)] += 1
        else:
            self.counters.count_sent(frame)

    def close(self) -> None:
        """Close the socket and remove the path that this port made."""
        if self._sock.fileno() < 0:
            return
        self._sock.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def describe(self) -> dict[str, Any]:
        """Return kind and path (null for a socketpair)."""
        return {"kind": "unix", "path": self._path}


def open_peer(path: str) -> socket.socket:
    """Open the other end of the port at `path`: a connected datagram socket, frames both ways.

    The caller owns it, and unlinks path.peer when done. Raises PortError: no switch listens at `path`, or path.peer is
    too long, in use or no socket.
    """
    sock = _bind(path + PEER_SUFFIX)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        os.unlink(path + PEER_SUFFIX)
        raise PortError(f"no switch port listens at {path}: {error.strerror}") from error
    return sock


def _reason(error: OSError) -> str:
    if isinstance(error, BlockingIOError) or error.errno == errno.ENOBUFS:
        return "queue_full"
    if error.errno in _NO_PEER:
        return "no_peer"
    return "send_error"


def _bind(path: str) -> socket.socket:
    if not 0 < len(os.fsencode(path)) <= _MAX_PATH_BYTES - len(PEER_SUFFIX):
        raise PortError(
            f"socket path {path!r} has {len(os.fsencode(path))} bytes:"
            f" 1..{_MAX_PATH_BYTES - len(PEER_SUFFIX)} fit, choose a shorter directory"
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise PortError(f"cannot bind {path}: {error.strerror}") from error
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket that a killed process left behind, and nothing else."""
    try:
        mode = Path(path).lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise PortError(f"{path} exists and is not a socket: choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            # The path of a killed process refuses connections. A living owner accepts, or answers EPERM where it has a
            # peer.
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            if error.errno != errno.EPERM:  # EPERM: connected to another socket, so alive
                raise PortError(f"{path} exists and cannot be probed: {error.strerror}") from error
    raise PortError(f"{path} is in use by another process: stop it or choose another path")
