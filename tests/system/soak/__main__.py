# SPDX-License-Identifier: Apache-2.0
"""A soak of any length by hand, from the repository's root.

python -m tests.system.soak --updates 1000000              quorum 4, then quorum 3
python -m tests.system.soak --updates 1000000 --quorum 3
python -m tests.system.soak --updates 1000000 --transport  quorum 4, compiled loops; HOPSUM_COMPILED=0: without them
"""

from __future__ import annotations

import argparse
import time

from .ledger import close
from .member import Member, TransportMember
from .rig import WORKERS, bench, make_soak


def main() -> None:
    """Run, show progress, print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=1_000_000, help="datagrams that the workers send in all")
    parser.add_argument("--quorum", type=int, choices=range(1, WORKERS + 1), help="one only; else 4 and 3")
    parser.add_argument("--loss", type=float, default=0.05, help="probability, each way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", action="store_true", help="whole transports as members; they have no peers")
    options = parser.parse_args()
    member = TransportMember if options.transport else Member
    if options.transport and options.quorum not in (None, WORKERS):
        parser.error(f"--transport --quorum {options.quorum}: without peers a quorum of {WORKERS} is needed")
    quorums = [WORKERS] if options.transport else [options.quorum] if options.quorum else [WORKERS, WORKERS - 1]
    for quorum in quorums:
        began = time.monotonic()
        with bench(quorum, options.loss, options.seed, member) as stage:
            soak = make_soak(stage, options.seed, lambda line: print(line, flush=True))
            soak.run(options.updates)
            figures = close(soak, options.loss)
        print(f"quorum {quorum} of {WORKERS}: {time.monotonic() - began:.0f} s, seed {options.seed}, no difference")
        print("\n".join(f"  {line}" for line in figures.lines()), flush=True)


if __name__ == "__main__":
    main()
