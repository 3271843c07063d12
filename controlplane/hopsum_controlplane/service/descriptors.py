# SPDX-License-Identifier: Apache-2.0
"""File descriptors of a controller: each worker has a connection, and idle ones of strangers must not use them up."""

from __future__ import annotations

import resource
from typing import Final

ENOUGH: Final = 1 << 16
"""The descriptors that are enough for the workers of 64 jobs many times over."""


def raise_limit() -> int:
    """Raise this process's limit of open files as far as it may, at most to ENOUGH. Return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
