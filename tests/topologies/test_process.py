# SPDX-License-Identifier: Apache-2.0
"""Child processes: awaited, explained when they fail, stopped by their own process id."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsum_topologies import TopologyError
from hopsum_topologies.process import ManagedProcess

pytestmark = pytest.mark.system


def _python(code: str, folder: Path) -> ManagedProcess:
    return ManagedProcess([sys.executable, "-u", "-c", code], folder / "log")


def test_waits_for_what_it_prints_and_stops_it(tmp_path: Path) -> None:
    process = _python("import time; print('here'); time.sleep(600)", tmp_path)
    try:
        process.wait_for(lambda: "here" in process.log_text(), "here", 20)
        assert process.running()
    finally:
        process.stop()
    assert not process.running()
    process.stop()


def test_early_end_shows_status_and_the_end_of_the_log(tmp_path: Path) -> None:
    process = _python("import sys; print('the reason'); sys.exit(3)", tmp_path)
    with pytest.raises(TopologyError, match=r"(?s)ended with 3 before a sign.*the reason"):
        process.wait_for(lambda: False, "a sign", 20)


def test_time_over_stops_it(tmp_path: Path) -> None:
    process = _python("import time; time.sleep(600)", tmp_path)
    with pytest.raises(TopologyError, match=r"no sign of life in 0\.1 s"):
        process.wait_for(lambda: False, "life", 0.1)
    assert not process.running()


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_topologies.process._TERMINATE_S", 0.1)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(600)"
    process = _python(code, tmp_path)
    process.wait_for(lambda: "deaf" in process.log_text(), "deaf", 20)
    process.stop()
    assert not process.running()


def test_missing_program_is_named(tmp_path: Path) -> None:
    process = ManagedProcess(["no-such-program"], tmp_path / "log")
    with pytest.raises(TopologyError, match="cannot run no-such-program"):
        process.wait_for(lambda: False, "anything", 20)


def test_missing_namespace_is_named(tmp_path: Path) -> None:
    process = ManagedProcess(["true"], tmp_path / "log", namespace="hopsum-no-such")
    with pytest.raises(TopologyError, match="network namespace hopsum-no-such cannot be opened"):
        process.wait_for(lambda: False, "anything", 20)
