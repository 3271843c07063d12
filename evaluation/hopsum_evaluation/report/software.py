# SPDX-License-Identifier: Apache-2.0
"""thc by software parameter servers: every worker is also the server of its part of the chunks, over gloo.

What THC's authors call colocated. Payloads go to the servers (all-to-all), which look codes up and add them as the
switch would, and results from there to everybody (all-gather): the same codes, sums and means as with a switch, 4 bits
up and 8 down for each element, but for the part that a worker serves itself.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from hopsum.codec import Codec, CollectivePhase
from hopsum.codec.simulate import simulate_switch
from hopsum.communicator import Summed
from hopsum.connection.collective import CollectiveCommunicator


class SoftwareServers(CollectiveCommunicator):
    """One worker and server. The contract is `hopsum.communicator.Communicator`. All ranks of gloo take part."""

    def __init__(self, codec: Codec, seed: int = 0) -> None:
        """Make a process group of its own, which all ranks do at the same point."""
        super().__init__("gloo", dist.new_group(backend="gloo"), dist.get_rank(), codec=codec, seed=seed)

    def _sum(self, phase: CollectivePhase) -> Summed:
        chunks, up_bytes = phase.payloads.shape
        each = -(-chunks // self.workers)
        sent = np.zeros((self.workers, each, up_bytes), np.uint8)
        sent.reshape(-1, up_bytes)[:chunks] = phase.payloads
        got = torch.empty(sent.shape, dtype=torch.uint8)
        self._run("scatter", lambda: dist.all_to_all_single(got, torch.from_numpy(sent), group=self._group))
        parts = list(got.numpy())
        served = simulate_switch(phase.op, parts, self.codec.lookup, code_group=self.codec.code_group)[0]
        found = [torch.empty(served.shape, dtype=torch.uint8) for _ in range(self.workers)]
        self._run("gather", lambda: dist.all_gather(found, torch.from_numpy(served), group=self._group))
        results = torch.cat(found).numpy()[:chunks]
        everybody = np.full(chunks, (1 << self.workers) - 1, np.uint64)
        return Summed(results, everybody, sent.nbytes + served.nbytes)
