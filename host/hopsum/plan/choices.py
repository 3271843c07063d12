# SPDX-License-Identifier: Apache-2.0
"""The choices of codec thc for a job: bits of an element on a worker's link against the error of the mean.

A choice is on the Pareto front if no other one has both at most as many bits in the busier direction and at most the
same error, and fewer bits or a smaller error. The default is plain `thc`, whatever the front is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hopsum.codec import Codec, CodecError, make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum.plan.traffic import exchanges_of, summed_traffic
from hopsum_wire.payload import SHAPES

SPELLED: Final = ("thc", "thc:lane_bits=16", "thc:result_bits=6", "thc:bits=2")
_ELEMENTS: Final = 1 << 20
_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """One spelling of the codec, for a number of workers."""

    codec: str
    up_bits: float
    """The bits of payload for an element, ranges included."""
    down_bits: float
    nmse: float
    """E||mean' - mean||^2 / ||mean||^2 of workers with the same input, without error feedback."""
    worker_nmse: float
    """The error of one worker alone, which error feedback has to make up for."""
    frame_bits: float
    """The bits of whole Ethernet frames for an element of a long vector, in the busier direction."""
    on_front: bool = False

    @property
    def busier_bits(self) -> float:
        """Return the bits in the busier direction."""
        return max(self.up_bits, self.down_bits)

    def link_s(self, elements: int, bits_per_s: float) -> float:
        """Return the seconds that a vector takes on a worker's link of this rate, each way."""
        return elements * self.frame_bits / bits_per_s


def codec_choices(workers: int) -> tuple[list[CodecChoice], dict[str, str]]:
    """Return the choices that a job of so many workers has, and for the others why it has not."""
    found: list[CodecChoice] = []
    refused: dict[str, str] = {}
    for spelled in SPELLED:
        try:
            codec = make_codec(spelled, workers=workers, backend="numpy")
        except CodecError as error:
            refused[spelled] = str(error)
        else:
            found.append(_choice(spelled, codec))
    return [_judged(each, found) for each in found], refused


def _choice(spelled: str, codec: Codec) -> CodecChoice:
    assert isinstance(codec, LookupTableCodec)
    up = down = 0.0
    for op, lanes in exchanges_of(codec, _ELEMENTS, 1.0):
        shape = SHAPES[op]
        up += lanes / shape.elements * shape.up_bytes * _BITS / _ELEMENTS
        down += lanes / shape.elements * shape.down_bytes * _BITS / _ELEMENTS
    traffic = summed_traffic(codec, _ELEMENTS, 1, 1.0)
    frames = max(traffic.up_bytes, traffic.down_bytes) * _BITS / _ELEMENTS
    errors = (expected_nmse(codec.table, codec.workers), expected_nmse(codec.table, 1))
    return CodecChoice(spelled, up, down, *errors, frames)


def _judged(one: CodecChoice, found: list[CodecChoice]) -> CodecChoice:
    mine = (one.busier_bits, one.nmse)
    others = [(each.busier_bits, each.nmse) for each in found]
    beaten = any(bits <= mine[0] and nmse <= mine[1] and (bits, nmse) != mine for bits, nmse in others)
    return replace(one, on_front=not beaten)
