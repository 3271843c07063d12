# SPDX-License-Identifier: Apache-2.0
"""Growth of the resident memory of processes."""

from __future__ import annotations

from collections.abc import Sequence


def growth_kib(samples: Sequence[int]) -> int:
    """Return by how much samples rise above the one at a tenth of them, after it."""
    start = len(samples) // 10
    return max(samples[start:]) - samples[start]
