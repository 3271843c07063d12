# SPDX-License-Identifier: Apache-2.0
"""A fuzz run of any length by hand, from the repository's root.

python -m tests.system.fuzz --frames 10000000              native code, every 500th batch beside the interpreter
python -m tests.system.fuzz --frames 10000000 --seed 2
python -m tests.system.fuzz --live 500000                  datagrams at a running switch process
python -m tests.system.fuzz --bmv2 20000                   frames through bmv2
"""

from __future__ import annotations

import argparse
import random
import time

from ...support.memory import growth_kib
from ..soak.rig import WORKERS, bench, make_soak, next_job
from .corpus import Frames
from .live import Siege
from .reference import compare, reference
from .rig import BATCH, Rig, Sent
from .twin import Twin

LOSSY_FRAMES = 4000
SUMS_AFTERWARDS = 20_000


def main() -> None:
    """Run, show progress, print what was met."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=500, help="of so many batches one goes through the interpreter")
    parser.add_argument("--live", type=int, metavar="DATAGRAMS", help="only this: so many at a switch process")
    parser.add_argument("--bmv2", type=int, metavar="FRAMES", help="only this: so many through bmv2")
    options = parser.parse_args()
    if options.live:
        live(options.live, options.seed)
    elif options.bmv2:
        beside_bmv2(options.bmv2, options.seed)
    else:
        fuzz(options)


def fuzz(options: argparse.Namespace) -> None:
    """Send frames through native code."""
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


def live(datagrams: int, seed: int) -> None:
    """Send datagrams to a switch process; see that it still sums afterwards."""
    began = time.monotonic()
    with bench(WORKERS, 0.0, seed) as stage:
        siege = Siege(stage, random.Random(seed), lambda line: print(line, flush=True))
        siege.run(datagrams)
        unaccounted, possible = siege.unaccounted()
        assert 0 <= unaccounted <= possible, (unaccounted, possible)
        drops, events = stage.controller.drop_counters(), stage.controller.job_counters(stage.job)
        received = siege.received()
        make_soak(next_job(stage), seed).run(SUMS_AFTERWARDS)
    grown, at_tenth = growth_kib(siege.memory_kib)
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, {siege.sent:,} datagrams, {received:,} taken in")
    print(f"  drops    {', '.join(f'{name} {count:,}' for name, count in drops.items() if count)}")
    print(f"  events   {', '.join(f'{name} {count:,}' for name, count in events.items() if count)}")
    print(f"  memory   {at_tenth:,} KiB after a tenth, from then on at most {grown:+,} KiB")
    print(f"  then {SUMS_AFTERWARDS:,} UPDATEs of a new job, every sum right", flush=True)


def beside_bmv2(frames: int, seed: int) -> None:
    """Send frames through bmv2."""
    began = time.monotonic()
    with reference() as beside:
        met, drops = compare(beside, seed, frames, lambda line: print(line, flush=True))
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, no difference")
    print(f"  {', '.join(f'{what} {count:,}' for what, count in met.items())}")
    print(f"  drops {', '.join(f'{reason.name} {count:,}' for reason, count in sorted(drops.items()))}")


if __name__ == "__main__":
    main()
