# SPDX-License-Identifier: Apache-2.0
"""Search one case by hand, from the repository's root.

python -m tests.system.model --modes BE -n 3 --chunks 2
python -m tests.system.model --modes A -n 2 --chunks 2 --off answer_dup
python -m tests.system.model --modes E -n 2 --reduces 2,3 --set restarts=2 --set peers=False
python -m tests.system.model --rules
python -m tests.system.model --write           the generated parts of docs/protocol.md
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from typing import Any

from .cases import BREACHES
from .config import CHECKS, MODES, make
from .document import PAGE, rewritten
from .rules import RULES
from .search import explore


def main() -> int:
    """Return 1 if a violation was found."""
    args = arguments().parse_args()
    if args.rules:
        for name, rule in RULES.items():
            print(f"{rule.letter:3} {name:18} {rule.text}")
        return 0
    if args.write:
        PAGE.write_text(rewritten(PAGE.read_text()))
        print(f"{PAGE}: {len(BREACHES)} traces")
        return 0
    changes: dict[str, Any] = {name: ast.literal_eval(text) for name, text in (item.split("=", 1) for item in args.set)}
    if args.reduces:
        changes["reduces"] = tuple(map(int, args.reduces.split(",")))
    off, checks = (tuple(filter(None, names.split(","))) for names in (args.off, args.checks))
    config = make(args.modes, args.n, args.chunks, off=off, checks=checks, slots=args.slots, **changes)
    began = time.monotonic()
    found = explore(config, args.states_max)
    print(f"{found.states} states, {found.transitions} transitions, {time.monotonic() - began:.1f} s", end="")
    print("" if found.complete else ", not all")
    if found.violation is not None:
        print(f"{found.trace}\n{found.violation}")
    return int(found.violation is not None)


def arguments() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = ", ".join(f"{letter}: {text}" for letter, text in MODES.items())
    parser.add_argument("--modes", default="A", help=f"letters, which combine; {modes}")
    parser.add_argument("-n", type=int, default=3, help="workers")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--reduces", default="", help="chunks of successive all-reduces, in place of --chunks: 2,3")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--off", default="", help="rules taken away, with commas")
    parser.add_argument("--checks", default=",".join(CHECKS), help="checks made; all if left out")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="any field of Config")
    parser.add_argument("--states-max", type=int)
    parser.add_argument("--rules", action="store_true", help="list the rules")
    parser.add_argument("--write", action="store_true", help="rewrite the generated parts of docs/protocol.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
