# SPDX-License-Identifier: Apache-2.0
"""The systems that hopsum runs on."""

from __future__ import annotations

import sys


def unsupported_reason() -> str:
    """Return the reason why jobs, switches and commands do not run on this system, empty on Linux.

    They need parts of Linux that other systems lack: eventfd, memfd, netlink, /proc, namespaces, UDP_SEGMENT.
    """
    if sys.platform == "linux":
        return ""
    return (
        f"hopsum runs on Linux, and this is {sys.platform}: take a Linux machine, a container or WSL2. "
        "Only memory://NAME?workers=N, the sum of threads of one process, works here"
    )
