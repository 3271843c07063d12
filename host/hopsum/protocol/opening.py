# SPDX-License-Identifier: Apache-2.0
"""Which positions of a worker may be sent, and their way into its outbox.

Rules
    W1  Of each slot only the lowest position that is not held, whatever all-reduce it belongs to (N3).
    R2  All-reduces begin in the order of the stream, the next one when those before it are proved as far as the policy
        asks for (repair.py); without peers at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.ledger import Ledger
from hopsum.protocol.outbox import Outbox
from hopsum.protocol.repair import Repair


class Opening:
    """The only one to open positions of a worker."""

    def __init__(self, ledger: Ledger, outbox: Outbox, repair: Repair | None) -> None:
        self._ledger, self._outbox, self._repair = ledger, outbox, repair

    def slot(self, slot: int) -> None:
        """Open what a slot may send now."""
        position = self._ledger.next_open(slot)
        if position is not None:
            self._outbox.open(position)

    def slots(self, slots: NDArray[np.int64], held: NDArray[np.int64] | None = None) -> None:
        """Do so for several slots, at least one; `held` as for `Ledger.next_open_many`."""
        self._outbox.open_many(self._ledger.next_open_many(slots, held))

    def release(self) -> None:
        """Let all-reduces begin, as far as those before them are proved."""
        ledger = self._ledger
        if ledger.decided is not None and ledger.decided.end <= ledger.delivered_to:
            ledger.decided = None
        for before, reduce in enumerate(ledger.active):
            if reduce.first < ledger.open_end:
                continue
            if self._repair is not None and not self._repair.may_open(before):
                return
            ledger.open_end = reduce.end
            chunks = min(reduce.end - reduce.first, ledger.stream.slots)
            self.slots(np.arange(reduce.first, reduce.first + chunks) % ledger.stream.slots)
