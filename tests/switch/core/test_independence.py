# SPDX-License-Identifier: Apache-2.0
"""The engine's core knows nothing of the programs it runs and needs the standard library and msgspec only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import msgspec

import hopsum_switch

PACKAGE = Path(hopsum_switch.__file__).parent
CORE = [PACKAGE / "engine.py", PACKAGE / "errors.py"]
CORE += [path for folder in ("program", "interp", "state") for path in sorted((PACKAGE / folder).glob("*.py"))]

# Words of in-network aggregation; the package's own name is the one exception.
VOCABULARY = re.compile(
    r"hopsum(?!_switch)|gradient|worker|\bslot_|contribut|quorum|generation|aggregat", re.IGNORECASE
)


def test_there_is_a_core_to_look_at() -> None:
    assert len(CORE) > 20


def test_the_core_has_no_word_of_aggregation() -> None:
    for path in CORE:
        found = VOCABULARY.findall(path.read_text())
        assert not found, f"{path.name}: {found}"


def test_the_package_has_no_identifier_named_after_the_protocol() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(node, attribute, None) for attribute in ("id", "attr", "name", "arg")]
            for name in names:
                assert not (isinstance(name, str) and re.search(r"hopsum(?!_switch)", name)), f"{path.name}: {name}"


def test_importing_the_core_loads_nothing_foreign() -> None:
    script = (
        "import sys; before = set(sys.modules); import hopsum_switch.engine, hopsum_switch.program;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {*sys.stdlib_module_names, 'typing_extensions'};"
        "print(sorted(new)); print('socket' in sys.modules, 'threading' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{Path(msgspec.__file__).parents[1]}"}
    output = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=60
    ).stdout
    assert output.split("\n")[0] == "['hopsum_switch', 'msgspec']"
    assert output.split("\n")[1].split()[0] == "False"
