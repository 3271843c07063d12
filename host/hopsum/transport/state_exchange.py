# SPDX-License-Identifier: Apache-2.0
"""The transfer of the program's state between workers: offered to newcomers, fetched by one, over the side channel."""

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
TELL_EVERY_S: Final = 10.0
"""The seconds between two log lines of a long transfer."""
TELL_PEERS_EVERY_S: Final = 1.0
"""The least seconds between two reports of further bytes to the peers, whose all-reduces wait."""


class StateMovedError(HopsumError):
    """Further workers were replaced while a newcomer waited for a state. The newcomer must fetch the later state."""


class StateExchange:
    """The state that one worker offers, and the one that it fetches. Any thread.

    Args:
        worker: has the generation and its newcomers.
        repair: the worker's, which has its peers.
        channel: to the peers.
        changed: the shard's condition. The caller of `on_message` holds its lock. The other methods take the lock.
    """

    def __init__(self, worker: Worker, repair: PeerRepair, channel: SideChannel, changed: threading.Condition) -> None:
        self._worker, self._repair, self._channel, self._changed = worker, repair, channel, changed
        self._rank = worker.membership.rank
        self._offers = StateOffers(self._rank)
        self._fetch: StateFetch | None = None
        self._over: str | None = None
        """The reason why `fetch` is refused, or None."""
        self._arriving: dict[int, tuple[int, int]] = {}
        """By newcomer, the generation and the received bytes of its state, by its last message."""
        self._told_at = 0.0

    def offer(self, state: bytes, start_generation: int, newcomers: Mapping[int, int]) -> None:
        """Offer a state to the newcomers of a generation until all have taken one. The state is hashed, not copied.

        Args:
            newcomers: by rank, the generation in which the rank began, for all ranks that may have no state yet.
        """
        # Hashed outside the lock: a state of gigabytes takes seconds, and the step loop needs the lock.
        digest = hashlib.sha256(state).digest()
        with self._changed:
            self._offers.offer(state, digest, start_generation, newcomers)

    def fetch(self, start_generation: int, wait_s: float, bytes_max: int) -> bytes:
        """Fetch the state that another worker offers to the newcomers of a generation. Blocks. Logs long waits.

        Waits for up to `wait_s` for the first bytes, and between bytes. The peers get reports of the progress, so that
        their deadlines do not pass, and in the end STATE_TAKEN.

        Raises:
            HopsumError: nothing came for so long, or the state is longer than `bytes_max`; `end_fetch` was called, or
                the side channel has ended.
            StateMovedError: there are newcomers of a later generation.
        """
        began = time.monotonic()
        with self._changed:
            self._fetch = fetch = StateFetch(self._rank, start_generation, self._able(start_generation), bytes_max)
            waiting, transfer = WaitMonitor(_log, f"rank {self._rank}"), TransferMonitor(f"rank {self._rank}", began)
            try:
                while fetch.state is None:
                    now, since = time.monotonic(), began if fetch.moved_at is None else fetch.moved_at
                    until = since + wait_s
                    self._require_fetching(fetch, wait_s, until - now)
                    if fetch.moved_at is None:
                        waiting.check(lambda: f"the state of rank {fetch.source} or another one: {fetch}", until - now)
                    elif transfer.check(fetch, wait_s, now):
                        self._send(PeerKind.STATE_NONE, start_generation, fetch.held)
                    ask = fetch.ask(self._worker.membership.generation, now)
                    # A rank that is gone has no address, and is asked in turn all the same: it may come back.
                    if ask is not None:
                        self._channel.send_all([(fetch.source, ask)])
                    # Releases the lock while it waits, so that `on_message` can bring the pieces.
                    self._changed.wait(min(fetch.due, until) - now)
            finally:
                self._fetch = None
            if not transfer.over(len(fetch.state)):
                waiting.end("has the state")
            # Everybody hears that the state is here, so that the holders free theirs.
            self._send(PeerKind.STATE_TAKEN, start_generation)
            return fetch.state

    def on_message(self, message: PeerMessage) -> None:
        """Process one message about states. The lock is held.

        A request is answered. A piece goes to the `fetch` in progress. A newcomer's report of progress postpones the
        worker's deadlines.
        """
        if message.kind in (PeerKind.STATE_PIECE, PeerKind.STATE_NONE):
            if self._fetch is not None:
                self._fetch.on_message(message, time.monotonic())
            else:
                self._note_arriving(message, time.monotonic())
            return
        answers = self._offers.answer(message, self._worker.membership.generation)
        self._channel.send_all([(message.sender, answer) for answer in answers])

    def end_fetch(self, why: str) -> None:
        """End the `fetch` in progress, and refuse all later ones: they raise HopsumError "rank N `why`"."""
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()

    def _send(self, kind: PeerKind, start_generation: int, held: int = 0) -> None:
        """Tell all peers, about each shard, of the state that this newcomer is getting: `held` bytes are here."""
        told = PeerMessage(kind, self._rank, self._worker.membership.generation, round=start_generation, value=held)
        # All-reduces wait at every shard, and each of these has an exchange of its own.
        shards = range(self._channel.shards) if kind is PeerKind.STATE_NONE else (0,)
        self._channel.send_all([(peer, told._replace(shard=shard)) for peer in self._repair.peers for shard in shards])

    def _note_arriving(self, message: PeerMessage, now: float) -> None:
        """Take a newcomer's word that more of its state is there: all-reduces that wait for it get new time."""
        before, said = self._arriving.get(message.sender, (0, 0)), (message.round, message.value)
        # The same bytes again are no progress, however often they are said.
        if message.round != self._worker.join_point.generation or said <= before:
            return
        self._arriving[message.sender] = said
        self._worker.postpone_deadlines(now)
        if message.shard == 0 and not self._worker.is_idle and now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            _log.warning(
                "rank %d waits for rank %d, which has %.1f MB of the others' state so far",
                self._rank, message.sender, message.value / 1e6,
            )  # fmt: skip

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
            again = "ask again, or wait longer: wait_s of StateDictRecovery and fetch_state"
            if fetch.moved_at is None:
                raise HopsumError(
                    f"rank {self._rank} has not got the state of another worker within {wait_s:.3g} s: {fetch}. The "
                    f"others offer it once their programs have gone on: check that they do, and {again}"
                )
            raise HopsumError(
                f"rank {self._rank} has got no more of the state of another worker for {wait_s:.3g} s: {fetch}. Check "
                f"that the others run, and the network in between, and {again}"
            )


class TransferMonitor:
    """Logs the progress of a transfer every TELL_EVERY_S. Not thread-safe.

    Args:
        who: begins each line.
        now: the start of the transfer, in monotonic seconds.
    """

    def __init__(self, who: str, now: float) -> None:
        self._who, self._began = who, now
        self._line_at, self._line_bytes = now, 0
        self._peers_at, self._peers_bytes = now, 0
        self._said = False

    def check(self, fetch: StateFetch, wait_s: float, now: float) -> bool:
        """Log a line if one is due. Return whether a report of further bytes to the peers is due, which then counts."""
        if (passed_s := now - self._line_at) >= TELL_EVERY_S:
            rate = max(fetch.held - self._line_bytes, 0) / passed_s
            left = f"about {(fetch.total - fetch.held) / rate:.0f} s more" if rate else "and stalls"
            self._line_at, self._line_bytes, self._said = now, fetch.held, True
            _log.warning(
                "%s gets the state of rank %d: %s, %.3g MB/s, %s; it ends where nothing comes for %.3g s (wait_s)",
                self._who, fetch.source, str(fetch), rate / 1e6, left, wait_s,
            )  # fmt: skip
        if now - self._peers_at < TELL_PEERS_EVERY_S or fetch.held <= self._peers_bytes:
            return False
        self._peers_at, self._peers_bytes = now, fetch.held
        return True

    def over(self, size: int) -> bool:
        """Log the end of the transfer if its progress was logged before. Return whether a line was written."""
        if self._said:
            _log.warning("%s has the state, %d bytes, after %.1f s", self._who, size, time.monotonic() - self._began)
        return self._said
