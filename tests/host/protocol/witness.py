# SPDX-License-Identifier: Apache-2.0
"""A naive sum over the history of all packets: from the senders of each round follows every reply of a switch.

No register and no table: a round's sum is made anew from the payloads as first sent. For every packet that reaches
the switch, in that order:

    a generation that is not admitted        no reply
    older than the newest round that     STALE to the sender: the newest, and who is in it
      arrived for its slot and parity
    a round that has a RESULT            that RESULT again, to the sender
    else                                 the sender is in; RESULT to all once as many are in as are needed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.aggregator import JobConfig
from hopsum_wire import Flag, Header, Kind, Op
from hopsum_wire.payload import SHAPES

Lanes = NDArray[np.uint64]


class Key(NamedTuple):
    """One round of one slot."""

    generation: int
    slot: int
    round: int


class Reply(NamedTuple):
    """One packet that left the switch, and who got it."""

    rank: int
    header: Header
    payload: bytes


class Witness:
    """Sees every UPDATE sent, and every one that arrives with the replies to it."""

    def __init__(self, tables: Mapping[int, Sequence[int]]) -> None:
        self.tables = tables
        """By op: the values of codes, then thresholds where sums are looked up again."""
        self.first: dict[tuple[Key, int], bytes] = {}
        """Payload of a rank's UPDATE as first sent."""
        self.inside: dict[Key, list[int]] = {}
        """Ranks whose UPDATE arrived before the round was complete, in that order."""
        self.results: dict[Key, tuple[int, bytes]] = {}
        self.newest: dict[tuple[int, int, int], int] = {}
        """By generation, slot, parity."""

    def sent(self, header: Header, payload: bytes) -> None:
        """Note an UPDATE as it leaves a worker; its bytes never change afterwards (W2)."""
        key = Key(header.generation, header.slot, header.round)
        assert self.first.setdefault((key, header.worker), payload) == payload

    def arrived(self, job: JobConfig | None, update: Header, replies: list[Reply]) -> None:
        """Check all that one UPDATE caused. `job` is the one admitted in its slots, if its generation is that one's."""
        if job is None:
            assert not replies, f"{update}: generation not admitted, but {replies}"
            return
        key = Key(update.generation, update.slot, update.round)
        place = (update.generation, update.slot, update.round & 1)
        held = self.newest.get(place, 0)
        if update.round < held:
            self._check_stale(key, held, update, replies)
            return
        self.newest[place] = update.round
        if key in self.results:
            receivers = [update.worker]
        else:
            inside = self.inside.setdefault(key, [])
            if update.worker not in inside:
                inside.append(update.worker)
            need = job.min_quorum if update.flags & Flag.FLUSH else job.quorum
            receivers = [worker.rank for worker in job.workers] if len(inside) >= need else []
        assert [reply.rank for reply in replies] == receivers, f"{update}: {replies}"
        for reply in replies:
            self._check_result(key, update, reply)

    def _check_stale(self, key: Key, held: int, update: Header, replies: list[Reply]) -> None:
        assert len(replies) == 1, f"{update}: older than {held}, but {replies}"
        stale = replies[0]
        of_held = bitmap(self.inside[key._replace(round=held)])
        assert (stale.rank, stale.payload) == (update.worker, b"")
        assert says(stale.header) == (Kind.STALE, update.op, update.worker, *key, held, of_held, 0), stale.header

    def _check_result(self, key: Key, update: Header, reply: Reply) -> None:
        header, inside = reply.header, self.inside[key]
        assert says(header) == (Kind.RESULT, update.op, reply.rank, *key, 0, bitmap(inside), len(reply.payload))
        if key in self.results:
            assert self.results[key] == (header.contributors, reply.payload), f"two RESULTs of {key}"
            return
        self.results[key] = (header.contributors, reply.payload)
        if SHAPES[update.op].down_codes:
            got = self.codes(update.op, reply.payload).astype(np.uint64)
        else:
            got = np.frombuffer(reply.payload, SHAPES[update.op].lane_dtype).astype(np.uint64)
        missing = [rank for rank in inside if (key, rank) not in self.first]
        assert not missing, f"{key}: {missing} are in it and never sent"
        expected = self.result(update.op, [self.first[key, rank] for rank in inside])
        assert np.array_equal(got, expected), f"{key} of {Op(update.op).name} is not the sum of {inside}"

    def result(self, op: int, payloads: list[bytes]) -> Lanes:
        """Return what the RESULT of these UPDATEs carries: what `reduce` returns, or the codes of it."""
        reduced = self.reduce(op, payloads)
        if not SHAPES[op].down_codes:
            return reduced
        # A lane of 8 bits with a sign. Half of the number of sums below it is compared with the thresholds.
        below = [(int(lane) + 128) % 256 // 2 for lane in reduced]
        thresholds = self.tables[op][1 << SHAPES[op].code_bits :]
        return np.array([sum(each <= half for each in thresholds) for half in below], np.uint64)

    def reduce(self, op: int, payloads: list[bytes]) -> Lanes:
        """Return sum, maximum or union of what these UPDATEs carry, in wide integers."""
        stack = np.stack([self.lanes(op, payload) for payload in payloads])
        if op == Op.MAX32:
            return np.asarray(stack.max(axis=0))
        if op == Op.OR:
            return np.bitwise_or.reduce(stack, axis=0)
        return np.asarray(stack.sum(axis=0) % np.uint64(1 << lane_bits(op)))

    def lanes(self, op: int, payload: bytes) -> Lanes:
        """Return the values that an UPDATE's payload stands for."""
        if op not in self.tables:
            return np.frombuffer(payload, SHAPES[op].lane_dtype).astype(np.uint64)
        lane = 1 << lane_bits(op)
        return np.array([value % lane for value in self.tables[op]], np.uint64)[self.codes(op, payload)]

    def codes(self, op: int, payload: bytes) -> NDArray[np.intp]:
        """Return the codes of a payload."""
        bits = SHAPES[op].code_bits
        return codes_of(payload, lane_bits(op) // 8) if bits == 4 else narrow_codes(payload, bits)


def codes_of(payload: bytes, word_bytes: int) -> NDArray[np.intp]:
    """Return the 4-bit codes of a payload: groups of 512 in words; word j of W has codes j, j + W, ... from its top."""
    codes = np.zeros(2 * len(payload), np.intp)
    words = 256 // word_bytes
    for place, byte in enumerate(payload):
        group, within = divmod(place, 256)
        word, part = divmod(within, word_bytes)
        for nibble, code in enumerate((byte >> 4, byte & 15)):
            codes[512 * group + (2 * part + nibble) * words + word] = code
    return codes


def narrow_codes(payload: bytes, bits: int) -> NDArray[np.intp]:
    """Return the 1024 codes of 3 or 2 bits of a payload, bit by bit.

    2 bits: byte j has codes j, 256 + j, 512 + j and 768 + j from its top. 3 bits: byte j < 256 has codes j and 256 + j
    from its bottom, and above them two bits of code 768 + j. Byte 256 + j has codes 512 + j and 640 + j, and above them
    the highest bit of 768 + j and of 896 + j.
    """
    assert len(payload) == 128 * bits
    found = []
    for code in range(1024):
        quarter, j = divmod(code, 256)
        if bits == 2:
            found.append(payload[j] >> 6 - 2 * quarter & 3)
        elif quarter < 2:
            found.append(payload[j] >> 3 * quarter & 7)
        elif quarter == 2:
            found.append(payload[256 + j % 128] >> 3 * (j // 128) & 7)
        else:
            found.append(payload[j] >> 6 | (payload[256 + j % 128] >> 6 + j // 128 & 1) << 2)
    return np.array(found, np.intp)


def lane_bits(op: int) -> int:
    """Return the width of a lane."""
    return 8 * np.dtype(SHAPES[op].lane_dtype).itemsize


def bitmap(ranks: list[int]) -> int:
    """Return the contributors that these ranks make."""
    return sum(1 << rank for rank in set(ranks))


def says(header: Header) -> tuple[int, ...]:
    """Return all that a reply says, but for version and count."""
    return (
        header.kind, header.op, header.worker, header.generation, header.slot, header.round, header.held,
        header.contributors, header.length,
    )  # fmt: skip
