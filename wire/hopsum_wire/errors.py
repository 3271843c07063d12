# SPDX-License-Identifier: Apache-2.0
"""The error of bytes that claim to be a packet."""

from __future__ import annotations

from hopsum_wire._layout import Drop


class WireError(ValueError):
    """Bytes or values that are no valid packet. A receiver counts `reason` and continues."""

    def __init__(self, reason: Drop, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The reason in the words of the switch's `drops` counter."""
