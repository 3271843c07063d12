# SPDX-License-Identifier: Apache-2.0
"""Digests: samples that the program sends to its controller, gathered into lists.

A digest is off until it is configured. Earlier samples are dropped. Times count from the start of the
switch, as packets have them. Between two calls of `expire` a list may wait longer than its time-out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from ..program.ir import ProgramIR

Sample = tuple[int, ...]
_NS = 1000  # in a microsecond


class DigestConfig(NamedTuple):
    """The settings by which a digest is gathered, as P4Runtime has them."""

    max_timeout_ns: int  # a sample waits so long for others; 0: not at all
    max_list_size: int  # samples in a list; 0: any number
    ack_timeout_ns: int  # equal samples are not sent again before the acknowledgement or so long; 0: always sent


class DigestList(NamedTuple):
    """One list of samples of a digest. The lists of each digest are numbered from 1, and no number is used again."""

    name: str
    number: int
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class _Gathering:
    config: DigestConfig
    samples: list[Sample] = field(default_factory=list)
    since_us: int = 0  # when the first of `samples` came
    sent: dict[int, tuple[int, tuple[Sample, ...]]] = field(default_factory=dict)  # not acknowledged, with the time
    known: set[Sample] = field(default_factory=set)  # in `samples` and `sent`


class DigestStore:
    """The digests of a program by name. Lists that are complete wait in `ready`, for the owner to take."""

    def __init__(self, program: ProgramIR) -> None:
        self._names = frozenset(digest.name for digest in program.digests.values())
        self._gathering: dict[str, _Gathering] = {}
        self._numbers = dict.fromkeys(self._names, 0)
        self.ready: deque[DigestList] = deque()

    def insert(self, name: str, config: DigestConfig) -> None:
        """Switch a digest on. Raises: NotFoundError, AlreadyExistsError, InvalidArgumentError."""
        self._check(name, config)
        if name in self._gathering:
            raise AlreadyExistsError(f"digest {name} is configured; modify it")
        self._gathering[name] = _Gathering(config)

    def modify(self, name: str, config: DigestConfig) -> None:
        """Configure a digest again. Its gathered samples stay. Raises: NotFoundError, InvalidArgumentError."""
        self._check(name, config)
        self._find(name).config = config

    def delete(self, name: str) -> None:
        """Switch a digest off and drop its gathered samples. Raises: NotFoundError."""
        self._find(name)
        del self._gathering[name]

    def get(self, name: str) -> DigestConfig:
        """Return the configuration of a digest. Raises: NotFoundError: the digest has none."""
        return self._find(name).config

    def configs(self) -> Mapping[str, DigestConfig]:
        """Return the configuration of each configured digest, by name, in a new mapping."""
        return {name: each.config for name, each in self._gathering.items()}

    def learn(self, name: str, sample: Sample, now_us: int) -> None:
        """Add a sample of the program to the digest's list, and move a complete list to `ready`.

        The sample is dropped where the digest is off, or where an equal one waits or is not acknowledged yet (only with
        `ack_timeout_ns`).
        """
        gathering = self._gathering.get(name)
        if gathering is None:
            return
        # Lists that were never acknowledged stop holding back equal samples after ack_timeout.
        self._forget_overdue(gathering, now_us)
        if gathering.config.ack_timeout_ns:
            if sample in gathering.known:
                return
            gathering.known.add(sample)
        if not gathering.samples:
            gathering.since_us = now_us
        gathering.samples.append(sample)
        size = gathering.config.max_list_size
        if not gathering.config.max_timeout_ns or (size and len(gathering.samples) >= size):
            self._finish(name, gathering, now_us)

    def expire(self, now_us: int) -> None:
        """Move the lists whose first sample has waited for the digest's timeout to `ready`. Their owner sends them."""
        for name, gathering in self._gathering.items():
            if gathering.samples and now_us >= _due_us(gathering):
                self._finish(name, gathering, now_us)

    def next_due_us(self) -> int | None:
        """Return the time since the switch started at which the next list is due, or None if no list waits."""
        return min((_due_us(each) for each in self._gathering.values() if each.samples), default=None)

    def acknowledge(self, name: str, number: int) -> None:
        """Record that the controller has a list: equal samples are sent again from now on.

        A list that is unknown or no longer outstanding is ignored.
        """
        gathering = self._gathering.get(name)
        if gathering is not None and number in gathering.sent:
            gathering.known.difference_update(gathering.sent.pop(number)[1])

    def _finish(self, name: str, gathering: _Gathering, now_us: int) -> None:
        self._numbers[name] += 1
        # A number is taken by each list, so an acknowledgement of an old list meets no new one.
        samples, gathering.samples = tuple(gathering.samples), []
        if gathering.config.ack_timeout_ns:
            gathering.sent[self._numbers[name]] = now_us, samples
        self.ready.append(DigestList(name, self._numbers[name], samples))

    def _forget_overdue(self, gathering: _Gathering, now_us: int) -> None:
        limit = gathering.config.ack_timeout_ns
        overdue = [number for number, (sent_us, _) in gathering.sent.items() if (now_us - sent_us) * _NS >= limit]
        for number in overdue:
            gathering.known.difference_update(gathering.sent.pop(number)[1])

    def _check(self, name: str, config: DigestConfig) -> None:
        if name not in self._names:
            raise NotFoundError(f"no digest {name}")
        if min(config) < 0:
            raise InvalidArgumentError(f"digest {name}: a negative time or size: {config}")

    def _find(self, name: str) -> _Gathering:
        if name not in self._names:
            raise NotFoundError(f"no digest {name}")
        if name not in self._gathering:
            raise NotFoundError(f"digest {name} is not configured")
        return self._gathering[name]


def _due_us(gathering: _Gathering) -> int:
    # Rounded up: no list is sent before its time.
    return gathering.since_us + -(-gathering.config.max_timeout_ns // _NS)
