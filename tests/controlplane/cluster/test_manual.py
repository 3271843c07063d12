# SPDX-License-Identifier: Apache-2.0
"""The tables of the controller's settings in docs/reference/configuration.md are as in the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import SwitchConfig
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, load_config
from hopsum_controlplane.errors import ClusterConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "reference" / "configuration.md").read_text()


def rows_after(words: str) -> dict[str, list[str]]:
    """Return the table below a sentence of the page, by the names in its first column."""
    (found,) = re.findall(rf"^{re.escape(words)}.*\n\n\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()]
    assert all(row[0].startswith("`") for row in cells)
    return {row[0].strip("`"): row[1:] for row in cells}


def known_keys(folder: Path, text: str) -> list[str]:
    """Return the keys that the reader of the file names when it refuses another one."""
    path = folder / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ClusterConfigError) as refused:
        load_config(path)
    return refused.value.hint.removeprefix("there are ").split(", ")


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("The keys of `[controller]`", ""),
        ("The keys of each `[[switch]]`", "[controller]\ndatabase = 'x'\n[[switch]]\n"),
        ("The keys of each `[[link]]`", "[controller]\ndatabase = 'x'\n[[link]]\n"),
    ],
)
def test_the_manual_has_every_key(tmp_path: Path, words: str, before: str) -> None:
    text = f"{before or '[controller]'}\nqqqqqqqq = 1\n"
    assert sorted(rows_after(words)) == sorted(known_keys(tmp_path, text))


@pytest.mark.parametrize(
    ("words", "config"),
    [("The keys of `[controller]`", ClusterConfig), ("The keys of each `[[switch]]`", SwitchConfig)],
)
def test_the_manual_has_the_defaults(words: str, config: Any) -> None:
    told = {key: row[1].strip("`") for key, row in rows_after(words).items()}
    made: dict[str, Field[Any]] = {each.name: each for each in fields(config)}
    optional = {name: each.default for name, each in made.items() if name in told and each.default is not MISSING}
    assert len(optional) >= 5
    expected = {name: _written(value) for name, value in optional.items()}
    assert {name: told[name] for name in optional} == expected


def _written(value: object) -> str:
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
