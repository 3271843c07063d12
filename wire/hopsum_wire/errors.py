# SPDX-License-Identifier: Apache-2.0
"""The base of all errors of hopsum, and the error of bytes that claim to be a packet."""

from __future__ import annotations

from hopsum_wire._layout import Drop


class HopsumError(Exception):
    """Base of all errors that hopsum raises on its own account."""


class WireError(ValueError):
    """Bytes or values that are no valid packet. A receiver counts `reason` and goes on."""

    def __init__(self, reason: Drop, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The reason in the words of the switch's `drops` counter."""
