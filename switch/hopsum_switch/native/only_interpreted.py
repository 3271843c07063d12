# SPDX-License-Identifier: Apache-2.0
"""The list of operations that only the interpreter runs. Compiler and tests read it. There is no other list."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UnsupportedError
from ..program.p4_source import SourceInfo, at

UNSUPPORTED: Mapping[str, str] = {
    "big integer": "an intermediate value of more than 16384 bits",
    "big product": "* on values of more than 256 bits",
    "big quotient": "/ and % on values of more than 64 bits",
    "clone": "clone()",
    "digest": "digest()",
    "hash input": "a calculation in which a header that may be invalid ends within a byte and more follows",
    "log message": "log_msg()",
    "meter": "meters",
    "many branches": "a parser of more than 800 states, or a control of more than 800 conditions and jumps",
    "many elements": "a header stack of more than 128 elements",
    "range key": "a range key of more than 64 bits",
    "recirculate": "recirculate()",
    "resubmit": "resubmit()",
    "signed length": "a length, hash base, hash size or bound of random() that can be negative",
    "standard metadata": "a metadata field of the architecture that is signed or has more than 64 bits",
    "varbit": "variable-length fields",
    "wide length": "a length of more than 63 bits",
}


def unsupported_error(construct: str, what: str, source: SourceInfo | None = None) -> UnsupportedError:
    """Return an error to raise for `construct`, a key of `UNSUPPORTED`. It names the object `what` and its source."""
    where = f"{what}{at(source)}"
    return UnsupportedError(f"not compiled: {construct}: {where}; only interpreted: {UNSUPPORTED[construct]}")
