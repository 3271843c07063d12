# SPDX-License-Identifier: Apache-2.0
"""The configuration of a search: bounds, budgets of faults, rules taken away, checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from .rules import RULES

CHECKS: Final[dict[str, str]] = {
    "sum": "a RESULT is one contribution of each of its contributors, all of one chunk, and of nobody else",
    "quorum": "a RESULT has at least min_quorum contributors with FLUSH, quorum contributors without",
    "agreement": "no two members of a generation accept different results of one chunk",
    "settle": "a worker whose bit is set has exactly the contribution of that bit inside, else nothing of its own",
    "live": "from every state, with all packets in flight lost, fair retransmission brings everybody every result",
    "members": "without FLUSH, the contributors of a RESULT of a job of MIN:MAX workers are all of its generation",
    "late": "no packet of another round or generation changes a copy, or is taken for a current result",
    "repair": "a result that one live worker holds and another lacks is on the switch or kept by a live worker",
    "nostale": "with quorum n, no worker is told STALE for a round that it waits for",
    "hint": "every contributor named in a STALE holds all results of that slot before the round that it names as held",
    "range": "the sums that a worker holds were encoded with the earlier results that it holds",
}


LEAVES: Final = 2
"""Of a tree."""


@dataclass(frozen=True)
class Config:
    """One search. Bitmaps are over ranks."""

    n: int = 3
    """Workers."""
    slots: int = 1
    reduces: tuple[int, ...] = (4,)
    """Chunks of each successive all-reduce."""
    tree: bool = False
    """A spine over two leaves, with half of the workers below each; else one switch."""
    quorum: int = 0
    """Of the switch, or of the spine, which counts leaves; 0: all."""
    leaf_quorum: int = 0
    """Of each leaf; 0: all workers below it."""
    flush: int = 0
    """Bitmap of the workers that have a deadline: any UPDATE of theirs may carry FLUSH."""
    min_quorum: int = 1
    min_workers: int = 0
    """Workers with which a generation may begin; 0: all."""
    silent: int = 0
    """Bitmap of the workers that never send an UPDATE."""
    crashes: int = 0
    """Budget: a worker loses its memory and comes back with the same rank."""
    restarts: int = 0
    """Budget: the switch loses all registers and entries."""
    returns: int = 0
    """Budget: a worker without which a generation began comes back. 0, with min_workers: nobody who is lost does."""
    give_ups: int = 0
    """Budget: the controller gives up on a worker that is alive but silent."""
    spare_generations: int = 0
    """Budget: generation changes without a cause (a restarted controller)."""
    lowerings: int = 0
    """Budget: the controller lowers the quorum by one in flight."""
    clears: str = "seen"
    """Without only_packets_write: what the controller clears, once, of one copy: seen, values or round."""
    requantizes: bool = False
    """The root looks a sum up again before it sends it as a RESULT."""
    leftovers: bool = False
    """Registers and network hold the remains of an earlier job in the same region."""
    garbage: bool = False
    """Unused registers hold values, under tags that are zero."""
    peers: bool = True
    """Peers serve results."""
    sequential: bool = False
    """An all-reduce starts only when the worker holds all of the previous one."""
    ranges: bool = False
    """Chunk 0 of an all-reduce is the range that its others are encoded with; if sequential, on all before too."""
    round_values: int = 4
    """Without no_wrap: rounds are modulo this."""
    retain_by: str = "norm"
    """Without retain, a result is dropped "norm": at the next all-reduce's first result, or "own": at its own's end."""
    off: frozenset[str] = frozenset()
    checks: frozenset[str] = frozenset(CHECKS)

    def __post_init__(self) -> None:
        if self.tree and self.n % LEAVES:
            raise ValueError(f"{self.n} workers are not the same number below each of {LEAVES} leaves")
        if self.min_workers and (self.tree or self.quorum or self.lowerings):
            raise ValueError("a generation of fewer workers is of one switch, and all its workers complete a round")
        unknown = (self.off - RULES.keys()) | (self.checks - CHECKS.keys())
        if unknown:
            raise ValueError(f"unknown {sorted(unknown)}; rules are {sorted(RULES)}, checks {sorted(CHECKS)}")

    def on(self, rule: str) -> bool:
        """Say whether a rule holds."""
        return rule not in self.off

    @cached_property
    def chunks(self) -> int:
        """Chunks of all all-reduces."""
        return sum(self.reduces)

    @cached_property
    def full_quorum(self) -> bool:
        """Say whether a round needs the contributions of all workers."""
        spine, leaf = (self.quorum_of(node) == len(self.children(node)) for node in (0, self.nodes - 1))
        return spine and leaf and not self.flush and not self.lowerings

    @property
    def fewest(self) -> int:
        """Return how many workers are in a result at least."""
        fewest = 1
        for node in (0, self.nodes - 1) if self.tree else (0,):
            quorum = self.min_workers or self.quorum_of(node) - self.lowerings
            fewest *= min(self.min_quorum, quorum) if self.flush else quorum
        return fewest

    @property
    def everybody(self) -> int:
        """Return the bitmap of all workers."""
        return (1 << self.n) - 1

    @property
    def nodes(self) -> int:
        """Switches: number 0 is the root, the others are leaves."""
        return 1 + LEAVES if self.tree else 1

    def children(self, node: int) -> tuple[int, ...]:
        """Return the numbers of a switch's children: ranks, or at the spine its leaves, named by their first rank."""
        per_leaf = self.n // LEAVES
        if not self.tree:
            return tuple(range(self.n))
        return tuple(range(0, self.n, per_leaf) if node == 0 else range(self.n)[(node - 1) * per_leaf :][:per_leaf])

    def quorum_of(self, node: int) -> int:
        """Return how many children complete a round at a switch."""
        return (self.leaf_quorum if node else self.quorum) or len(self.children(node))

    def node_of(self, rank: int) -> int:
        """Return the switch of a worker."""
        return 1 + rank // (self.n // LEAVES) if self.tree else 0

    @cached_property
    def origin(self) -> tuple[tuple[int, int], ...]:
        """Per chunk: its all-reduce, and its index in it."""
        return tuple((number, index) for number, size in enumerate(self.reduces) for index in range(size))

    def needs(self, chunk: int) -> tuple[int, ...]:
        """Return the chunks whose results a worker must hold to encode this one."""
        number, index = self.origin[chunk]
        before = [c for c in range(chunk) if self.sequential and self.origin[c][0] < number]
        return tuple(before + ([chunk - index] if index and self.ranges else []))


MODES: Final[dict[str, str]] = {
    "A": "quorum n",
    "B": "quorum n - 1",
    "C": "every worker may FLUSH, min_quorum 1",
    "D": "a worker crashes and rejoins",
    "E": "a switch restarts",
    "M": "generations of any number of workers from one on, and one that was lost may come back",
    "T": "a spine over two leaves (B: the spine's quorum is 1)",
}


def make(modes: str = "A", n: int = 3, chunks: int = 4, **changes: Any) -> Config:
    """Return a Config of the modes named (letters combine) over one all-reduce, with `changes` to its fields."""
    fields: dict[str, Any] = {"n": n, "reduces": (chunks,)}
    for letter in modes:
        fields |= {
            "A": {},
            "B": {"quorum": 1 if "T" in modes else n - 1},
            "C": {"flush": (1 << n) - 1},
            "D": {"crashes": 1},
            "E": {"restarts": 1},
            "M": {"min_workers": 1, "crashes": 1, "returns": 1},
            "T": {"tree": True},
        }[letter]
    fields |= changes
    fields["off"] = frozenset(fields.get("off", ()))
    fields["checks"] = frozenset(fields.get("checks", CHECKS))
    return Config(**fields)
