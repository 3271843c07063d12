# SPDX-License-Identifier: Apache-2.0
"""Numbers, rates, times, sizes and lists as people write them, for argparse, and figures as they read them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from typing import Final, TypeVar

_RATES: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZES: Final = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_COUNTS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_Item = TypeVar("_Item")
_NUMBER: Final = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)")
MOST: Final = (1 << 32) - 1
"""The most of a whole number: the controller's messages have 32 bits for each."""


def _reader(what: str, units: Mapping[str, float], example: str, *, zero: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        found = _NUMBER.fullmatch(text.strip().lower())
        if found is None or found[2] not in units:
            known = ", ".join(unit or "none" for unit in units)
            raise argparse.ArgumentTypeError(f"{text!r:.80} is no {what}; like {example}, unit one of {known}")
        value = float(found[1]) * units[found[2]]
        if not isfinite(value) or (value == 0 and not zero):
            raise argparse.ArgumentTypeError(f"{text!r:.80} is no {what}: {'too large' if value else 'more than 0'}")
        return value

    return read


rate_bits_per_s: Final = _reader("rate", _RATES, "1gbit")
"""Read a rate in tc's words, as 1gbit: return bits a second, more than 0. Raises ArgumentTypeError, as all readers."""
time_s: Final = _reader("time", _TIMES, "120ms", zero=True)
"""Read a time with its unit, as 120ms: return seconds, 0 or more."""
size_bytes: Final = _reader("size", _SIZES, "233MB")
"""Read a size with its unit, as 233MB or 222MiB: return bytes, more than 0."""
count: Final = _reader("number", _COUNTS, "25000000 or 25M")
"""Read a number, as 25000000 or 25M: return a float, more than 0."""


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return a reader for argparse of whole numbers of `least` to `most`, both included."""

    def read(text: str) -> int:
        # Python takes digits of other scripts too, and raises for some thousand digits.
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else least - 1
        if not least <= number <= most:
            upto = "or more" if most == MOST and len(text) < len(str(MOST)) else f"to {most}"
            raise argparse.ArgumentTypeError(f"{text!r:.80}: a whole number of {least} {upto}")
        return number

    # argparse names a reader in messages: people know it by what it reads.
    read.__name__ = "int"
    return read


def real(least: float, most: float = inf, *, above: bool = False) -> Callable[[str], float]:
    """Return a reader for argparse of finite numbers of `least` to `most`, both included.

    Args:
        above: numbers must be above `least`.
    """

    def read(text: str) -> float:
        found = _NUMBER.fullmatch(text.strip().lower())
        number = float(found[1]) if found and not found[2] else inf
        if not isfinite(number) or not least <= number <= most or (above and number == least):
            upto = f", up to {most:g}" if above else f" to {most:g}"
            upto = upto if most < inf else "" if above else " or more"
            raise argparse.ArgumentTypeError(f"{text!r:.80}: a number {'above' if above else 'of'} {least:g}{upto}")
        return number

    read.__name__ = "float"
    return read


seconds: Final = real(0, 86_400, above=True)
"""Read a number of seconds to wait, up to a day."""
share: Final = real(0, 1, above=True)
"""Read a share of a whole that is not nothing."""


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a reader for argparse that takes one of some names, and returns it."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r:.80}: one of {', '.join(names)}")
        return text

    return read


def list_of(read: Callable[[str], _Item]) -> Callable[[str], tuple[_Item, ...]]:
    """Return a reader for argparse of comma-separated items, in their order. Items that are there twice count once.

    A comma before OPTION= stays in its item, as in the codecs "thc,thc:bits=2,error_feedback=true".
    """
    return lambda text: tuple(dict.fromkeys(read(item.strip()) for item in _COMMA.split(text)))


_COMMA: Final = re.compile(r",(?!\s*[A-Za-z_]\w*=)")


def format_rate(bits_per_s: float) -> str:
    """Return a rate in words, of three digits: "1.25 Gbit/s"."""
    return _said(bits_per_s, (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)))


def format_time(seconds: float) -> str:
    """Return a time in words, of three digits, in s, ms or us: "12.5 ms"."""
    return _said(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))) if seconds else "0 s"


def _said(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, size = next((each for each in units if value >= each[1] * 0.9995), units[-1])
    scaled = value / size
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:,.0f} {unit}"


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number as text of few digits: 0.0123, 12.3, 1,230, 1.2e-9; a hyphen for None; "inf" and "nan"."""
    if value is None or not isfinite(value):
        return "-" if value is None else str(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")
