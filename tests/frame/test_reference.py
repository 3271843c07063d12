# SPDX-License-Identifier: Apache-2.0
"""The reference pages have every exception and reason, and the glossary is in order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hopsum_controlplane.prometheus_metrics import CONDITION_REASONS

DOCS = Path(__file__).resolve().parents[2] / "docs"

if str(DOCS) not in sys.path:
    sys.path.insert(0, str(DOCS))

import reference_parts  # noqa: E402


def test_every_exception_has_a_remedy() -> None:
    remedies, internal = reference_parts.remedies()
    assert reference_parts.exceptions().keys() == set(remedies) | set(internal), "docs/reference/error_remedies.toml"
    assert set(remedies).isdisjoint(internal)


def test_every_reason_of_a_condition_is_in_the_reference() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [a-z]", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
    assert set(CONDITION_REASONS) <= set(rows)
