# SPDX-License-Identifier: Apache-2.0
"""The figures in docs/codecs.md are what is measured here; when one is not, the failure shows the new row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsum.codec import make_codec
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum_wire import Op

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[3] / "docs" / "codecs.md"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"lane_bits": 16}),
    ("uhc", {"bits": 2}),
    ("uhc", {"bits": 4}),
    ("uhc", {"bits": 6}),
    ("uhc", {"bits": 8}),
]


@pytest.mark.parametrize("workers", [1, 8, 17, 32, 64])
def test_expected_errors(workers: int) -> None:
    cells = []
    for name, options in KINDS:
        codec = make_codec(name, workers=workers, backend="numpy", **options)
        assert isinstance(codec, LookupTableCodec)
        lanes = {Op.LOOKUP_ADD8: "8", Op.ADD8: "8", Op.LOOKUP_ADD16: "16", Op.ADD16: "16"}[codec.op]
        cells.append(f"{expected_nmse(codec.table, workers):.1e} ({codec.table.bits}, {lanes})")
    require_row([str(workers), *cells])


def require_row(cells: list[str]) -> None:
    row = f"| {' | '.join(cells)} |"
    assert row in DOCS.read_text(encoding="utf-8").splitlines(), row
