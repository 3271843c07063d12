# SPDX-License-Identifier: Apache-2.0
"""What ranks under torch print."""

from __future__ import annotations

import json
from typing import Any


def parse_printed(printed: str) -> Any:
    """Return what ranks printed as JSON. Gloo of torch 2.8 tells of its connections on stdout as well."""
    return json.loads("\n".join(line for line in printed.splitlines() if not line.startswith("[Gloo] ")))
