# SPDX-License-Identifier: Apache-2.0
"""The parts of a state of the model. All values are immutable. A Pool numbers them, so that states are small.

State      the controller, the network (every packet ever sent, a bitmap), the workers, the switch's copies
truth      (generation, stream position) of a packet or copy: what it is, never read by a rule, only by checks
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, IntEnum
from typing import Generic, NamedTuple, TypeVar

from hopsum_oracle.decision import Copy

Truth = tuple[int, int]


class Contribution(NamedTuple):
    """One worker's part of one chunk, as encoded once."""

    worker: int
    chunk: int
    incarnation: int
    """The number of the worker's lives, this one included."""
    variant: int
    """The number of the inputs of the encoding, or 1 for a re-encoding. 0 where that makes no difference."""


Values = tuple[Contribution, ...]
"""A sum, as the sorted multiset of what was added."""


class Content(NamedTuple):
    """The content of a RESULT."""

    contributors: int
    values: Values
    lookups: int = 0
    """How often the sum was looked up again: each time it has other bytes."""


ZEROS = Content(0, ())
"""The value that a worker without stale_fetch takes for a result on STALE."""


class Kind(Enum):
    """Packets of the data plane."""

    UPDATE = "U"
    RESULT = "R"
    STALE = "S"
    PARTIAL = "P"


class Packet(NamedTuple):
    """One packet. A RESULT may reach any child: to all or to one makes no difference where anything may be lost."""

    kind: Kind
    worker: int
    """UPDATE, PARTIAL: the sender, a leaf by its number; STALE: the receiver; RESULT: -1."""
    generation: int
    slot: int
    version: int
    round: int
    flush: bool
    content: Content
    truth: Truth
    held: int = 0
    """STALE: the round that the copy holds."""
    node: int = 0
    """UPDATE, PARTIAL: the switch that it goes to; RESULT, STALE: the one that it comes from."""


class Cell(NamedTuple):
    """One copy of a slot: the registers as `decide` knows them, and the values."""

    copy: Copy = Copy()
    values: Values = ()
    truth: Truth | None = None
    lookups: int = 0
    """Of the values. A root holds sums, a leaf the codes that its parent sent."""


class Life(IntEnum):
    """The activity of a worker."""

    RUN = 0
    SEALED = 1
    DOWN = 2


class Worker(NamedTuple):
    """One rank."""

    incarnation: int
    generation: int
    life: Life
    held: tuple[Content | None, ...]
    """Per chunk, the result that it accepted."""
    kept: int
    """Bitmap of the chunks that it can still serve to peers."""
    reencoded: int = 0
    """Bitmap of the chunks that it encoded anew (without frozen_payload)."""


class Phase(Enum):
    """Step of the controller in a generation change."""

    RUN = "run"
    SEAL = "seal"
    JOIN = "join"


class Budget(NamedTuple):
    """Faults that may still happen; see Config."""

    crashes: int = 0
    restarts: int = 0
    give_ups: int = 0
    spare_generations: int = 0
    lowerings: int = 0
    clears: int = 0
    reencodes: int = 0
    returns: int = 0


OUT = "out"
"""In place of a report: the controller gave up on this worker."""
Report = tuple[Content | None, ...] | str | None


class Control(NamedTuple):
    """The controller, and what it told the switch."""

    generation: int
    """The newest generation handed out."""
    admitted: int
    """The generation that the switches let in; 0: none."""
    streams: tuple[tuple[int, ...], ...]
    """Per generation, the chunks summed in it, in order; generation 0 is the earlier job, its chunks negative."""
    phase: Phase
    reports: tuple[Report, ...]
    decided: tuple[Content | None, ...]
    quorum: int
    released: bool
    """True if the lease has ended (without lease_barrier)."""
    budget: Budget
    lost: int = 0
    """Bitmap of the switches that lost registers and entries, and let nothing in."""
    members: int = 0
    """Bitmap of the workers of `generation`."""


class State(NamedTuple):
    """Numbers in the pools of a World, and the network as a bitmap of packet numbers."""

    control: int
    network: int
    workers: tuple[int, ...]
    cells: tuple[int, ...]


class RuleError(Exception):
    """A check failed."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


T = TypeVar("T", bound=Hashable)
Item = TypeVar("Item")


def replaced(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    """Return the items with one of them changed."""
    return (*items[:at], item, *items[at + 1 :])


class Pool(Generic[T]):
    """Numbers values in order of appearance."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        """Return the value's number."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self._values)
            self._values.append(value)
        return known

    def __getitem__(self, number: int) -> T:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)
