# SPDX-License-Identifier: Apache-2.0
"""A compiled program on the command line: p4c's JSON, and P4Info, by default from the program's folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from hopsum_base.arguments import existing_file
from hopsum_topologies.errors import TopologyError


def add_p4info(parser: argparse.ArgumentParser) -> None:
    """Add --p4info to a parser: the path of an existing file, or None, whose default `program_with_p4info` has."""
    parser.add_argument(
        "--p4info",
        type=existing_file,
        metavar="X.p4info.txtpb",
        help="P4Info of the program, in text format (default: X.p4info.txtpb or .txt in the folder of X.json)",
    )


def program_with_p4info(program: Path, given: Path | None) -> tuple[Path, Path]:
    """Return a program and its P4Info: as given, or from the program's folder. Raises TopologyError: there is none."""
    usual = [program.with_suffix(f".p4info.{ending}") for ending in ("txtpb", "txt")]
    for path in [given] if given is not None else usual:
        if path.is_file():
            return program, path
    raise TopologyError(
        f"{program} has no P4Info in its folder: neither {usual[0].name} nor {usual[1].name}; give --p4info, "
        f"or compile with p4c-bm2-ss -o {program.name} --p4runtime-files {usual[0].name}"
    )
