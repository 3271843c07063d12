# SPDX-License-Identifier: Apache-2.0
"""Remedies of the exceptions that a user meets, and tables of them: name, meaning (its docstring) and remedy."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from reference_commands import cell
from reference_docstrings import FOLDERS, ROOT, docstring, find, parse

_TABLES = tomllib.loads((ROOT / "tools" / "error_remedies.toml").read_text(encoding="utf-8"))
REMEDIES: dict[str, str] = _TABLES["remedies"]
"""The remedy of each exception that a user meets, by its full name."""
INTERNAL: dict[str, str] = _TABLES["internal"]
"""The end of each exception that hopsum catches itself."""
DESCRIBED_FOLDERS = ("wire", "host", "switch", "controlplane", "topologies", "cli")
"""Folders whose public exceptions all have a remedy or are internal."""


def exceptions() -> set[str]:
    """Return the full names of the public exception classes below DESCRIBED_FOLDERS."""
    assert set(DESCRIBED_FOLDERS) <= set(FOLDERS)
    found = set()
    for folder in DESCRIBED_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(parse(path)[0]):
                if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_"):
                    found.add(f"{module}.{node.name}")
    return found


def errors(package: str) -> Iterator[str]:
    """Yield the table of a package's exceptions. `package` is the first part of their names."""
    yield from ("", "| error | meaning | remedy |", "|---|---|---|")
    for name, remedy in REMEDIES.items():
        if name.split(".")[0] == package:
            meaning = docstring(find(name).node)
            yield f"| `{name.rpartition('.')[2]}`<br>{name.rpartition('.')[0]} | {cell(meaning)} | {cell(remedy)} |"
    yield ""
