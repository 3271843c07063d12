# SPDX-License-Identifier: Apache-2.0
"""A rank that sums, holds Python's interpreter lock for some seconds as a library in C may, and sums again."""

from __future__ import annotations

import ctypes
import sys

import numpy as np

import hopsum


def main() -> None:
    """Arguments: URL, token, rank, seconds."""
    url, token, rank, hold_s = sys.argv[1:]
    with hopsum.connect(url, token=token, rank=int(rank), codec="fixed", backend="numpy", deadline_s=120) as job:
        job.allreduce(np.float32([job.rank, 2]))
        # Loaded so, a function is called without the lock being released.
        ctypes.PyDLL(None).sleep(int(hold_s))
        job.allreduce(np.float32([job.rank, 4]))


if __name__ == "__main__":
    main()
