# SPDX-License-Identifier: Apache-2.0
"""ptf_tests/README.md: every case, what it shows, and how it last ended on every target."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hopsum_topologies.ptf.results import Result

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "ptf_tests" / "cases"
README = ROOT / "ptf_tests" / "README.md"


def meanings(folder: Path = CASES) -> Iterator[tuple[str, str]]:
    """Yield name and first line of the docstring of every class in the case modules, in the order of the files."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield f"{path.stem}.{node.name}", (ast.get_docstring(node) or "").splitlines()[0]


def render_readme(date: str, versions: Mapping[str, str], columns: Mapping[str, Iterable[Result]]) -> str:
    """Return the page for a run of all cases. `versions` has the version of each target."""
    outcomes = {target: {result.case: result.outcome for result in results} for target, results in columns.items()}
    said = dict(meanings())
    cases = next(iter(outcomes.values()))
    head = ["case", "what it shows", *outcomes]
    rows = [[case, said[case], *(outcomes[target][case] for target in outcomes)] for case in cases]
    table = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    ran = [f"- {target}: {version}" for target, version in versions.items()]
    return _TEXT.format(count=len(rows), date=date, ran="\n".join(ran), table="\n".join(table))


_TEXT = """\
# Data-plane cases

    cases/      what: one module for each matter, one class for each case
    targets/    where: bring a switch up and run the cases on it (native: no root; bmv2: root, simple_switch_grpc;
                tna: no root, no switch: the Tofino program, executed from what the compiler's front end made of it;
                tofino_model, tofino2_model: no root: Intel's models of both chips, if their test harness is on PATH)
    common/     hopsum_ptf: the testbed, the sentences that cases are written in, recordings, the table below;
                hopsum_oracle: the switch in Python; hopsum_tna: see tna; hopsum_model: see tofino_model

[docs/ptf.md](../docs/ptf.md) says how to test a program of your own in the same way.

`make ptf` runs every case on every target and prints the table; `make ptf ARGS="flush probing.EmptySlot"` some of them.
Every frame goes to the switch and to the oracle (`hopsum_oracle.frame_aggregator`): the switch must send bit for bit
what the oracle sends, on the same ports, and nothing else, and count the same. The sentences of a case say besides
what it expects of both.

`ptf_tests/run --readme` runs everything and writes this page, if nothing failed. bmv2 skips what it has no room for:
[p4/README.md](../p4/README.md) says why; tna what its program does not have: `targets/tna/skips.py` says what.
tofino_model needs what bfas wrote besides, in the folder that `HOPSUM_TOFINO_ASSEMBLED` names, tofino2_model in that
of `HOPSUM_TOFINO2_ASSEMBLED`. A column is here when the model was: [docs/tofino.md](../docs/tofino.md#intels-model)
says how far it came.
{count} cases, last on {date}:

{ran}

{table}
"""
