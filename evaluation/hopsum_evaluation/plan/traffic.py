# SPDX-License-Identifier: Apache-2.0
"""Bytes on a worker's link in one step: whole Ethernet frames, headers included, both ways.

Summed methods: each vector takes the phases that its codec declares, each in chunks of its op. A chunk is one
frame up (UPDATE) and one down (RESULT), of the sizes that the op has (SHAPES).

Ring: 2 (n - 1) / n of the vector each way, in full TCP segments on an MTU of 1500. Acknowledgements are left out.
Two-shot: as much of the codes, with a scale of 32 bits for every TWO_SHOT_BLOCK of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final, NamedTuple

from hopsum.codec import Codec
from hopsum.codec.backends.kernels import TWO_SHOT_BLOCK
from hopsum.codec.interface import blocks_of
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.sketch_kernels import RANGE_BLOCK
from hopsum.codec.lossless.sketch_plan import GAMMA, choose_index, expected_union, index_bits
from hopsum.codec.range_codec import RangeCodec
from hopsum.errors import HopsumError
from hopsum_wire import Op
from hopsum_wire._layout import ETHERNET_BYTES, IPV4_BYTES
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES
from hopsum_wire.payload import SHAPES

MTU_BYTES: Final = 1500
TCP_BYTES: Final = 32
"""The bytes of a TCP header, with the timestamps that Linux sends."""


class PlanError(HopsumError):
    """A plan is impossible: a value that no job has, or a codec that declares no sizes."""


class StepTraffic(NamedTuple):
    """The bytes on the link of one worker in one training step, its chunks, and the phases of a vector."""

    up_bytes: float
    down_bytes: float
    chunks: int = 0
    """UPDATEs, and RESULTs, or 0 where it is not summed in chunks."""
    phases: int = 0
    """The phases that follow one another in each vector."""


class PhaseTraffic(NamedTuple):
    """One phase of one vector."""

    op: Op
    lanes: int
    """The lanes in use, bits for OR."""


def summed_traffic(codec: Codec, elements: int, vectors: int, density: float) -> StepTraffic:
    """Return the traffic of a worker in a step with a codec whose payloads a switch sums.

    Args:
        codec: made for the job's workers.
        elements: of all vectors, which are cut as evenly as possible. vectors: at most as many.
        density: share of a worker's elements that are not zero, the supports of workers independent.

    Raises:
        PlanError: a codec that declares no sizes here.
    """
    up = down = chunks = phases = 0
    # Real buckets follow a model's layers, which are not known here: all vectors are equally long, give or take one
    # element.
    shorter, longer = elements // vectors, elements % vectors
    for size, count in ((shorter, vectors - longer), (shorter + 1, longer)):
        sent = list(exchanges_of(codec, size, density)) if count else []
        phases = max(phases, len(sent))
        for op, lanes in sent:
            shape = SHAPES[op]
            here = count * blocks_of(lanes, shape.elements)
            chunks += here
            up += here * (FRAME_OVERHEAD_BYTES + shape.up_bytes)
            down += here * (FRAME_OVERHEAD_BYTES + shape.down_bytes)
    return StepTraffic(up, down, chunks, phases)


def at_hosts(traffic: StepTraffic, workers: int) -> StepTraffic:
    """Return the traffic at a host that has a worker and a switch for an n-th of the chunks, n being `workers`.

    The worker's UPDATEs to the other hosts leave, and so do the switch's RESULTs to the other workers. As many arrive.
    """
    passed = (workers - 1) / workers * (traffic.up_bytes + traffic.down_bytes)
    return traffic._replace(up_bytes=passed, down_bytes=passed)


def exchanges_of(codec: Codec, elements: int, density: float) -> Iterator[PhaseTraffic]:
    """Yield the phases of one vector. A sketch has its expected size. Raises PlanError as `summed_traffic` does."""
    if isinstance(codec, Lossless):
        union = expected_union(elements, max(1, round(density * elements)), codec.workers)
        bloom = choose_index("auto", elements, union, GAMMA, 0)
        false = 0.0 if bloom is None else (elements - union) / (1 << bloom.hashes)
        yield PhaseTraffic(Op.MAX32, blocks_of(elements, RANGE_BLOCK) + 1)
        yield PhaseTraffic(Op.OR, index_bits(elements, bloom))
        yield PhaseTraffic(Op.ADD32, ceil(GAMMA * (union + false)))
    elif isinstance(codec, RangeCodec):
        yield PhaseTraffic(Op.MAX32, blocks_of(elements, codec.block_elements))
        yield PhaseTraffic(codec.op, elements)
    else:
        raise PlanError(f"codec {codec.name!r}: no sizes are known of it")


def ring_traffic(elements: int, workers: int, element_bytes: int) -> StepTraffic:
    """Return the traffic of a worker in a ring all-reduce of elements of `element_bytes`. It has no chunks."""
    return _exchanged(elements, workers, element_bytes)


def two_shot_traffic(elements: int, workers: int, bits: int) -> StepTraffic:
    """Return the traffic of a worker in a two-shot all-reduce of codes of `bits` bits. It has no chunks."""
    return _exchanged(elements, workers, bits / 8 + 4 / TWO_SHOT_BLOCK)


def _exchanged(elements: int, workers: int, element_bytes: float) -> StepTraffic:
    payload = 2 * (workers - 1) / workers * elements * element_bytes
    # Gloo runs on TCP: a full segment has this payload.
    segment = MTU_BYTES - IPV4_BYTES - TCP_BYTES
    sent = payload * (ETHERNET_BYTES + MTU_BYTES) / segment
    return StepTraffic(sent, sent)
