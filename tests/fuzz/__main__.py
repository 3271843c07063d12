# SPDX-License-Identifier: Apache-2.0
"""A fuzz run of any length by hand, from the repository's root.

python -m tests.fuzz --frames 10000000              native code, every 500th batch beside the interpreter
python -m tests.fuzz --frames 10000000 --seed 2
"""

from __future__ import annotations

import argparse
import time

from .corpus import Frames
from .rig import BATCH, Rig, Sent
from .twin import Twin

LOSSY_FRAMES = 4000


def main() -> None:
    """Run, show progress, print what was met."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=500, help="of so many batches one goes through the interpreter")
    options = parser.parse_args()
    began = time.monotonic()
    twin = Twin(options.every)

    def watch(rig: Rig, frames: Frames, sent: list[Sent]) -> None:
        twin.watch(rig, frames, sent)
        done = rig.tally.frames
        if done * 100 // options.frames > (done - BATCH) * 100 // options.frames:
            print(f"{done:>11,} frames, {time.monotonic() - began:.0f} s, {rig.memory_kib[-1]:,} KiB", flush=True)

    rig = Rig(options.seed, watch)
    rig.run(options.frames)
    twin.lossy(options.seed, LOSSY_FRAMES)
    print(f"seed {options.seed}: {time.monotonic() - began:.0f} s, no difference")
    print("\n".join(f"  {line}" for line in (*rig.lines(), *twin.lines())), flush=True)


if __name__ == "__main__":
    main()
