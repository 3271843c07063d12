# SPDX-License-Identifier: Apache-2.0
"""A replica of test_quorum.py: `quorum_worker.py REPLICA STORE_PORT`; calls what torchft's Manager calls.

Quorum 1 has replicas 0, 1, 2; replica 2 dies. Quorum 2 has 0 and 1; quorum 3 has these and replica 3, which is new.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist

from hopsum.torch import QuorumProcessGroup

ELEMENTS = 5000


def average(group: QuorumProcessGroup, value: float) -> Any:
    """Sum as Manager.allreduce does; return the mean's least and greatest element, or the error."""
    tensor = torch.full((ELEMENTS,), value)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    try:
        group.allreduce([tensor], options).wait()
    except Exception as error:
        return {"error": str(error), "errored": str(group.errored())}
    return [float((tensor / group.size()).min()), float((tensor / group.size()).max())]


def main() -> None:
    replica, port = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    if replica == 0:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    group, found = QuorumProcessGroup(backend="numpy", codec="fixed"), dict[str, Any]()

    def configure(quorum: int, members: tuple[int, ...]) -> None:
        rank = members.index(replica)
        group.configure(f"127.0.0.1:{port}/torchft/{quorum}/0", str(replica), rank, len(members), quorum, 0, 1, [])

    if replica == 3:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        store.wait(["grow"])
    else:
        configure(1, (0, 1, 2))
        found["first"], found["small"] = average(group, float(replica)), group.size()
        if replica == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        found["lost"] = average(group, float(replica))
        configure(2, (0, 1))
        found["second"] = [average(group, float(replica)), str(group.errored())]
        count = torch.tensor([replica + 1.0])
        group.broadcast([count], dist.BroadcastOptions()).wait()
        found["broadcast"] = float(count)
        if replica == 0:
            store.set("grow", "now")
    configure(3, (0, 1, 3))
    found["third"] = average(group, float(replica))
    if replica == 0:
        print(json.dumps(found), flush=True)
        sys.stdin.read()  # it has the store
    group.shutdown()
    if replica != 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
