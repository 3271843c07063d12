# SPDX-License-Identifier: Apache-2.0
"""Workers that do one thing wrong, as codecs and links around the right ones: the laws must find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import ReductionContext, SharedRanges
from hopsum.codec.backends import load_kernels
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.thc import Thc
from hopsum.transport.link import DatagramLink
from hopsum_wire import HOPSUM_BYTES, Header, Kind

from ..transport.lossy import WrappedLink

Place = tuple[int, int]
"""Slot and round."""


class Sound(Thc):
    """A codec `thc` with whole sums that does nothing wrong."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, result_bits=8, kernels=load_kernels("numpy"))


class Mutant(Sound):
    """A codec `thc` whose reductions are of another class."""

    reduction: type[RangeReduction] = RangeReduction

    def start(self, x: NDArray[np.float32], context: ReductionContext, *given: Any, **options: Any) -> RangeReduction:
        return self.reduction(self, x, context, *given, **options)


class _KeepsAll(RangeReduction):
    def _note_absent(self, chunks: slice, contributors: NDArray[np.uint64], *, back: bool) -> None:
        super()._note_absent(chunks, np.zeros_like(contributors), back=back)


class KeepsAll(Mutant):
    """Takes nothing as delivered: residuals grow, and everything counts again and again."""

    reduction = _KeepsAll


class _DropsExcluded(RangeReduction):
    def _note_absent(self, chunks: slice, contributors: NDArray[np.uint64], *, back: bool) -> None:
        super()._note_absent(chunks, contributors, back=back)
        for chunk in chunks.start + np.flatnonzero(~_inside(contributors, self.context.rank)):
            block = self.codec.block_elements
            if self._kept is not None:
                self._kept[1][chunk * block : (chunk + 1) * block] = 0


class DropsExcluded(Mutant):
    """Forgets what it had for a chunk that it was excluded from."""

    reduction = _DropsExcluded


class DividesByAll(Sound):
    """Divides sums by the number of the job's workers, whichever of them are in the sums."""

    def decode(
        self, results: NDArray[np.uint8], contributors: NDArray[np.uint64], *given: Any, **options: Any
    ) -> NDArray[np.float32]:
        mean = super().decode(results, contributors, *given, **options)
        counts = np.array([int(bits).bit_count() for bits in contributors], np.float32)
        mean *= (counts / np.float32(self.workers)).repeat(self.block_elements)[: mean.size]
        return mean


class StaleTap(WrappedLink):
    """Notes what the switch called stale."""

    def __init__(self, link: DatagramLink) -> None:
        super().__init__(link)
        self.places: set[Place] = set()

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        arrived = self._link.receive(timeout_s)
        headers = [Header.unpack(datagram) for datagram in arrived]
        self.places |= {(header.slot, header.round) for header in headers if header.kind == Kind.STALE}
        return arrived


class SettlesOnStale(Sound):
    """Takes its own contribution to a chunk as delivered once the switch calls it stale. Of all-reduces in order."""

    def __init__(self, workers: int, slots: int) -> None:
        super().__init__(workers)
        self.slots = slots
        self.end = 0
        """Of the stream, as far as it was summed."""
        self.tap: StaleTap | None = None
        self.settled = 0

    def listen(self, link: DatagramLink) -> StaleTap:
        self.tap = StaleTap(link)
        return self.tap

    def start(self, x: NDArray[np.float32], context: ReductionContext, *given: Any, **options: Any) -> RangeReduction:
        return _SettlesOnStale(self, x, context, *given, **options)


class _SettlesOnStale(RangeReduction):
    codec: SettlesOnStale

    def on_results(self, results: NDArray[np.uint8], *more: Any) -> None:
        self._first, self.codec.end = self.codec.end, self.codec.end + len(results)
        super().on_results(results, *more)

    def _note_absent(self, chunks: slice, contributors: NDArray[np.uint64], *, back: bool) -> None:
        assert self.codec.tap is not None
        positions = range(self._first + chunks.start, self._first + chunks.stop)
        places = [(position % self.codec.slots, position // self.codec.slots + 1) for position in positions]
        stale = np.array([place in self.codec.tap.places for place in places])
        self.codec.settled += int((stale & ~_inside(contributors, self.context.rank)).sum())
        own = np.uint64(1 << self.context.rank)
        super()._note_absent(chunks, np.where(stale, contributors | own, contributors), back=back)


class Reencodes(Sound):
    """Encodes anew for a retransmission: the first transmissions are lost, and their roundings were other ones."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.anew: dict[bytes, bytes] = {}
        """By what was sent first."""

    def encode(
        self,
        x: NDArray[np.float32],
        own: NDArray[np.uint32],
        shared: SharedRanges,
        context: ReductionContext,
        **options: Any,
    ) -> NDArray[np.uint8]:
        first = super().encode(x, own, shared, context, **options)
        others = super().encode(
            x, own, shared, ReductionContext(context.seed, context.step, (context.rank + 1) % self.workers)
        )
        self.anew = {was.tobytes(): now.tobytes() for was, now in zip(first, others, strict=True)}
        return first

    def lose_first(self, link: DatagramLink, *, honest: bool) -> WrappedLink:
        return _LosesFirst(link, None if honest else self)


class _LosesFirst(WrappedLink):
    def __init__(self, link: DatagramLink, codec: Reencodes | None) -> None:
        super().__init__(link)
        self._codec = codec
        self._seen: set[Place] = set()

    def send(self, datagram: bytes | memoryview) -> None:
        header, payload = Header.unpack(datagram), bytes(datagram[HOPSUM_BYTES:])
        place = (header.slot, header.round)
        if header.kind == Kind.UPDATE and place not in self._seen:
            self._seen.add(place)
            return
        if self._codec is not None:
            payload = self._codec.anew.get(payload, payload)
        self._link.send(bytes(datagram[:HOPSUM_BYTES]) + payload)


def _inside(contributors: NDArray[np.uint64], rank: int) -> NDArray[np.bool_]:
    return np.array([bool(int(bits) >> rank & 1) for bits in contributors])
