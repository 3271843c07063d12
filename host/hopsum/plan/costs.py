# SPDX-License-Identifier: Apache-2.0
"""Seconds of one core that a worker and an aggregator need, each figure with where it was measured.

encode_CODEC, decode_CODEC   of a vector's element; of lossless at a density of 0, and encode_lossless_member,
                             decode_lossless_member for each element that is not zero on some worker
                             thc_paired is thc with bits=2, whose codes and sums are packed and split besides
decode_packed                of an element besides: its sum out of a packed result
chunk                        of a worker's network: one UPDATE sent and its RESULT taken
vector                       of a worker, for a vector of any length: phases, and hand-overs between its threads
place                        of an element of the mean, put where the vector was
update                       of the embedded switch: one UPDATE with its share of RESULTs
ring_fp32, ring_fp16         of a byte that a worker of a ring all-reduce sends, with the one that it receives
two_shot_4, two_shot_8       of an element that a worker of a two-shot all-reduce quantises, adds up and reads

The shipped figures are shipped_costs.json, as `hopsum plan --calibrate` wrote it on the machine that each figure names.
Two of them are conclusions: ring_fp32 and ring_fp16 take gloo's unshaped all-reduces, and that both cores were busy all
the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any, Final, NamedTuple

from hopsum.plan.setting import PlanError

CODECS: Final = ("thc", "thc_paired", "uhc", "fixed", "lossless")
_PARTS: Final = (
    "decode_packed", "chunk", "vector", "place", "update", "ring_fp32", "ring_fp16", "two_shot_4", "two_shot_8",
)  # fmt: skip
NAMES: Final = (
    *(f"{way}_{codec}" for codec in CODECS for way in ("encode", "decode")),
    "encode_lossless_member", "decode_lossless_member", *_PARTS,
)  # fmt: skip


class Cost(NamedTuple):
    """One figure."""

    seconds: float
    origin: str
    """Machine and command that it comes from, for people."""


class Costs:
    """All of NAMES. Immutable.

    Raises:
        PlanError: a name is missing or unknown, or seconds are negative or not finite.
    """

    def __init__(self, figures: Mapping[str, Cost]) -> None:
        wrong = sorted(set(figures) ^ set(NAMES))
        if wrong:
            raise PlanError(f"costs: {', '.join(wrong)} missing or unknown; there are {', '.join(NAMES)}")
        for name, cost in figures.items():
            if not isfinite(cost.seconds) or cost.seconds < 0:
                raise PlanError(f"cost {name}: {cost.seconds:g} s is no time")
        self._figures = dict(figures)

    def __getitem__(self, name: str) -> Cost:
        return self._figures[name]

    def replace(self, figures: Mapping[str, Cost]) -> Costs:
        """Return these costs with some of them replaced. Raises PlanError."""
        return Costs({**self._figures, **figures})

    def codec_s(self, codec: str, elements: int, union_density: float) -> tuple[float, float]:
        """Return the seconds to encode and to decode a vector of so many elements, on one core.

        Args:
            codec: one of CODECS.
            elements: of the vector.
            union_density: share of elements that are not zero on some worker. Only lossless depends on it.

        Raises:
            PlanError: no cost of this codec is known.
        """
        if codec not in CODECS:
            raise PlanError(f"codec {codec!r}: costs are known of {', '.join(CODECS)}")
        each = [self[f"{way}_{codec}"].seconds for way in ("encode", "decode")]
        if codec == "lossless":
            members = [self[f"{way}_lossless_member"].seconds for way in ("encode", "decode")]
            each = [base + union_density * member for base, member in zip(each, members, strict=True)]
        return elements * each[0], elements * each[1]

    def origins(self) -> dict[str, list[str]]:
        """Return names by origin, in order."""
        found: dict[str, list[str]] = {}
        for name in NAMES:
            found.setdefault(self[name].origin, []).append(name)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return what `costs_from_json` reads."""
        return {name: {"seconds": self[name].seconds, "origin": self[name].origin} for name in NAMES}


def costs_from_json(text: str, where: str) -> Costs:
    """Return the shipped costs with those replaced that a JSON object has: name to {"seconds", "origin"}.

    Raises:
        PlanError: no such object. The message begins with `where`.
    """
    figures = _figures_from_json(text, where)
    try:
        return shipped_costs().replace(figures)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error


def _figures_from_json(text: str, where: str) -> dict[str, Cost]:
    try:
        read = json.loads(text)
        return {str(name): Cost(float(each["seconds"]), str(each["origin"])) for name, each in read.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PlanError(
            f'{where}: no costs: a JSON object of name: {{"seconds": NUMBER, "origin": TEXT}} is needed '
            f"({type(error).__name__}: {error}); --calibrate FILE writes one"
        ) from error


@cache
def shipped_costs() -> Costs:
    """Return the figures of shipped_costs.json, which docs/planning.md lists."""
    file = files("hopsum.plan") / "shipped_costs.json"
    return Costs(_figures_from_json(file.read_text(), str(file)))
