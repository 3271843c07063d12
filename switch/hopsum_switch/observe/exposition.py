# SPDX-License-Identifier: Apache-2.0
"""Prometheus's text format, version 0.0.4.

Written here, without the prometheus_client library: the numbers exist already as plain counts of the switch and are
read when somebody asks, so of that library only this page would be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value and what tells it from the others of its family."""

    labels: Mapping[str, str]
    value: float  # an int stays exact


class MetricFamily(NamedTuple):
    """All values of one name; counters end in `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[Sample]


def expose(families: Iterable[MetricFamily]) -> str:
    """Return the text that a scrape gets."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{_labels(sample.labels)} {sample.value!r}" for sample in family.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return f"{{{shown}}}" if shown else ""


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
