# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller backup`: the database of a running controller, as a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopsum.errors import HopsumError
from hopsum_cli.context import add_operator_arguments
from hopsum_cli.operator import operator_client
from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.membership_file import write_atomically


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum controller backup",
        description="Write the database of a running controller to a file, for a controller that continues with it.",
        epilog="The file has mode 0600, and is read as a database before it replaces a file of its name.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="file that is written")
    add_operator_arguments(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Write the backup, and print its number of jobs. Return 0.

    Return 1, with a printed reason, when the controller does not answer, its answer is no database, or the file cannot
    be written. The file is untouched then.
    """
    options = build_parser().parse_args(arguments)
    try:
        # Through the controller, not from its file: a copy of SQLite's file alone may lack the newest commits.
        with operator_client(options) as client:
            content = client.backup()
        jobs: list[int] = []
        # A controller of a later version may have sent it: that is found before the old file is lost. One of an
        # earlier version needs the file as it is, to go back to.
        write_atomically(options.file, content, lambda written: jobs.append(StateStore.count_jobs(written)))
    except (HopsumError, ControlPlaneError, OSError) as error:
        print(f"hopsum controller backup: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.file}: {jobs[0]} jobs, {len(content)} bytes")
    return 0
