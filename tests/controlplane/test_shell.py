# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell's prompt on a switch that is running."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopsum_controlplane import ControlPlaneError, JobSpec, SwitchController, SwitchEndpoint, artifacts
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.shell_prompt import open_shell
from hopsum_topologies import NativeSwitch

if TYPE_CHECKING:
    from tests.controlplane.conftest import Server

pytestmark = [pytest.mark.system, pytest.mark.shell]


def test_this_environment_has_the_oldest_grpcio_and_protobuf() -> None:
    """The other tests of it are those of the least versions that pyproject.toml admits."""
    pyproject = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    least = dict(line.split(">=") for line in pyproject["project"]["dependencies"])
    for name in ("grpcio", "protobuf"):
        assert version(name) == least[name]


SHELL = "from hopsum_controlplane.shell_prompt import open_shell; open_shell({address!r}, {options})"
LOOK = """
keys = [entry.match["generation"].exact.value for entry in table_entry["jobs"].read()]
print("generations", [int.from_bytes(key, "big") for key in keys])
exit
"""


def run_shell(address: str, tmp_path: Path, options: str, typed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHELL.format(address=address, options=options)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb"},
    )


def test_a_look_leaves_everything_as_it_is(
    pipeline: PipelineConfig, make_spec: Callable[..., JobSpec], switch_endpoint: SwitchEndpoint, tmp_path: Path
) -> None:
    with NativeSwitch(*artifacts.compiled_program()) as switch, NativeDevice(switch.address) as device:
        ensure_pipeline(device, pipeline)
        controller = SwitchController(device, switch_endpoint)
        job = controller.create_job(make_spec())
        done = run_shell(switch.address, tmp_path, "0", LOOK)
        assert done.returncode == 0, done.stderr
        assert f"generations [{job.generation}]" in done.stdout, done.stdout + done.stderr
        assert device.read_table("jobs")
        controller.delete_job(job)


def test_nobody_listens() -> None:
    with pytest.raises(ControlPlaneError, match="no P4Runtime server answered"):
        open_shell("127.0.0.1:1", connect_timeout_s=0.3)


def test_a_switch_without_a_program(server: Server) -> None:
    before = list(sys.argv)
    server.refuses_config = True
    with pytest.raises(ControlPlaneError, match=f"switch 0 at {server.address}: p4runtime-shell gave up"):
        open_shell(server.address)
    assert sys.argv == before
