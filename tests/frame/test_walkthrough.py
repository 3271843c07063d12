# SPDX-License-Identifier: Apache-2.0
"""docs/walkthrough.md is what its generator writes, and quotes the sources as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from hopsum_ptf.frames import hopsum_header

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
GENERATOR = TOOLS / "generate_walkthrough.py"
PAGE = ROOT / "docs" / "walkthrough.md"

if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))

import generate_walkthrough  # noqa: E402
from walkthrough_parts import QuoteError, decided, quote  # noqa: E402
from walkthrough_run import run  # noqa: E402


def test_the_page_is_fresh() -> None:
    run = subprocess.run((sys.executable, str(GENERATOR), "--check"), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_check_shows_a_stale_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "walkthrough.md"
    monkeypatch.setattr(generate_walkthrough, "TARGET", stale)
    assert generate_walkthrough.main([]) == 0
    stale.write_text(stale.read_text().replace("kind      = RESULT", "kind      = STALE"))
    assert generate_walkthrough.main(["--check"]) == 1
    assert "+           kind      = RESULT" in capsys.readouterr().out


def test_quotes_are_the_lines_that_they_name() -> None:
    page = PAGE.read_text()
    places = re.findall(r"^// (p4/\S+), lines? (\d+)(?: to (\d+))?.*$", page, re.MULTILINE)
    assert len(places) > 10
    for file, first, last in places:
        lines = (ROOT / file).read_text().splitlines()[int(first) - 1 : int(last or first)]
        assert dedent("\n".join(lines)) in page, (file, first, last)


def test_a_quote_says_what_it_misses() -> None:
    with pytest.raises(QuoteError, match=r"p4/v1model/slot\.p4: 0 lines have 'nothing like it'"):
        quote("slot.p4", "nothing like it")
    with pytest.raises(QuoteError, match=r"slot\.p4: [2-9]\d* lines have 'tag\.write'"):
        quote("slot.p4", "tag.write")
    with pytest.raises(QuoteError, match=r"slot\.p4: no line has 'nothing like it' after line \d+, which has"):
        quote("slot.p4", "action open()", "nothing like it")


def test_the_run_is_the_story() -> None:
    walk = run()
    assert [decided(trace) for trace in walk.traces] == ["open", "ignore", "add_close", "answer"]
    receivers = [[hopsum_header(frame).worker for _, frame in exchange.out] for exchange in walk.updates]
    assert receivers == [[], [], [0, 1], [0]]
    assert np.abs(walk.means - walk.gradients.mean(axis=0)).max() <= 0.25
