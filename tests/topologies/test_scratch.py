# SPDX-License-Identifier: Apache-2.0
"""What dead owners left is removed at the next start: folders, and processes that still are in their namespaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopsum_topologies import remove_stale_namespaces
from hopsum_topologies.scratch import remove_stale_folders, scratch_folder


def dead_pid() -> int:
    return int(subprocess.run((sys.executable, "-c", "import os; print(os.getpid())"), capture_output=True).stdout)


def test_a_folder_goes_with_its_block_and_stale_ones_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stale, foreign = tmp_path / f"hopsum-topology-{dead_pid()}-x1", tmp_path / "hopsum-topology-notes"
    for folder in (stale, foreign):
        folder.mkdir()
    (stale / "log").write_text("")
    with scratch_folder() as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not stale.exists()
        assert remove_stale_folders() == [], "its owner lives"
    assert list(tmp_path.iterdir()) == [foreign]


@pytest.mark.usefixtures("namespaces")
def test_what_runs_in_a_stale_namespace_is_ended() -> None:
    name = f"hopsum-{dead_pid()}-7"
    subprocess.run(("ip", "netns", "add", name), check=True)
    left = subprocess.Popen(("ip", "netns", "exec", name, "sleep", "600"))
    try:
        while str(left.pid) not in subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True).stdout:
            assert left.poll() is None
        assert name in remove_stale_namespaces()
        assert left.wait(20) == -9
        assert not Path(f"/var/run/netns/{name}").exists()
    finally:
        left.kill()
        left.wait()
