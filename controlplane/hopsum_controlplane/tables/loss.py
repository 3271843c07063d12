# SPDX-License-Identifier: Apache-2.0
"""Entries of control Loss, of which there is one instance at each end: frames that a port loses by chance."""

from __future__ import annotations

import enum
import math

from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import MAX_PORT

_DRAWS = 1 << 32


class Direction(enum.Enum):
    """The instance of control Loss at an end of the program. The value is the instance's name in P4."""

    INGRESS = "ingress_loss"
    EGRESS = "egress_loss"

    @property
    def table(self) -> str:
        """Return the name of the instance's table."""
        return f"{self.value}.loss"

    @property
    def counter(self) -> str:
        """Return the name of the instance's counter of lost frames, by port."""
        return f"{self.value}.lost"

    @property
    def action(self) -> str:
        """Return the name of the action of the instance's table."""
        return f"{self.value}.drop_with_probability"


def loss(direction: Direction, port: int, probability: float) -> list[TableEntry]:
    """Build the entry with which `port` loses frames with `probability`, in steps of 2^-32, or no entry for 0.

    1 means 1 - 2^-32, the most that the program can do. Raises ControlPlaneError for an invalid port or probability.
    """
    if not 0 <= port <= MAX_PORT:
        raise ControlPlaneError(f"loss of switch port {port}", hint=f"ports are 0 .. {MAX_PORT}")
    if not 0 <= probability <= 1 or not math.isfinite(probability):
        raise ControlPlaneError(f"loss with probability {probability} on port {port}", hint="give one of 0 .. 1")
    if probability == 0:
        return []
    # The program compares 32 random bits with the threshold: the largest one, 2^32 - 1, is as near to 1 as it gets.
    threshold = min(max(1, round(probability * _DRAWS)), _DRAWS - 1)
    return [TableEntry(direction.table, {"port": port}, direction.action, {"threshold": threshold})]
