# SPDX-License-Identifier: Apache-2.0
"""Many IPv4/UDP frames at once: the checks of `udp_frames.strip` as array operations, and groups of outputs.

Frames of one destination leave in order. Consecutive ones with payloads of equal length, the last of them
shorter or not, become one `Run`, which the kernel cuts into datagrams again (UDP_SEGMENT).
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hopsum_switch.ports.batches import Frames
from hopsum_switch.ports.udp_frames import (
    END_UNICAST,
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    FIRST_UNICAST,
    HEADERS_BYTES,
    IPV4_BYTES,
    MORE_OR_OFFSET,
    PROTO_UDP,
    UDP_BYTES,
)

MAX_SEGMENTS = 64  # of one call; what every kernel with UDP_SEGMENT takes
MAX_PAYLOAD_BYTES = 65507  # of one call
Truth: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]

_PLAIN = 0x45  # IPv4, no options
_IPV4_WORDS = slice(ETHERNET_BYTES // 2, (ETHERNET_BYTES + IPV4_BYTES) // 2)
_ADDRESS_WORDS = slice(13, 17)
_HEADERS = np.dtype(
    {
        "names": ["ethertype", "version", "total", "fragment", "protocol", "destination", "port", "udp", "checksum"],
        "formats": [">u2", "u1", ">u2", ">u2", "u1", ">u4", ">u2", ">u2", ">u2"],
        "offsets": [12, 14, 16, 20, 23, 30, 36, 38, 40],
        "itemsize": HEADERS_BYTES,
    }
)


class Run(NamedTuple):
    """Datagrams to one address: their payloads in order in `parts`, `segment_bytes` each, the last one shorter."""

    address: tuple[str, int]
    parts: tuple[NDArray[np.uint8], ...]
    segment_bytes: int
    frame_lengths: Integers

    def payloads(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the datagrams one by one."""
        for part in self.parts:
            yield from part


def split_at_irregular(frames: Frames) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of stretches that the functions below take, and (n, n) for a frame n that they do not.

    Those are frames that end within the headers and frames with IPv4 options.
    """
    count = len(frames.lengths)
    if frames.lengths.min() >= HEADERS_BYTES and (frames.data[frames.offsets + ETHERNET_BYTES] == _PLAIN).all():
        yield 0, count
        return
    first = 0
    for number in np.flatnonzero(_irregular(frames)).tolist():
        if first < number:
            yield first, number
        yield number, number
        first = number + 1
    if first < count:
        yield first, count


def _irregular(frames: Frames) -> Truth:
    irregular: Truth = frames.lengths < HEADERS_BYTES
    long = np.flatnonzero(~irregular)
    at = frames.offsets[long]
    ipv4 = (frames.data[at + 12] == ETHERTYPE_IPV4 >> 8) & (frames.data[at + 13] == ETHERTYPE_IPV4 & 255)
    version = frames.data[at + ETHERNET_BYTES]
    irregular[long] = ipv4 & (version > _PLAIN) & (version < 0x50)
    return irregular


def runs(frames: Frames, dropped: Counter[str]) -> Iterator[Run]:
    """Check frames as `strip` does, count those that cannot be sent in `dropped`, and yield the others together.

    The frames are regular (see `split_at_irregular`). The yielded groups hold copies.
    """
    raw = _windows(frames.data, HEADERS_BYTES)[frames.offsets]
    fields, words = raw.view(_HEADERS)[:, 0], raw.view(np.uint16)
    good = _count_faults(frames, fields, words, dropped)
    kept = slice(None) if good.all() else np.flatnonzero(good)
    destinations = fields["destination"][kept].astype(np.int64) << 16 | fields["port"][kept]
    sizes = fields["udp"][kept].astype(np.int64) - UDP_BYTES
    yield from _runs(frames.take(kept), destinations, sizes)


def _windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return `size` bytes from every place of a buffer on, as rows of a view."""
    return np.ndarray((max(data.size - size + 1, 0), size), np.uint8, data, 0, (1, 1))


def _count_faults(frames: Frames, fields: NDArray[np.void], words: NDArray[np.uint16], dropped: Counter[str]) -> Truth:
    """Return a mask of the correct frames. Of the others the first fault counts, in the order of `strip`."""
    total, udp = fields["total"].astype(np.int64), fields["udp"].astype(np.int64)
    destination = fields["destination"]
    misfit = (udp < UDP_BYTES) | (udp > total - IPV4_BYTES)
    cut = (total > frames.lengths - ETHERNET_BYTES) | (total < IPV4_BYTES + UDP_BYTES)
    faults = (
        ("not_ipv4", (fields["ethertype"] != ETHERTYPE_IPV4) | (fields["version"] != _PLAIN)),
        ("not_udp", fields["protocol"] != PROTO_UDP),
        ("truncated", cut),
        # Over data that holds its own checksum the sum is 0 mod 2^16 - 1, whatever the byte order (RFC 1071).
        ("bad_checksum", _sums(words[:, _IPV4_WORDS]) % 0xFFFF != 0),
        ("fragment", fields["fragment"] & MORE_OR_OFFSET != 0),
        ("truncated", misfit),
        ("bad_checksum", _wrong_udp_checksums(frames, fields, words, ~(cut | misfit))),
        ("bad_destination", (destination < FIRST_UNICAST) | (destination >= END_UNICAST) | (fields["port"] == 0)),
    )
    good: Truth = ~np.logical_or.reduce([fault for _, fault in faults])
    if not good.all():
        left = ~good
        for reason, fault in faults:
            met = fault & left
            if met.any():
                dropped[reason] += int(np.count_nonzero(met))
                left &= ~met
    return good


def _wrong_udp_checksums(frames: Frames, fields: NDArray[np.void], words: NDArray[np.uint16], whole: Truth) -> Truth:
    """Return which of the `whole` frames have a UDP checksum, and a wrong one."""
    wrong: Truth = np.zeros(len(whole), np.bool_)
    checked = whole & (fields["checksum"] != 0)
    if not checked.any():
        return wrong
    sizes = fields["udp"]
    for size in np.unique(sizes[checked]).tolist():
        which = np.flatnonzero(checked & (sizes == size))
        even = np.zeros((len(which), size + size % 2), np.uint8)
        even[:, :size] = _windows(frames.data, size)[frames.offsets[which] + ETHERNET_BYTES + IPV4_BYTES]
        sums = even.view(np.uint16).sum(axis=1, dtype=np.uint32) + _sums(words[which, _ADDRESS_WORDS])
        sums += np.uint32(socket.htons(PROTO_UDP) + socket.htons(size))
        wrong[which] = sums % 0xFFFF != 0
    return wrong


def _sums(words: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return the sum of every row. Rows are short."""
    columns = np.ascontiguousarray(words.T)  # adding columns is twice as fast as adding within rows
    total: NDArray[np.uint32] = np.add.reduce(columns, axis=0, dtype=np.uint32)
    return total


def _runs(frames: Frames, destinations: Integers, sizes: Integers) -> Iterator[Run]:
    if not len(sizes):
        return
    if (destinations != destinations[0]).any():
        order = np.argsort(destinations, kind="stable")
        frames, destinations, sizes = frames.take(order), destinations[order], sizes[order]
    changes = (destinations[1:] != destinations[:-1]) | (sizes[1:] != sizes[:-1])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(sizes)]
    taken = 0  # frames that have left already, as the short end of the run before
    for start, end in pairwise(bounds):
        first = max(start, taken)
        if first < end:
            following = int(sizes[end]) if end < len(sizes) and destinations[end] == destinations[start] else 0
            for run in _cut(frames, first, end, int(destinations[start]), int(sizes[start]), following):
                taken = first = first + len(run.frame_lengths)
                yield run


def _cut(frames: Frames, first: int, end: int, destination: int, size: int, following: int) -> Iterator[Run]:
    """Yield the runs of frames of one size, the last with the frame of `following` bytes after them where it fits."""
    windows, starts = _windows(frames.data, size), frames.offsets + HEADERS_BYTES
    address = (socket.inet_ntoa((destination >> 16).to_bytes(4, "big")), destination & 0xFFFF)
    step = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // size) if size else 1
    for at in range(first, end, step):
        stop = min(at + step, end)
        # One run at a time: 64 KB, in the cache when the kernel copies them, and no pages fresh from the kernel.
        parts: tuple[NDArray[np.uint8], ...] = (windows[starts[at:stop]],)
        if stop - at < step and 0 < following < size:  # one more would fit, so a shorter one does
            parts += (_windows(frames.data, following)[starts[end : end + 1]],)
            stop += 1
        yield Run(address, parts, size, frames.lengths[at:stop])
