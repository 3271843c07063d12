# SPDX-License-Identifier: Apache-2.0
"""The address of P4Runtime and management: HOST:PORT, or unix:PATH, a socket with mode 0600.

Without an address given it is a socket in a folder of this user alone, so that no other user of the machine reaches
the switch: $XDG_RUNTIME_DIR/hopsum-UID/switch.sock, or the same under the folder for temporary files.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

_UNIX = "unix:"
_ONLY_ITS_USER = 0o177  # taken from the mode of a new socket


class ServerError(Exception):
    """The switch cannot start. The message says what to change."""


def default_address() -> str:
    """Return the default address of a switch, which its tools use too."""
    return f"{_UNIX}{_default_folder() / 'switch.sock'}"


def listen(add_port: Callable[[str], int], address: str) -> str:
    """Listen by `add_port` (grpc.Server.add_insecure_port) and return the address, port 0 replaced by the real one.

    Raises ServerError: the address is in use, is none, or its folder is open to others.
    """
    host, _, port = address.rpartition(":")
    try:
        if address.startswith(_UNIX) and address != _UNIX:
            with _claimed(Path(address.removeprefix(_UNIX)), in_private=address == default_address()):
                add_port(address)
            return address
        if not (host and port.isascii() and port.isdigit()):
            raise RuntimeError("neither HOST:PORT nor unix:PATH")
        return f"{host}:{add_port(address)}"
    except RuntimeError as error:
        raise ServerError(
            f"cannot listen on {address}: it is in use or not an address of this machine;"
            f" choose another with --grpc HOST:PORT or --grpc unix:PATH ({error})"
        ) from error


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hopsum-{os.getuid()}"


@contextmanager
def _claimed(path: Path, *, in_private: bool) -> Iterator[None]:
    """Hold a path while a socket is made there: gRPC itself would take the place of a switch that listens there.

    In the private folder two switches that start at once come one after the other.
    """
    with _locked_folder() if in_private else nullcontext():
        if _answers(path):
            raise ServerError(
                f"cannot listen on {_UNIX}{path}: another switch listens there;"
                " give this one an address of its own with --grpc unix:PATH or --grpc HOST:PORT"
            )
        before = os.umask(_ONLY_ITS_USER)
        try:
            yield
        finally:
            os.umask(before)


@contextmanager
def _locked_folder() -> Iterator[None]:
    """Make the private folder if it is not there, and lock it."""
    folder = _default_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ServerError(f"cannot make the folder {folder}: {error.strerror}; choose with --grpc unix:PATH") from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ServerError(
                f"the folder {folder} belongs to another user or is open to others: remove it, or choose another place"
                " with --grpc unix:PATH"
            )
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _answers(path: Path) -> bool:
    """Return true where a process listens at a path. A socket file of a dead process does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
        return True
