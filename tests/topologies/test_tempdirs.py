# SPDX-License-Identifier: Apache-2.0
"""Leftovers of dead owners are removed at the next start: folders, and processes in their namespaces."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum_controlplane.artifacts import compiled_program
from hopsum_topologies import NativeSwitch, remove_stale_namespaces
from hopsum_topologies.tempdirs import make_temporary_directory, remove_stale_directories, temporary_directory

pytestmark = pytest.mark.system


def dead_pid() -> int:
    return int(subprocess.run((sys.executable, "-c", "import os; print(os.getpid())"), capture_output=True).stdout)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary files be in the test's own folder, here and in children; return it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


OWNER = """
import sys, time
from hopsum_topologies.tempdirs import temporary_directory
with temporary_directory("drill") as folder:
    (folder / "journal").write_text("step 1")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_owner_left_is_removed_at_the_next_start_of_anything(temporary: Path) -> None:
    owner = subprocess.Popen((sys.executable, "-c", OWNER), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        left = Path(owner.stdout.readline().strip())
        assert re.fullmatch(rf"hopsum-drill-{owner.pid}-\w+", left.name)
        with temporary_directory("demo"):
            assert (left / "journal").exists(), "its owner lives"
    finally:
        owner.kill()
        owner.communicate()
    folder = make_temporary_directory("native")
    assert not left.exists()
    assert [path.name for path in temporary.iterdir()] == [Path(folder.name).name]
    folder.cleanup()


def test_switches_say_whose_their_folders_are(temporary: Path) -> None:
    stale = temporary / f"hopsum-bmv2-{dead_pid()}-x1"
    stale.mkdir()
    with NativeSwitch(*compiled_program(), folder=None):
        assert not stale.exists()
        assert [path.name.rpartition("-")[0] for path in temporary.iterdir()] == [f"hopsum-native-{os.getpid()}"]
    assert not list(temporary.iterdir())


def test_only_folders_that_are_ours_are_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no link to a folder, nothing of another user's, nothing whose name has no process id."""
    pid = dead_pid()
    elsewhere = temporary / "elsewhere"
    for folder in (elsewhere, temporary / "hopsum-native-4mu3w519", temporary / f"hopsum-{pid}-0"):
        folder.mkdir()
    (temporary / f"hopsum-drill-{pid}-link").symlink_to(elsewhere)
    (temporary / f"hopsum-drill-{pid}-file").write_text("")
    before = sorted(temporary.iterdir())
    assert remove_stale_directories() == []
    (temporary / f"hopsum-drill-{pid}-other").mkdir()
    uid = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    assert remove_stale_directories() == []
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert remove_stale_directories() == [temporary / f"hopsum-drill-{pid}-other"]
    assert sorted(temporary.iterdir()) == before


@pytest.mark.usefixtures("namespaces")
def test_what_runs_in_a_stale_namespace_is_ended() -> None:
    name = f"hopsum-{dead_pid()}-7"
    subprocess.run(("ip", "netns", "add", name), check=True)
    left = subprocess.Popen(("ip", "netns", "exec", name, "sleep", "600"))
    try:
        while str(left.pid) not in subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True).stdout:
            assert left.poll() is None
        assert name in remove_stale_namespaces()
        assert left.wait(60) == -9
        assert not Path(f"/var/run/netns/{name}").exists()
    finally:
        left.kill()
        left.wait()
