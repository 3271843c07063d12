# SPDX-License-Identifier: Apache-2.0
"""Folders that killed processes left are removed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum_base.owned_folder import OwnedFolder, remove_orphaned_folders

KILLED = "import os; from hopsum_base.owned_folder import OwnedFolder as F; f = F('hosts'); os.kill(os.getpid(), 9)"


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary files be in the test's own folder. Return the folder there of a process that was killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (found,) = tmp_path.iterdir()
    return found


def test_the_folder_of_a_killed_owner_goes_with_the_next_start_and_that_of_a_living_one_stays(left: Path) -> None:
    with OwnedFolder("demo") as living:
        assert not left.exists()
        assert living.stat().st_mode & 0o777 == 0o700
        (living / "journal").write_text("step 1")
        # This process holds the lock: another one finds it held.
        find = "from hopsum_base.owned_folder import remove_orphaned_folders as remove; remove()"
        environment = {**os.environ, "TMPDIR": str(left.parent)}
        subprocess.run([sys.executable, "-c", find], env=environment, check=True)
        assert (living / "journal").exists()
    assert list(left.parent.iterdir()) == []


def test_only_folders_of_this_user_with_an_owner_are_removed(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [left.parent / name for name in ("hopsum-hosts-link", "hopsum-hosts-1-none", "hopsum-hosts-1-file")]
    others[0].symlink_to(left)
    others[1].mkdir()
    others[2].write_text("")
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        remove_orphaned_folders()
    assert left.exists(), "another user's"
    remove_orphaned_folders()
    assert sorted(left.parent.iterdir()) == sorted(others)
