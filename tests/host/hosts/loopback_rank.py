# SPDX-License-Identifier: Apache-2.0
"""One rank of `hosts://` that has a loopback address as its host, without torch: FOLDER RANK RANKS.

The ranks meet over files in the folder. Each sums twice, prints the means, and stays while a file `stay` is there.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hopsum.config import resolve
from hopsum.connection import Hooks, open_config
from hopsum.meeting import Arrival, Meeting, WaitLimit

ELEMENTS = 40_000


class FileStore:
    """A file for each key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, value: str) -> None:
        # The name comes with the text, so that nobody reads a part of it.
        new = self._folder / f"new-{os.getpid()}"
        new.write_text(value)
        new.rename(self._path(key))

    def find(self, key: str) -> str | None:
        try:
            return self._path(key).read_text()
        except FileNotFoundError:
            return None

    def has_all(self, keys: Sequence[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def admit(self, ranks: Collection[int]) -> None:
        raise NotImplementedError

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")


def main(folder: Path, rank: int, ranks: int) -> None:
    # Each address of this machine counts as a host, with a switch of its own.
    arrival = Arrival({}, f"host {rank}")
    meeting = Meeting(FileStore(folder), "1/all", rank, ranks, WaitLimit(1800.0))
    settings = {"codec": "fixed", "ip": f"127.0.0.{rank + 1}"}
    config = resolve(settings, environment={}, url="hosts://")
    with meeting.opening(arrival), open_config(config, Hooks(meeting=meeting)) as comm:
        # Summed twice: the second one finds every kernel compiled and every way open.
        for vector in (np.full(ELEMENTS, rank, np.float32), np.full(ELEMENTS, rank + 1, np.float32)):
            mean = comm.allreduce(vector).mean
            print(f"{mean.min():.3f} {mean.max():.3f} {len(comm.membership.shards)}", flush=True)
        while (folder / "stay").exists():
            time.sleep(0.1)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
