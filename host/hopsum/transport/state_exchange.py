# SPDX-License-Identifier: Apache-2.0
"""The program's state on its way between workers: offered to newcomers, fetched by one, over the side channel."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from hopsum.errors import HopsumError
from hopsum.notice import WaitMonitor
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.state_transfer import StateFetch, StateOffers
from hopsum.protocol.worker import Worker
from hopsum.transport.side_channel import SideChannel

_log: Final = logging.getLogger(__name__)


class StateMovedError(HopsumError):
    """Further workers were replaced while a newcomer waited for a state. It has to ask for their state."""


class StateExchange:
    """The states that one worker offers, and the one that it fetches. Any thread.

    Args:
        worker: tells the generation, and who is new in it.
        repair: the worker's, which knows its peers.
        channel: to them.
        changed: the transport's condition. Its lock is held where `hear` is called, and taken by the other methods.
    """

    def __init__(self, worker: Worker, repair: PeerRepair, channel: SideChannel, changed: threading.Condition) -> None:
        self._worker, self._repair, self._channel, self._changed = worker, repair, channel, changed
        self._rank = worker.membership.rank
        self._offers = StateOffers(self._rank)
        self._fetch: StateFetch | None = None
        self._over: str | None = None
        """The reason why no state is waited for any more."""

    def offer(self, state: bytes, start_generation: int, newcomers: Mapping[int, int]) -> None:
        """Have a state ready, not copied, for the newcomers of a generation, until they have taken it.

        `newcomers`: by rank, the generation in which the rank began, for all that may have no state yet.
        """
        # Hashed outside the lock: a state of gigabytes takes seconds, and the step loop needs the lock.
        digest = hashlib.sha256(state).digest()
        with self._changed:
            self._offers.offer(state, digest, start_generation, newcomers)

    def fetch(self, start_generation: int, wait_s: float, bytes_max: int) -> bytes:
        """Return the state that another worker offers to the newcomers of a generation. Wait for it up to `wait_s`.

        Raises:
            HopsumError: the state is not here in time, or longer than `bytes_max`; `end_fetch` was called, or the side
                channel has ended.
            StateMovedError: there are newcomers of a later generation.
        """
        until = time.monotonic() + wait_s
        with self._changed:
            self._fetch = fetch = StateFetch(self._rank, start_generation, self._able(start_generation), bytes_max)
            waiting = WaitMonitor(_log, f"rank {self._rank}")
            try:
                while fetch.state is None:
                    now = time.monotonic()
                    self._require_fetching(fetch, wait_s, until - now)
                    waiting.check(lambda: f"the state of rank {fetch.source} or another one: {fetch}", until - now)
                    ask = fetch.ask(self._worker.membership.generation, now)
                    # A rank that is gone has no address, and is asked in turn all the same: it may come back.
                    if ask is not None:
                        self._channel.send_all([(fetch.source, ask)])
                    # Gives the lock back while it waits, so that `hear` can bring the pieces.
                    self._changed.wait(min(fetch.due, until) - now)
            finally:
                self._fetch = None
            waiting.over("has the state")
            # Everybody hears that the state is here, so that the holders free theirs.
            generation = self._worker.membership.generation
            taken = PeerMessage(PeerKind.STATE_TAKEN, self._rank, generation, round=start_generation)
            self._channel.send_all([(peer, taken) for peer in self._repair.peers])
            return fetch.state

    def hear(self, message: PeerMessage) -> None:
        """Take one message about states; with the lock."""
        if message.kind in (PeerKind.STATE_PIECE, PeerKind.STATE_NONE):
            if self._fetch is not None:
                self._fetch.take(message, time.monotonic())
            return
        answers = self._offers.answer(message, self._worker.membership.generation)
        self._channel.send_all([(message.sender, answer) for answer in answers])

    def end_fetch(self, why: str) -> None:
        """Let nobody wait for a state any more: rank N `why`. For good."""
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()

    def _able(self, start_generation: int) -> Sequence[int]:
        """Return the ranks that may have the state: the old ones, if there are any."""
        peers = self._repair.peers
        if not peers:
            raise HopsumError(f"rank {self._rank} is alone in its job: no other rank has a state for it")
        new = self._worker.join_point.newcomers(start_generation)
        # Where all others are new as well, one of them may have got the state first.
        return [peer for peer in peers if peer not in new] or peers

    def _require_fetching(self, fetch: StateFetch, wait_s: float, left_s: float) -> None:
        """Raise HopsumError where waiting for a state is no use."""
        if self._over is not None:
            raise HopsumError(f"rank {self._rank} {self._over}")
        self._channel.require_open()
        if fetch.too_large is not None:
            sender, size = fetch.too_large
            raise HopsumError(
                f"the state that rank {sender} has for rank {self._rank} is {size} bytes long, more than bytes_max: "
                "make it smaller, or call fetch_state(bytes_max=...)"
            )
        if self._worker.join_point.generation > fetch.start_generation:
            raise StateMovedError(
                f"rank {self._rank} waits for a state of generation {fetch.start_generation}, and others began since"
            )
        if left_s <= 0:
            raise HopsumError(
                f"rank {self._rank} has not got the state of another worker within {wait_s:.3g} s: {fetch}. The others "
                "offer it once their programs have gone on; check that they do, and ask again"
            )
