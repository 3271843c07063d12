# SPDX-License-Identifier: Apache-2.0
"""Rates, times, sizes and figures as people write them, for argparse, and as they read them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Final

_RATES: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZES: Final = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_COUNTS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_NUMBER: Final = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)")


def _reader(what: str, units: Mapping[str, float], example: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        found = _NUMBER.fullmatch(text.strip().lower())
        if found is None or found[2] not in units:
            known = ", ".join(unit or "none" for unit in units)
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; like {example}, unit one of {known}")
        return float(found[1]) * units[found[2]]

    return read


rate_bits_per_s: Final = _reader("rate", _RATES, "1gbit")
"""Read a rate in tc's words."""
time_s: Final = _reader("time", _TIMES, "120ms")
size_bytes: Final = _reader("size", _SIZES, "233MB")
count: Final = _reader("number", _COUNTS, "25000000 or 25M")


def said_rate(bits_per_s: float) -> str:
    """Return a rate with three digits."""
    return _said(bits_per_s, (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)))


def said_time(seconds: float) -> str:
    """Return a time with three digits."""
    return _said(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))) if seconds else "0 s"


def _said(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, size = next((each for each in units if value >= each[1] * 0.9995), units[-1])
    scaled = value / size
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:,.0f} {unit}"


def figure(value: float | None, digits: int = 3) -> str:
    """Write a number in few digits: 0.0123, 12.3, 1,230, 1.2e-9, or a hyphen for None."""
    if value is None or not isfinite(value):
        return "-" if value is None else str(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")
