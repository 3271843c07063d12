# SPDX-License-Identifier: Apache-2.0
"""Chance that is this process's own: for pauses, and for orders in which ranks ask."""

from __future__ import annotations

import random
from typing import Final

# Not the random module's own generator: a script seeds it alike on all ranks, and counts on its order.
OWN_RANDOM: Final = random.SystemRandom()
"""Other numbers in every process, whatever was seeded. Any thread may draw from it."""
