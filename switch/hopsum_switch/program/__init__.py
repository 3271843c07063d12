# SPDX-License-Identifier: Apache-2.0
"""Programs: the compiler's JSON to a typed mirror, to IR, verified."""

from __future__ import annotations

import hashlib

from ..errors import ProgramError
from .ir import ProgramIR
from .lower import lower
from .p4c_json import read_program, read_version
from .verify import verify

CURRENT_FORMAT = (2, 23)
"""The version of the JSON format that current p4c writes."""


def load_program(json_text: str) -> ProgramIR:
    """Load a program that p4c compiled for the v1model architecture.

    Raises: ProgramError (malformed) or UnsupportedError (see `unsupported.UNSUPPORTED`), naming the construct
    and, where the JSON has it, the P4 source line.
    """
    # The digest names the program in caches of machine code and in `MemoryLayout`.
    digest = hashlib.sha256(json_text.encode()).hexdigest()
    version: tuple[int, int] | None = CURRENT_FORMAT
    try:
        # The version comes first: a file of another format has other shapes, and the version is the better message.
        version = read_version(json_text)
        program = lower(read_program(json_text), digest)
        verify(program)
    except RecursionError:
        raise ProgramError("an expression is nested too deeply; split it over several assignments") from None
    except ProgramError as error:
        if version is not None and version >= CURRENT_FORMAT:
            raise
        written = "no version" if version is None else f"format {version[0]}.{version[1]}"
        raise type(error)(
            f"{error}; the JSON is an older compiler's ({written}, current ones write {CURRENT_FORMAT[0]}."
            f"{CURRENT_FORMAT[1]}): compile the P4 source again with a current p4c"
        ) from None
    return program


__all__ = ["ProgramIR", "load_program"]
