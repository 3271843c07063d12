# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec WHAT`: what codecs make of vectors, without a network.

compare    error against bits of every method, as a table and as plots
  vectors    what is compared on: gradients of the demo's model, and random vectors
  methods    codecs of the switch and estimators behind one interface; candidates: those compared
  measure    the error of one method, many times; what theory expects of it
  report     cells as JSON and as tables; plot: as figures
capture    record the gradients that come with the package, again
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hopsum.cli.main import Command, load

WORDS = {
    "compare": Command("error of the mean against bits per element, every method", "hopsum.cli.codec.compare", "cli"),
    "capture": Command("record gradients for `compare` again (for developers)", "hopsum.cli.codec.capture", "demo"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the second word; the rest belongs to it."""
    lines = "\n".join(f"  {name:10} {word.summary}" for name, word in WORDS.items())
    parser = argparse.ArgumentParser(
        prog="hopsum codec",
        description="See what codecs make of vectors, without a network.",
        epilog=f"what there is:\n{lines}\n\n`hopsum codec WHAT --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", choices=WORDS, metavar="WHAT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one of them and return its exit status."""
    options = build_parser().parse_args(arguments)
    return load(WORDS[options.word])(options.arguments)
