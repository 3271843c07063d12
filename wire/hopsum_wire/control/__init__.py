# SPDX-License-Identifier: Apache-2.0
"""The messages between hosts and the controller, and the addresses that a controller may have.

control.proto   the messages            control_pb2   made from it by tools/generate_rpc.py
services        its services as values  values        a message as plain values

Importing this package imports no protobuf. `control_pb2` and `services` do.
"""

from __future__ import annotations

import ipaddress
from typing import Final

UNIX: Final = "unix:"
"""Prefix of an address that is a socket in the file system."""


def is_local(target: str) -> bool:
    """Return whether HOST:PORT or unix:PATH is on this machine: a socket file, `localhost` or a loopback address.

    No name is looked up: another name is not local.
    """
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith(UNIX) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
