# SPDX-License-Identifier: Apache-2.0
"""A site of test_diloco_sites.py, a process: `diloco_worker.py FOLDER RANK`; prints JSON. No process group.

Rank 2 comes to the first synchronisation when the others have left it; they wait for each other for PATIENCE_S.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from ledger import Model, draw, loss_of

import hopsum
from hopsum.torch import DiLoCo

EVERY, ROUNDS, LAST_RANK, WAIT_S = 3, 4, 2, 300.0
PATIENCE_S = 5.0


def wait_for(folder: Path) -> None:
    """Return once both other ranks have left the first synchronisation."""
    until = time.monotonic() + WAIT_S
    while not all((folder / f"left{rank}").exists() for rank in range(LAST_RANK)):
        if time.monotonic() > until:
            raise TimeoutError("the others never left the first synchronisation")
        time.sleep(0.01)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = Model()
    shared: list[str] = []
    delivered: list[float] = []
    residuals: list[float] = []
    settings = {"rank": rank, "codec": "fixed", "backend": "numpy", "deadline_s": WAIT_S}
    with hopsum.connect(f"file://{folder}/job0.json", flush_after_s=PATIENCE_S, **settings) as comm:
        diloco = DiLoCo(model, comm, sync_every=EVERY)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        for number in range(1, ROUNDS * EVERY + 1):
            inner.zero_grad()
            loss_of(model, draw(rank, number)).backward()  # type: ignore[no-untyped-call]
            inner.step()
            if rank == LAST_RANK and number == EVERY:
                wait_for(folder)
            diloco.step()
            if number % EVERY == 0:
                (folder / f"left{rank}").touch()
                data = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
                shared.append(hashlib.sha256(data).hexdigest())
                delivered.append(diloco.compression_stats()["delivered"] * len(shared) - sum(delivered))
                residuals.append(max(float(each.abs().max()) for each in diloco.state_dict()["residuals"].values()))
    print(json.dumps({"rank": rank, "shared": shared, "delivered": delivered, "residuals": residuals}))


if __name__ == "__main__":
    main()
