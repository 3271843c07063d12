# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TnaError(Exception):
    """A dump, an entry or a name that makes no sense here."""


class UnsupportedNodeError(TnaError):
    """The program uses something that is not executed here."""

    def __init__(self, what: str, node: Mapping[str, Any] | None = None) -> None:
        kind = f" ({node['node']})" if node is not None and "node" in node else ""
        super().__init__(f"not executed here: {what}{kind}; the program does without, or hopsum_tna learns it")
