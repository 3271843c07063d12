# SPDX-License-Identifier: Apache-2.0
"""All-reduces that are spread over the shards of a job: chunk c is chunk c // k of shard c mod k.

all-reduce   input                                     next    also
IN PROGRESS  a shard has all its chunks                same    they are at their places in the vector
IN PROGRESS  the last shard has its chunks             DONE    AllReduceDone
IN PROGRESS  a shard fails by WorkersReplacedError     same    the all-reduce is void on all ranks
IN PROGRESS  the last shard ends after such a failure  DONE    AllReduceFailed
IN PROGRESS  a shard fails by another error            DONE    AllReduceFailed at once: the generation has ended
IN PROGRESS  its coder fails                           DONE    AllReduceFailed: this rank lacks payloads or a mean
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from hopsum.codec.interface import Reduction
from hopsum.errors import WorkersReplacedError
from hopsum.protocol.worker_state import AllReduce, AllReduceDone, AllReduceEvent, AllReduceFailed, Places

# A look at the network costs some ten microseconds: half a million gradients take so long that it does not count.
PART_CHUNKS: Final = 512
"""The least chunks that Python encodes or reads between two looks at the network."""
PARTS_MAX: Final = 8
"""The most parts of a vector: each part costs a look at the network."""


@dataclass(slots=True, eq=False)
class ShardedAllReduce:
    """An all-reduce in progress. Its results are put into one array, whichever shard they come from."""

    handle: int
    places: Places
    """Of all chunks. Each shard has the views of its own."""
    coder: Reduction | None
    """Makes the payloads that were missing at the beginning, and reads sums before the last one arrives. None: all
    payloads were there, and no sum is read early."""
    reduces: dict[int, AllReduce]
    """By number of a shard with chunks, its part. Without parts that ended as they were submitted."""
    left: int
    """The number of shards that have not ended their part."""
    taken: int = 0
    """The number of first chunks whose sums were read."""
    error: BaseException | None = None
    row: int = 0
    """The place in the memory of the compiled loop, during a call."""
    ranges: tuple[ShardedAllReduce, ...] = ()
    """The preceding phases whose sums the codes of this one need, if machine code may begin the codes."""
    lanes_before: int = 0
    """Lanes before the ranges in these sums. They return as sent if all ranks have the same."""

    @property
    def chunks(self) -> int:
        """Return the number of chunks of the vector."""
        return len(self.places.held)

    @property
    def missing(self) -> int:
        """Return the number of chunks without a result."""
        missing = 0
        for reduce in self.reduces.values():
            missing += reduce.missing
        return missing

    @property
    def readable(self) -> int:
        """Return the number of first chunks whose results have arrived without a gap."""
        lacking = ~self.places.held[self.taken :]
        return self.taken + int(lacking.argmax()) if lacking.any() else self.chunks

    def read(self, end: int) -> None:
        """Pass the sums of chunks `taken` .. end - 1 to the coder, and set `taken` to `end`.

        Their results must have arrived. Raises the coder's errors.
        """
        assert self.coder is not None
        rows = slice(self.taken, end)
        self.coder.on_part(self.taken, self.places.results[rows], self.places.contributors[rows])
        self.taken = end

    def forget_discarded(self) -> None:
        """Let the coder forget all sums, and set `taken` to 0, if a change of generation has discarded results."""
        is_discarded = False
        for reduce in self.reduces.values():
            is_discarded, reduce.discarded = is_discarded or reduce.discarded, False
        if not is_discarded:
            return
        if self.taken and self.coder is not None and self.coder.phase is not None:
            self.coder.on_part(0, self.places.results[:0], self.places.contributors[:0])
        self.taken = 0


class ShardedAllReduces:
    """The all-reduces in progress, and which of their parts have not ended."""

    def __init__(self) -> None:
        self.by_handle: Final[dict[int, ShardedAllReduce]] = {}
        """In the order of the stream."""
        self.at_shards: Final[dict[tuple[int, int], ShardedAllReduce]] = {}
        """By number of a shard that has not ended its part, and handle there."""

    def add(self, sharded: ShardedAllReduce, handles: Sequence[int]) -> None:
        """Add an all-reduce. `handles` are those of its parts, at the first shards."""
        self.by_handle[sharded.handle] = sharded
        for part in enumerate(handles):
            self.at_shards[part] = sharded

    def end_part(self, number: int, event: AllReduceEvent) -> AllReduceEvent | None:
        """Record the end of an all-reduce at one shard. Return its event if it has ended as a whole."""
        sharded = self.at_shards.pop((number, event.handle), None)
        if sharded is None:  # another shard or the coder has failed
            return None
        sharded.left -= 1
        if isinstance(event, AllReduceFailed):
            sharded.error = event.error
        if sharded.left and (sharded.error is None or isinstance(sharded.error, WorkersReplacedError)):
            return None
        self.end(sharded)
        if sharded.error is not None:
            return AllReduceFailed(sharded.handle, sharded.error)
        results, contributors = sharded.places[:2]
        results.flags.writeable = contributors.flags.writeable = False
        return AllReduceDone(sharded.handle, results, contributors)

    def end(self, sharded: ShardedAllReduce) -> None:
        """Forget an all-reduce. Later events of its parts are ignored."""
        if sharded.left:  # else `end_part` has removed all of its parts
            for part in [part for part, each in self.at_shards.items() if each is sharded]:
                del self.at_shards[part]
        del self.by_handle[sharded.handle]


class CodecWork(NamedTuple):
    """The next piece of codec work for one vector: make the next payloads, or read the next sums."""

    sharded: ShardedAllReduce
    what: Literal["encode", "read"]
    end: int = 0
    """"read": the end of the chunks to read."""


def next_work(all_sharded: Iterable[ShardedAllReduce], window: int, *, by_machine: bool) -> CodecWork | None:
    """Return the codec work that Python does next, None if there is none. Does no work.

    Encoding comes first if the payloads made so far may soon all be sent. Then reading, then other encoding.

    Args:
        all_sharded: in the order of the stream.
        window: the number of chunks that may be in flight.
        by_machine: whether to leave out vectors that the compiled loop encodes and reads.
    """
    unfilled, readable = None, None
    for sharded in all_sharded:
        coder = sharded.coder
        if coder is None or coder.phase is None or (by_machine and coder.stream is not None):
            continue
        # With a quorum, sums may come before this rank's codes begin.
        if not coder.is_begun:
            continue
        part = part_chunks(sharded.chunks)
        if unfilled is None and coder.encoded < sharded.chunks:
            unfilled = CodecWork(sharded, "encode")
            # The network may soon have sent all payloads that are made. An idle link costs most.
            if coder.encoded + sharded.missing - sharded.chunks <= window + 2 * part:
                return unfilled
        # A part is due as soon as the results of so many chunks may be here without a gap.
        if readable is None and sharded.chunks - sharded.missing >= sharded.taken + part:
            # The mean may overwrite the vector, so a chunk is encoded before its sum is read.
            held = min(sharded.readable, coder.encoded)
            end = held - (held - sharded.taken) % part
            if end > sharded.taken:
                readable = CodecWork(sharded, "read", end)
    return readable or unfilled


def part_chunks(chunks: int) -> int:
    """Return the number of chunks that Python encodes or reads between two looks at the network.

    Args:
        chunks: of the vector.
    """
    return max(PART_CHUNKS, chunks // PARTS_MAX)
