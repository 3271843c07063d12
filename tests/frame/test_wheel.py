# SPDX-License-Identifier: Apache-2.0
"""The wheel carries all packages and the compiled program, and the locator finds it there."""

from __future__ import annotations

import json
import os
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
        "hopsum/rpc/control.proto",
        "hopsum/rpc/control_pb2.py",
        "hopsum_switch/__init__.py",
        "hopsum_controlplane/_p4/hopsum.json",
        "hopsum_controlplane/_p4/hopsum.p4info.txtpb",
        "hopsum_controlplane/web/page.html",
        "hopsum_topologies/__init__.py",
    ):
        assert expected in names
    assert any(name.endswith("licenses/NOTICE") for name in names)
    assert not any(name.startswith(("p4/", "tests/", "ptf_tests/")) for name in names)


def test_locator_finds_the_program_in_an_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from hopsum_controlplane.artifacts import compiled_program; print(compiled_program()[0]);"
        "from hopsum_controlplane.web.page import Page; sys.stdout.write(Page.load().body.decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    where, _, page = done.stdout.partition("\n")
    found = Path(where)
    assert found.is_relative_to(tmp_path)
    assert found.read_bytes() == (ROOT / "p4" / "build" / "hopsum.json").read_bytes()
    assert page == (ROOT / "controlplane" / "hopsum_controlplane" / "web" / "page.html").read_text()


def test_wheel_in_an_empty_environment_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    """Everything that the demo needs comes with the wheel and its extra; nothing of the source tree is near."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[demo]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    command = [str(venv / "bin" / "hopsum"), "demo", "--workers", "2", "--steps", "20", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["counters_agree"]
