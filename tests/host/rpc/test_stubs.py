# SPDX-License-Identifier: Apache-2.0
"""The checked-in stubs: of the source that is there, as its generator makes them, and on the newest protobuf."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsum_wire.control import control_pb2
from hopsum_wire.control.services import JOB_SERVICE, MEMBERSHIP_SERVICE, methods

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "generate_rpc.py"))


def _install(folder: Path, *packages: str) -> Path:
    """Put packages into a folder of their own: what they need is not what the environment has."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--target", str(folder), *packages], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {' '.join(packages)}: {done.stderr.strip()[-300:]}")
    return folder


def _run(code: list[str], *path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False, env=environment)


def test_stubs_are_of_the_source(generator: dict[str, Any]) -> None:
    for target in generator["TARGETS"]:
        assert target.read_text().startswith(generator["header"]()), f"{target.name}: run tools/generate_rpc.py"


def test_stubs_are_what_the_generator_makes(generator: dict[str, Any], tmp_path: Path) -> None:
    tools = _install(tmp_path, f"grpcio-tools=={generator['GRPCIO_TOOLS']}")
    done = _run([str(ROOT / "tools" / "generate_rpc.py"), "--check"], tools)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_the_generator_one_line_says_what_to_install() -> None:
    done = _run(["-S", str(ROOT / "tools" / "generate_rpc.py"), "--check"])
    assert done.returncode == 2
    assert re.fullmatch(r"the stubs are made by grpcio-tools .*pip install --target .*\n", done.stderr)


def test_services_have_the_methods_of_the_source(generator: dict[str, Any]) -> None:
    source = generator["SOURCE"].read_text()
    declared = re.findall(r"^  rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\)", source, re.MULTILINE)
    found = [
        (name, method.request.DESCRIPTOR.name, "stream " if method.streams else "", method.response.DESCRIPTOR.name)
        for service in (MEMBERSHIP_SERVICE, JOB_SERVICE)
        for name, method in methods(service).items()
    ]
    assert found == declared
    assert methods(JOB_SERVICE)["GetJob"].path == "/hopsum.control.v1.JobService/GetJob"


def test_states_are_numbered_for_good() -> None:
    """Numbers pass between versions."""
    assert control_pb2.JobState.items() == [
        ("JOB_STATE_UNSPECIFIED", 0),
        ("JOB_STATE_FORMING", 1),
        ("JOB_STATE_INSTALLING", 2),
        ("JOB_STATE_RUNNING", 3),
        ("JOB_STATE_CHANGING", 4),
        ("JOB_STATE_ENDING", 5),
    ]
