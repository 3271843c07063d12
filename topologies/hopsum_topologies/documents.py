# SPDX-License-Identifier: Apache-2.0
"""Descriptions as JSON, the form in which files and other programs have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from hopsum_topologies.catalogue import topology
from hopsum_topologies.description import DescriptionError, JobPlan, Link, Topology

T = TypeVar("T")
_TEXT, _TEXTS, _NUMBER = "a text", "a list of texts", "a number"
_REQUIRED: Final = object()


def as_document(topology: Topology) -> dict[str, Any]:
    """Return the JSON form. `from_document` turns it into the same description again."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(topology)))
    return document


def find_topology(name: str, workers: int | None) -> Topology:
    """Return a network of the catalogue, or the one that a file FILE.json describes.

    Raises DescriptionError: there is none, or `workers` is given for a file, which names its hosts.
    """
    if not name.endswith(".json"):
        return topology(name, workers)
    if workers is not None:
        hint = f"{name} says which hosts there are"
        raise DescriptionError(f"--workers {workers} is for networks of the catalogue: {hint}")
    return load_topology(Path(name))


def load_topology(path: Path) -> Topology:
    """Read a JSON file. Raises DescriptionError: it cannot be read, or describes no network."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DescriptionError(f"{path} cannot be read: {error}") from error
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from error


def from_document(document: Any) -> Topology:
    """Return the description of a JSON form. Raises DescriptionError naming the first key that is wrong."""
    reader = _Reader(document, "the topology", {"name", "hosts", "switches", "links"}, {"summary", "jobs"})
    return Topology(
        reader.get("name", _TEXT),
        reader.get("summary", _TEXT, ""),
        tuple(reader.get("hosts", _TEXTS)),
        tuple(reader.get("switches", _TEXTS)),
        tuple(reader.each("links", _link)),
        tuple(reader.each("jobs", _job)),
    )


def _link(document: Any, where: str) -> Link:
    reader = _Reader(document, where, {"ends"}, {"rate_bps", "delay_s", "loss"})
    ends = reader.get("ends", _TEXTS)
    if len(ends) != 2:
        raise DescriptionError(f"{where}: ends {ends}; a link has two")
    rate_bps = reader.get("rate_bps", _NUMBER, None)
    return Link((ends[0], ends[1]), rate_bps, reader.get("delay_s", _NUMBER, 0.0), reader.get("loss", _NUMBER, 0.0))


def _job(document: Any, where: str) -> JobPlan:
    reader = _Reader(document, where, {"name", "workers"}, set())
    return JobPlan(reader.get("name", _TEXT), tuple(reader.get("workers", _TEXTS)))


_FITS: Mapping[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str),
    _TEXTS: lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    _NUMBER: lambda value: type(value) in (int, float),
}


class _Reader:
    """A JSON object with known keys."""

    def __init__(self, document: Any, where: str, required: set[str], optional: set[str]) -> None:
        if not isinstance(document, dict):
            raise DescriptionError(f"{where} is {document!r:.80}, no JSON object")
        self._document, self._where = document, where
        if unknown := sorted(document.keys() - required - optional):
            known = ", ".join(sorted(required | optional))
            raise DescriptionError(f"{where} has an unknown key {unknown[0]!r}; there are {known}")
        if missing := sorted(required - document.keys()):
            raise DescriptionError(f"{where} has no key {missing[0]!r}; it needs {', '.join(sorted(required))}")

    def get(self, key: str, kind: str, default: Any = _REQUIRED) -> Any:
        value = self._document.get(key, default)
        if value is default:  # left out, or null where that is what leaving it out means
            return default
        if not _FITS[kind](value):
            raise DescriptionError(f"{self._where}: {key} is {value!r:.80}, not {kind}")
        return value

    def each(self, key: str, make: Callable[[Any, str], T]) -> list[T]:
        entries = self._document.get(key, [])
        if not isinstance(entries, list):
            raise DescriptionError(f"{self._where}: {key} is {entries!r:.80}, not a list")
        return [make(entry, f"{key}[{number}]") for number, entry in enumerate(entries)]
