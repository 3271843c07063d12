# SPDX-License-Identifier: Apache-2.0
"""A rank of test_processes.py that sums until some rank is killed: `failing_worker.py KILLED_RANK`; prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np

import hopsum
from hopsum.errors import HopsumError

KILLED_AT = 3


def main() -> None:
    killed, rank = int(sys.argv[1]), int(os.environ["RANK"])
    comm = hopsum.connect("hosts://", backend="numpy", replacement_wait_s=0.0)
    print("open", flush=True)
    try:
        for step in range(10_000):
            if step == KILLED_AT and rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.allreduce(np.ones(3000, np.float32))
    except HopsumError as error:
        told = {"step": step, "kind": type(error).__name__, "text": str(error)}
        try:
            comm.allreduce(np.ones(3000, np.float32))
        except HopsumError as after:
            told["after"] = type(after).__name__
        print(json.dumps(told), flush=True)
    if rank == 0:
        sys.stdin.read()  # it has torch's store
    comm.close()


if __name__ == "__main__":
    main()
