# SPDX-License-Identifier: Apache-2.0
"""Programs: the compiler's JSON to a typed mirror, to IR, verified."""

from __future__ import annotations

import hashlib

from ..errors import ProgramError
from .ir import ProgramIR
from .lower import lower
from .p4c_json import read_program
from .verify import verify


def load_program(json_text: str) -> ProgramIR:
    """Load a program that p4c compiled for the v1model architecture.

    Raises: ProgramError (malformed) or UnsupportedError (see `unsupported.UNSUPPORTED`), naming the construct
    and, where the JSON has it, the P4 source line.
    """
    # The digest names the program in caches of machine code and in `MemoryLayout`.
    digest = hashlib.sha256(json_text.encode()).hexdigest()
    try:
        program = lower(read_program(json_text), digest)
    except RecursionError:
        raise ProgramError("an expression is nested too deeply; split it over several assignments") from None
    verify(program)
    return program


__all__ = ["ProgramIR", "load_program"]
