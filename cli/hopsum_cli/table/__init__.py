# SPDX-License-Identifier: Apache-2.0
"""`hopsum table solve|search|show`: lookup tables of codec thc.

solve      the best table of a given size and truncation, its values and where its error comes from
search     the Pareto front of a job: expected error against workers that a lane holds
show       the table of a job with a codec, and the values of requantised results

`solve` and `search` are about stochastic rounding. With a dither levels are even, and have nothing to search.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hopsum_cli.table import search, show, solve


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments. What it parses has `run`, the function of the chosen word."""
    parser = argparse.ArgumentParser(prog="hopsum table", description="Lookup tables of codec thc.")
    words = parser.add_subparsers(dest="word", required=True, metavar="solve|search|show")
    for module, name in ((solve, "solve"), (search, "search"), (show, "show")):
        description = (module.__doc__ or "").partition("\n\n")[2]
        word = words.add_parser(name, help=module.SUMMARY, description=description)
        word.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        module.add_arguments(word)
        word.set_defaults(run=module.run, parser=word)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one word, which prints its result, and return 0. Raises SystemExit(2) for wrong arguments."""
    options = build_parser().parse_args(arguments)
    status: int = options.run(options)
    return status
