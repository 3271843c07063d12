# SPDX-License-Identifier: Apache-2.0
"""The only list of the P4 features that the engine does not run: documentation, loader and tests read it.

The loader refuses a feature by its name below, with the P4 object and its source line. No unsupported feature is ever
ignored at run time.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UnsupportedError
from .p4_source import SourceInfo, at

UNSUPPORTED: Mapping[str, str] = {
    "action profile": "tables with action profiles or selectors (only direct actions run)",
    "assert": "assert() and assume(), which stop the switch",
    "checksum type": "checksums that are not computed by a declared calculation",
    "division": "/ and % by anything but a positive constant, or of signed values",
    "expression": "an expression operator that is not known here",
    "extern": "extern instances of the architecture or the program",
    "hash algorithm": "hash algorithms other than crc16, crc32, crcCCITT, csum16, identity, xor16",
    "header stack": "elements of a header stack that are chosen at run time, other than reading a field",
    "header union": "stacks of header unions",
    "match kind": "match kinds other than exact, lpm, ternary, range and optional",
    "meter": "meters with other than two rates",
    "operand": "an operand of a kind that is not known here",
    "parser operation": "a parser operation that is not known here",
    "primitive": "a primitive of the architecture that is not known here",
    "register reference": "register cells used directly in expressions",
    "saturating field": "fields of saturating types",
    "validity write": "writing a header's validity bit as a field",
    "value set": "parser value sets",
    "varbit": "variable-length fields in metadata or stacks, several in a header, or extracted without a length",
}


def unsupported_error(construct: str, what: str, source: SourceInfo | None = None) -> UnsupportedError:
    """Return an error to raise for `construct`, a key of `UNSUPPORTED`. It names the object `what` and its source."""
    return UnsupportedError(f"unsupported {construct}: {what}{at(source)}; not run: {UNSUPPORTED[construct]}")
