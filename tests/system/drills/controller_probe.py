# SPDX-License-Identifier: Apache-2.0
"""Calls to the controller from a drill's own process: single members, and an operator's questions."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.member_client import MemberClient

from .drill import PATIENCE_S, DrillError, await_that
from .drill_testbed import DrillTestbed
from .training_job import TrainingJob

SLOTS: Final = 16
_MAC: Final = "02:00:00:00:09:01"
"""No interface has this address, since a probe sends nothing."""


class Probe:
    """A job of one worker that sends nothing. Each join begins a generation."""

    def __init__(self, testbed: DrillTestbed, name: str, lease_s: float) -> None:
        self.name = name
        self.address = testbed.network.controller_address
        network = IPv4Network(testbed.network.ports[0][1])
        self._ip = str(network.network_address + (network.num_addresses > 1))
        with testbed.operator() as operator:
            self._token = operator.create(name, 1, SLOTS, lease_s=lease_s).token

    def generation(self, *, stay: bool = False) -> int:
        """Join, and return the generation that begins. Then leave, which ends it, or stay without a word."""
        with Channel(ControllerAddress.of(self.address, tls=False)) as channel:
            member = self.join(channel)
            found = member.membership(PATIENCE_S).generation
            if not stay:
                member.leave(PATIENCE_S)
        return found

    def join(self, channel: Channel) -> MemberClient:
        """Join as a new incarnation, which ends the generation of the one before."""
        member = MemberClient(channel, self.name, self._token)
        member.join((self._ip, 1024 + secrets.randbelow(1 << 15)), PATIENCE_S, rank=0, mac=_MAC)
        return member


def beats(testbed: DrillTestbed, training: TrainingJob) -> None:
    """Wait until all workers of a job have been heard twice more, each time with more behind them."""
    with testbed.operator() as operator:

        def heard() -> list[float]:
            return [member.statistics.get("allreduces", 0.0) for member in operator.job(training.job).members]

        for _ in range(2):
            before = heard()
            await_that(
                lambda: all(now > then for now, then in zip(heard(), before, strict=True)),  # noqa: B023
                "heartbeats of all ranks",
            )


def refusal(ask: Callable[[], object], words: str) -> str:
    """Return the text of the controller's refusal. Raises DrillError without one, or without these words in it."""
    try:
        ask()
    except ControllerError as error:
        if words in str(error):
            return str(error)
        raise DrillError(f"refused, but not for {words!r}: {error}") from error
    raise DrillError(f"not refused, which was to be for {words!r}")


def edit(path: Path, target: Path, *changes: tuple[str, str]) -> None:
    """Write a configuration with some texts replaced, each of which must be there."""
    text = path.read_text(encoding="utf-8")
    for before, after in changes:
        if before not in text:
            raise DrillError(f"{path} has no {before!r}")
        text = text.replace(before, after)
    target.write_text(text, encoding="utf-8")
