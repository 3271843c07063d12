# SPDX-License-Identifier: Apache-2.0
"""numba's cache of kernels: damaged, full, or in a place of nobody else. No start fails for it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="numba is not installed")
SCRIPT = """
import logging, resource, sys
import numpy as np
from hopsum.codec.backends.jit import filled, kernel
from hopsum_base.record_kernels import types

logging.basicConfig(format="%(message)s")
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
if "nowhere" in sys.argv:
    from numba.core import caching
    given = caching.CompileResultCacheImpl
    # As for a user who may write neither the installation nor a home: only a folder that is said counts.
    names = [each for each in given._locator_classes if "UserProvided" in each.__name__]
    assert names
    given._locator_classes = names

@kernel(filled(types.int64, 1))
def one(out):
    out[0] = 42

@kernel(filled(types.int64, 1))
def two(out):
    out[0] += 1

out = np.zeros(1, np.int64)
one(out)
two(out)
hits = sum(sum(each._compiled.stats.cache_hits.values()) for each in (one, two))
print(out[0], hits)
"""


def run(folder: Path, *words: str, cache: str | None = None) -> tuple[str, list[str]]:
    """Run the script with a cache. Return what it prints, and the lines of its log."""
    script = folder / "kernels.py"
    script.write_text(SCRIPT)
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    variables |= {"TMPDIR": str(folder)} | ({} if cache is None else {"NUMBA_CACHE_DIR": cache})
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, check=False, timeout=300, env=variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("left", [0, 20])
def test_a_file_that_is_cut_off_costs_a_compilation(tmp_path: Path, suffix: str, left: int) -> None:
    cache = tmp_path / "cache"
    assert run(tmp_path, cache=str(cache)) == ("43 0", [])
    assert run(tmp_path, cache=str(cache)) == ("43 2", [])
    files = list(cache.rglob(f"*{suffix}"))
    assert len(files) == 2
    for path in files:
        os.truncate(path, left)
    printed, log = run(tmp_path, cache=str(cache))
    assert printed == "43 0"
    assert len(log) == 1, "one warning for a folder"
    assert f"numba's cache in {files[0].parent} is no use" in log[0]
    assert log[0].endswith("this process compiles without it; make room there, or delete it")


def test_a_full_disk_costs_a_compilation(tmp_path: Path) -> None:
    printed, log = run(tmp_path, "full", cache=str(tmp_path / "cache"))
    assert printed == "43 0"
    assert len(log) == 1
    assert "File too large" in log[0]


def test_without_a_place_of_its_own_a_user_has_one_among_temporary_files(tmp_path: Path) -> None:
    assert run(tmp_path, "nowhere") == ("43 0", [])
    (folder,) = tmp_path.glob("hopsum-kernels-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert run(tmp_path, "nowhere") == ("43 2", [])
    # A folder that others may write to is no use: they could put machine code there.
    folder.chmod(0o777)
    assert run(tmp_path, "nowhere") == ("43 0", [])
