# SPDX-License-Identifier: Apache-2.0
"""The index: which elements are not zero on some worker. The switch ORs it.

A bitmap has one bit per element. A Bloom filter is smaller below about 8 % density. Each of its false positives
is an element that everybody counts in and nobody sends, which costs the cells of one element. To look up all elements
in it takes longer than all other work on a thin vector, so "auto" wants an eighth of the bytes for it: it takes a
filter below about 4 % density.

All ranks must choose alike, so the choice follows from shared numbers by additions, multiplications and divisions of
float64 alone, which every machine rounds alike.
"""

from __future__ import annotations

from typing import Final

from hopsum.codec.interface import CodecError, blocks_of
from hopsum.codec.lossless.kernels import Bloom
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

CHUNK_BITS: Final = SHAPES[Op.OR].elements
KINDS: Final = ("auto", "bitmap", "bloom")
_LANE_BITS: Final = 32
_WORTHWHILE: Final = 0.875
_MOST_HASHES: Final = 24
_MOST_BITS: Final = 1 << 32
_INVERSE_LN2: Final = 1.4426950408889634


def require_kind(kind: str) -> None:
    """Raise CodecError for an unknown kind of index."""
    if kind not in KINDS:
        raise CodecError(f"index {kind!r}: one of {', '.join(KINDS)}")


def expected_union(elements: int, nonzero: int, workers: int) -> float:
    """Return how many elements are expected in the union of `workers` independent supports of `nonzero` elements."""
    empty, share = 1.0, 1.0 - nonzero / elements
    for _ in range(workers):
        empty *= share
    return elements * (1.0 - empty)


def choose_index(kind: str, elements: int, union: float, gamma: float, key: int) -> Bloom | None:
    """Return the filter to use, or None: a bitmap.

    Args:
        kind: "bitmap", "bloom", the best filter, or "auto", which is the filter where it saves an eighth of all bytes.
        elements: of the vector.
        union: elements to expect in the index, more than 0.
        gamma: cells that an element costs.
        key: of the filter's hash functions.
    """
    if kind == "bitmap":
        return None
    costs = [_bloom_bits(elements, union, gamma, hashes) for hashes in range(1, _MOST_HASHES + 1)]
    hashes = 1 + costs.index(min(costs))
    cells = _LANE_BITS * gamma * union
    if kind == "auto" and min(costs) + cells > _WORTHWHILE * (CHUNK_BITS * blocks_of(elements, CHUNK_BITS) + cells):
        return None
    return Bloom(_filter_bits(union, hashes), hashes, key)


def index_bits(elements: int, bloom: Bloom | None) -> int:
    """Return the bits of an index."""
    return elements if bloom is None else bloom.bits


def _filter_bits(union: float, hashes: int) -> int:
    """Return the size at which half of the bits are set, in whole chunks."""
    bits = CHUNK_BITS * blocks_of(int(hashes * union * _INVERSE_LN2) + 1, CHUNK_BITS)
    return min(bits, _MOST_BITS)


def _bloom_bits(elements: int, union: float, gamma: float, hashes: int) -> float:
    """Return the bits that a filter and its false positives cost. Each probe halves these."""
    false = (elements - union) / (1 << hashes)
    return _filter_bits(union, hashes) + _LANE_BITS * gamma * false
