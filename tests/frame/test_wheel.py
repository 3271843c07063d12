# SPDX-License-Identifier: Apache-2.0
"""The wheel carries all packages and the compiled program, and the locator finds it there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("hopsum-*.whl"))


def test_wheel_holds_packages_program_and_licences(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        "hopsum/__init__.py",
        "hopsum/py.typed",
        "hopsum_switch/__init__.py",
        "hopsum_controlplane/_p4/hopsum.json",
        "hopsum_controlplane/_p4/hopsum.p4info.txtpb",
        "hopsum_topologies/__init__.py",
    ):
        assert expected in names
    assert any(name.endswith("licenses/NOTICE") for name in names)
    assert not any(name.startswith(("p4/", "tests/", "ptf_tests/")) for name in names)


def test_locator_finds_the_program_in_an_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from hopsum_controlplane.artifacts import compiled_program; print(compiled_program()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert found.is_relative_to(tmp_path)
    assert found.read_bytes() == (ROOT / "p4" / "build" / "hopsum.json").read_bytes()
