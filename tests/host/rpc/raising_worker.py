# SPDX-License-Identifier: Apache-2.0
"""A rank that sums twice, and then ends by an exception that nobody handles, without a `with` statement."""

from __future__ import annotations

import sys

import numpy as np

import hopsum


def main() -> None:
    """Arguments: URL, token, rank."""
    url, token, rank = sys.argv[1:]
    job = hopsum.connect(url, token=token, rank=int(rank), codec="fixed", backend="numpy", deadline_s=60)
    job.allreduce(np.float32([job.rank, 2]))
    job.allreduce(np.float32([job.rank, 2]))  # when it is here all ranks have had the first
    raise RuntimeError("a bad batch")


if __name__ == "__main__":
    main()
