# SPDX-License-Identifier: Apache-2.0
"""Codecs: a vector into chunks that a switch can add, and the added chunks into the mean. No I/O, no clock.

    interface         the interface of a codec: the base of reductions, phases, contexts, errors; error feedback
    vector_reduction  ranges, agreed upon by MAX32: how large each block is; reductions in two phases
    range_codec       codecs with one range per block, from the ranges to the mean
    thc               thc and uhc: codes of a randomly rotated vector, added in lanes
    dither            subtractive dither, and the table of a job whose results are codes
    fixed             32-bit fixed point, added exactly: the uncompressed yardstick
    lossless          sparse vectors, added exactly: an index of the elements that are not zero, and a sketch that peels
    two_shot          codes that the ranks add up: for all-reduces without a switch
    low_rank          factors of low rank: orthogonalisation and products that all ranks do alike
    lookup_table      optimal lookup tables, their expected error, and the table of a job (solved_tables: of small jobs)
    registry          codecs by name; every codec is checked on a small vector when it is made
    backends          the arithmetic, in numpy and in numba, equal bit for bit
    hashing           random bits that follow from a key and a place
    simulate          the sums of a switch in numpy, for checks, measurements, memory:// and collective://

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
    require_switch,
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
    "require_switch",
]
