# SPDX-License-Identifier: Apache-2.0
"""A link that loses, duplicates and reorders, the same way for the same seed: for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hopsum.transport.link import DatagramLink


@dataclass(frozen=True, slots=True)
class Mishaps:
    """Probabilities per datagram, each in 0..1, applied in both directions."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Held back until another datagram of its direction has passed."""


class LossyLink:
    """A link around another one. A datagram that is held back with none to follow counts as lost."""

    def __init__(self, link: DatagramLink, mishaps: Mishaps, rng: random.Random) -> None:
        self._link = link
        self._mishaps = mishaps
        self._rng = rng
        self._held_out: list[bytes] = []
        self._held_in: list[bytes] = []
        self.statistics = link.statistics
        """Of the link below: what passed."""

    def send(self, datagram: bytes | memoryview) -> None:
        """Send what mishaps leave of one datagram."""
        for survivor in self._befall(bytes(datagram), self._held_out):
            self._link.send(survivor)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return what mishaps leave of what has arrived; copies, since some are held back."""
        arrived = self._link.receive(timeout_s)
        return [survivor for datagram in arrived for survivor in self._befall(bytes(datagram), self._held_in)]

    def close(self) -> None:
        """Close the link below."""
        self._link.close()

    def _befall(self, datagram: bytes, held: list[bytes]) -> list[bytes]:
        if self._rng.random() < self._mishaps.drop:
            return []
        if self._rng.random() < self._mishaps.reorder:
            held.append(datagram)
            return []
        copies = 2 if self._rng.random() < self._mishaps.duplicate else 1
        late, held[:] = list(held), []
        return [datagram] * copies + late
