# SPDX-License-Identifier: Apache-2.0
"""The addresses that a controller may have: HOST:PORT or unix:PATH."""

from __future__ import annotations

import ipaddress
from typing import Final

UNIX: Final = "unix:"


def is_local(target: str) -> bool:
    """Say whether what is sent to HOST:PORT or unix:PATH stays on this machine."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith(UNIX) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
