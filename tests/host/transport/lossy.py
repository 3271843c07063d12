# SPDX-License-Identifier: Apache-2.0
"""Links around other links: one that passes everything on, and one that loses, duplicates and reorders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hopsum.transport.link import DatagramLink


class WrappedLink:
    """A link that passes everything on to another one; the base of those that do not."""

    def __init__(self, link: DatagramLink) -> None:
        self._link = link
        self.statistics = link.statistics
        """Of the link below: what passed."""

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram."""
        self._link.send(datagram)

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        """Return what has arrived."""
        return self._link.receive(timeout_s)

    def wake(self) -> None:
        """End the `receive` of the link below."""
        self._link.wake()

    def close(self) -> None:
        """Close the link below."""
        self._link.close()


@dataclass(frozen=True, slots=True)
class Mishaps:
    """Probabilities per datagram, each in 0..1, applied in both directions."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Held back until another datagram of its direction has passed."""


class LossyLink(WrappedLink):
    """A link with mishaps, the same for the same seed. A datagram that is held back with none to follow is lost."""

    def __init__(self, link: DatagramLink, mishaps: Mishaps, rng: random.Random) -> None:
        super().__init__(link)
        self._mishaps = mishaps
        self._rng = rng
        self._held_out: list[bytes] = []
        self._held_in: list[bytes] = []

    def send(self, datagram: bytes | memoryview) -> None:
        """Send what mishaps leave of one datagram."""
        for survivor in self._befall(bytes(datagram), self._held_out):
            self._link.send(survivor)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return what mishaps leave of what has arrived; copies, since some are held back."""
        arrived = self._link.receive(timeout_s)
        return [survivor for datagram in arrived for survivor in self._befall(bytes(datagram), self._held_in)]

    def _befall(self, datagram: bytes, held: list[bytes]) -> list[bytes]:
        if self._rng.random() < self._mishaps.drop:
            return []
        if self._rng.random() < self._mishaps.reorder:
            held.append(datagram)
            return []
        copies = 2 if self._rng.random() < self._mishaps.duplicate else 1
        late, held[:] = list(held), []
        return [datagram] * copies + late
