# SPDX-License-Identifier: Apache-2.0
"""A two-rate three-colour meter, colour-blind, as bmv2 has it.

Two buckets start full and fill with time, peak faster than committed. A packet takes one unit, or its bytes as
received, from each bucket that has enough:

| peak bucket | committed bucket | colour | taken from |
|---|---|---|---|
| too little | any | red (2) | neither |
| enough | too little | yellow (1) | peak |
| enough | enough | green (0) | both |

A meter without a configuration is always green. The amount that has entered a bucket by `now_us` is rate * now_us /
10**6, rounded down, so rounding does not accumulate.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InvalidArgumentError

GREEN, YELLOW, RED = 0, 1, 2
_MICROSECONDS = 10**6


class MeterConfig(NamedTuple):
    """Rates in packets or bytes per second, bucket sizes in packets or bytes.

    `cir` and `cburst` are of the committed bucket, `pir` and `pburst` of the peak bucket.
    """

    cir: int
    cburst: int
    pir: int
    pburst: int


def check_meter_config(config: MeterConfig) -> MeterConfig:
    """Return `config` if it is valid. Raises: InvalidArgumentError (a negative value, or pir smaller than cir)."""
    if min(config) < 0 or config.pir < config.cir:
        raise InvalidArgumentError(f"a meter needs rates and bursts of 0 or more and pir >= cir, not {config}")
    return config


class _Bucket:
    __slots__ = ("burst", "flowed", "rate", "tokens")

    def __init__(self, rate: int, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.tokens, self.flowed = burst, 0

    def consume(self, now_us: int, amount: int) -> bool:
        # Tokens since the start of the switch, not since the last packet: so rounding does not add up over packets.
        flowed = now_us * self.rate // _MICROSECONDS
        self.tokens = min(self.tokens + flowed - self.flowed, self.burst)
        self.flowed = flowed
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True


class MeterCell:
    """A two-rate meter of one index or one table entry."""

    __slots__ = ("_committed", "_peak", "config")

    def __init__(self) -> None:
        self.configure(None)

    def configure(self, config: MeterConfig | None) -> None:
        """Configure the meter and fill its buckets. None: always green. Raises: InvalidArgumentError (no change)."""
        self.config = None if config is None else check_meter_config(config)
        self._peak = _Bucket(0, 0) if config is None else _Bucket(config.pir, config.pburst)
        self._committed = _Bucket(0, 0) if config is None else _Bucket(config.cir, config.cburst)

    def execute(self, now_us: int, amount: int) -> int:
        """Take a packet's tokens from the buckets, and return its colour: GREEN, YELLOW or RED.

        `amount`: 1 for a meter of packets, else the bytes. `now_us` counts from the start of the switch.
        """
        if self.config is None:
            return GREEN
        # A red packet takes tokens of neither bucket, a yellow one of the peak bucket only.
        if not self._peak.consume(now_us, amount):
            return RED
        return GREEN if self._committed.consume(now_us, amount) else YELLOW
