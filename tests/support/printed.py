# SPDX-License-Identifier: Apache-2.0
"""Reading of the output of ranks under torch."""

from __future__ import annotations

import json
import re
from typing import Any


def parse_printed(printed: str) -> Any:
    """Return the JSON value that ranks printed. Gloo of torch 2.8 tells of its connections on stdout too, in pieces."""
    for begin in re.finditer(r"^[\[{](?!Gloo)", printed, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(printed, begin.start())[0]
        except ValueError:
            continue
    raise ValueError(f"no JSON in {printed!r}")
