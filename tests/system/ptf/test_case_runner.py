# SPDX-License-Identifier: Apache-2.0
"""The command of the data-plane cases: its list, and arguments that it refuses. No switch starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsum_ptf.case_runner import case_summaries, main


def test_a_case_without_a_docstring_has_an_empty_summary(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('class A:\n    """One.\n\n    More.\n    """\n\n\nclass B:\n    pass\n')
    assert list(case_summaries(tmp_path)) == [("mine.A", "One."), ("mine.B", "")]


@pytest.mark.parametrize("option", ["--record", "--logs"])
def test_a_folder_for_output_needs_one_target(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, str(tmp_path)])
    assert "give --target" in capsys.readouterr().err
