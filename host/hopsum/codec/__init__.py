# SPDX-License-Identifier: Apache-2.0
"""Codecs: a vector into chunks that a switch can add, and the added chunks into the mean. No I/O, no clock.

    base        the interface of a codec: reductions, their phases, contexts, errors
    ranges      how large each block is, agreed upon by MAX32
    range_codec codecs with one range per block, from the ranges to the mean
    thc         4-bit codes of a randomly rotated vector, looked up and added in lanes
    uhc         the same with evenly spaced values, of 1 to 8 bits
    lookup_table_codec  the base of those two; rotation: across the blocks of a vector
    pairs       two codes of thc in a symbol, and two sums in a lane
    fixed       32-bit fixed point, added exactly: the uncompressed yardstick
    lossless    sparse vectors, added exactly: an index of what is not zero, and a sketch that peels
    table       optimal lookup tables, the error to expect of them, and which one a job takes
    feedback    error feedback
    registry    codecs by name; every codec is checked on a small vector when it is made
    backends    the arithmetic, in numpy and in numba, equal bit for bit
    simulate    what a switch makes of payloads, for checks and measurements

numba is imported when a codec with that backend is made, not before.
"""

from __future__ import annotations

from hopsum.codec.interface import (
    Codec,
    CodecError,
    CollectiveError,
    CollectivePhase,
    ErrorFeedback,
    NonFiniteError,
    Reduction,
    ReductionContext,
    job_tables,
)
from hopsum.codec.lookup_table import LookupTable, best_table
from hopsum.codec.registry import CODECS, WITH_CODES, CodecName, codec_names, make_codec, parse_codec, register_codec
from hopsum.codec.vector_reduction import SharedRanges

__all__ = [
    "CODECS",
    "WITH_CODES",
    "Codec",
    "CodecError",
    "CodecName",
    "CollectiveError",
    "CollectivePhase",
    "ErrorFeedback",
    "LookupTable",
    "NonFiniteError",
    "Reduction",
    "ReductionContext",
    "SharedRanges",
    "best_table",
    "codec_names",
    "job_tables",
    "make_codec",
    "parse_codec",
    "register_codec",
]
