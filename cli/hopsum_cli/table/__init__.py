# SPDX-License-Identifier: Apache-2.0
"""`hopsum table solve|search`: lookup tables of codec thc.

solve      the best table of a given size and truncation, its values and where its error comes from
search     the Pareto front of a job: expected error against workers that a lane holds
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hopsum_cli.table import search, solve


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of both words."""
    parser = argparse.ArgumentParser(prog="hopsum table", description="Lookup tables of codec thc.")
    words = parser.add_subparsers(dest="word", required=True, metavar="solve|search")
    for module, name in ((solve, "solve"), (search, "search")):
        description = (module.__doc__ or "").partition("\n\n")[2]
        word = words.add_parser(name, help=module.SUMMARY, description=description)
        word.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        module.add_arguments(word)
        word.set_defaults(run=module.run, parser=word)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one word and return its exit status."""
    options = build_parser().parse_args(arguments)
    status: int = options.run(options)
    return status
