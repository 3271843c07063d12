# SPDX-License-Identifier: Apache-2.0
"""What commands and ranks printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def parse_printed(printed: str) -> Any:
    """Return the JSON value that ranks printed. Gloo of torch 2.8 tells of its connections on stdout too, in pieces."""
    for begin in re.finditer(r"^[\[{](?!Gloo)", printed, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(printed, begin.start())[0]
        except ValueError:
            continue
    raise ValueError(f"no JSON in {printed!r}")


def usage_error(capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], object], *arguments: str) -> str:
    """Run a command that has to refuse its arguments as wrong usage. Return what it wrote to stderr."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err
