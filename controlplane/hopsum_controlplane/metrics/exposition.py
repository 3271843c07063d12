# SPDX-License-Identifier: Apache-2.0
"""Prometheus's text format, version 0.0.4.

The switch has one of its own: it and the control plane know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Family:
    """All values of one name; counters end in `_total`. `labels` tell one value from the others."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    samples: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, value: float, *labels: str) -> None:
        """Add a value; an int stays exact. Raises ValueError for more or fewer labels than the family has."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {labels}")
        self.samples[labels] = value


def expose(families: Iterable[Family]) -> str:
    """Return the text that a scrape gets: families without values are left out."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{family.name}{_labels(family, values)} {value!r}" for values, value in family.samples.items()]
    return "\n".join(lines) + "\n"


def _labels(family: Family, values: tuple[str, ...]) -> str:
    shown = ",".join(f'{name}="{_escape_label(value)}"' for name, value in zip(family.labels, values, strict=True))
    return f"{{{shown}}}" if shown else ""


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
