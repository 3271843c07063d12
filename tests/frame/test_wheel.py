# SPDX-License-Identifier: Apache-2.0
"""The wheel carries all packages and the compiled program, and the locator finds it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.system, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
FROM_INDEX = int(os.environ.get("TEST_SCALE", "1")) > 1


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
        "hopsum/examples/ddp_digits.py",
        "hopsum/examples/ptf/sums.py",
        "hopsum/py.typed",
        "hopsum_wire/py.typed",
        "hopsum_wire/hopsum.lua",
        "hopsum_wire/control/control.proto",
        "hopsum_wire/control/control_pb2.py",
        "hopsum_cli/main.py",
        "hopsum_evaluation/compare/gradients.npz",
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
        "from hopsum_controlplane.web.http_server import load_page; sys.stdout.write(load_page().decode())"
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


def pip_install(venv: Path, *arguments: str) -> None:
    """Install into an environment that has no pip, with this one's. Python compiles what it imports, which is less."""
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "-qq", "--no-compile", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def add_required(requirement: Requirement, found: dict[str, Distribution]) -> None:
    """Add to `found` what is installed here for a requirement and for all that it requires, extras included."""
    name = canonicalize_name(requirement.name)
    if name not in found:
        found[name] = distribution(name)
    for extra in ("", *sorted(requirement.extras)):
        for line in found[name].requires or ():
            each = Requirement(line)
            if each.marker is not None and not each.marker.evaluate({"extra": extra}):
                continue
            if canonicalize_name(each.name) not in found or each.extras:
                add_required(each, found)


def link_required(venv: Path, extra: str) -> None:
    """Link what the hopsum in `venv` requires from this environment, of which nothing else is found there."""
    (packages,) = venv.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("hopsum-*.dist-info")
    found: dict[str, Distribution] = {"hopsum": PathDistribution(metadata)}
    add_required(Requirement(f"hopsum[{extra}]"), found)
    for each in [each for name, each in found.items() if name != "hopsum"]:
        for top in {path.parts[0] for path in each.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(each.locate_file(top))


def test_wheel_in_an_empty_environment_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    """Everything that the demo needs comes with the wheel and its extra; nothing of the source tree is near.

    At SCALE=2, a release's, pip installs torch and all else from the package index. Otherwise the packages that are
    installed here are linked.
    """
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    if FROM_INDEX:
        pip_install(venv, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[demo]")
    else:
        pip_install(venv, "--no-deps", str(wheel))
        link_required(venv, "demo")
    command = [str(venv / "bin" / "hopsum"), "demo", "--workers", "2", "--steps", "20", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["counters_agree"]


def test_switch_and_controller_install_together_with_current_dependencies(wheel: Path, tmp_path: Path) -> None:
    """Without constraints the package index gives its newest protobuf, grpcio and P4Runtime bindings."""
    if not FROM_INDEX:
        pytest.skip("make test SCALE=2 installs protobuf, grpcio and all else from the package index")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip_install(venv, f"{wheel}[switch,controller]")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(venv / "bin" / "hopsum"), "selftest", "--workers", "2", "--elements", "5000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["counters_agree"]
