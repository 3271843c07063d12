# SPDX-License-Identifier: Apache-2.0
"""The sizes of experiments and the source of their randomness: one seed, and streams by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from hopsum.codec.hashing import derive_key

_T = TypeVar("_T")

Result = dict[str, Any]
"""The result of one section: what JSON can hold, and all that `show` needs."""
Tell = Callable[[float, str], None]
"""Told how much of a section is done, 0 to 1, and what comes next."""


class NotRunError(Exception):
    """A section cannot run here. The message says why, and how it could."""


class Size(StrEnum):
    """Of all experiments: to see that they work, what fits six minutes on two cores, all of them."""

    SMALL = "small"
    DEFAULT = "default"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose."""

    seed: int
    size: Size

    def pick(self, small: _T, default: _T, full: _T) -> _T:
        """Return the one of the chosen size."""
        return {Size.SMALL: small, Size.DEFAULT: default, Size.FULL: full}[self.size]

    def stream(self, *names: str | int) -> int:
        """Return the seed, below 2^63, of the stream of a name: "data", "codec", "batch", "loss", with any numbers.

        Rotations and roundings are streams of "codec": `hopsum.codec.hashing` tells them apart.
        """
        parts = (_number(name) for name in names)
        return derive_key(self.seed, *parts) >> 1

    def rng(self, *names: str | int) -> np.random.Generator:
        """Return numpy's generator of that stream."""
        return np.random.default_rng(self.stream(*names))


def _number(name: str | int) -> int:
    if isinstance(name, int):
        return name
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
