# SPDX-License-Identifier: Apache-2.0
"""Types of arguments that several commands have, for argparse. `units` has those of numbers."""

from __future__ import annotations

import argparse
from os.path import isfile
from pathlib import Path


def existing_file(text: str) -> Path:
    """Return the path of a file. Raises ArgumentTypeError: there is none."""
    path = Path(text)
    # Unlike `Path.is_file`, false for a name that is too long for the system.
    if not isfile(path):
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path
