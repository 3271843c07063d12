# SPDX-License-Identifier: Apache-2.0
"""docs/operating.md as its reader goes through it: every command, on ports that are free here."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ...support.reader import PATIENCE_S, Reader, end

pytestmark = pytest.mark.system
pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text()
PORTS = {"9559": socket.SOCK_STREAM, "47500": socket.SOCK_DGRAM, "4700": socket.SOCK_STREAM, "4701": socket.SOCK_STREAM}
TRAINING_S = 900.0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        yield Reader(tmp_path, stack, PORTS)


def packets(text: str) -> dict[str, float]:
    """Return by job how many packets the metrics say that its switch added."""
    found = re.findall(r'^hopsum_controller_job_packets_total\{(.*event="added".*)\} (\S+)$', text, re.MULTILINE)
    return {re.findall(r'job_name="([^"]*)"', labels)[0]: float(value) for labels, value in found}


@pytest.mark.skipif(os.environ.get("TEST_SCALE", "1") == "1", reason="two trainings, for a release: SCALE=2")
def test_from_an_empty_machine_to_two_jobs_with_metrics(reader: Reader) -> None:
    switch, check, controller, create, *training, look, delete = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    config, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (reader.folder / "cluster.toml").write_text(reader.here(config))

    terminal = reader.open_terminal(switch)
    terminal.wait_for(lambda: "ready " in terminal.log_text(), "the switch", PATIENCE_S)
    assert "switch leaf1: native" in reader.type(check)
    serving = reader.open_terminal(controller)
    serving.wait_for(lambda: "ready " in serving.log_text(), "the controller", PATIENCE_S)
    created = reader.type(create)
    assert re.search(r"^digits +forming, idle +leaf1 +0-31 +0/2", created, re.MULTILINE)
    assert re.search(r"^vectors +forming, idle +leaf1 +32-63 +0/2", created, re.MULTILINE)

    runs = [reader.open_terminal(block) for block in training]
    (url,) = re.findall(r"^metrics (\S+)$", serving.log_text(), re.MULTILINE)
    seen: set[str] = set()
    give_up_s = time.monotonic() + TRAINING_S
    while seen != {"digits", "vectors"}:
        assert time.monotonic() < give_up_s, [run.log_text() for run in runs]
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            seen |= {job for job, added in packets(answer.read().decode()).items() if added}
        time.sleep(0.05)
    shown = reader.type(look)
    assert re.search(r"^job +digits", shown, re.MULTILINE)
    assert "hopsum_controller_job_slots{" in shown
    state = json.loads(shown.splitlines()[-1])
    assert [job["name"] for job in state["jobs"]] == ["digits", "vectors"]
    for run in runs:
        while run.running():
            assert time.monotonic() < give_up_s, run.log_text()
            time.sleep(0.05)
        assert run.stop() == 0, run.log_text()
        assert "parameters_sha256" in run.log_text()

    assert reader.type(delete) == "job 'digits' is gone\njob 'vectors' is gone\n"
    assert end(serving) == 0, serving.log_text()
    assert end(terminal) == 0, terminal.log_text()
    log = (reader.folder / "controller.log").read_text()
    for name in ("admin", "digits", "vectors"):
        token = (reader.folder / f"{name}.token").read_text().strip()
        assert len(token) > 40
        assert token not in log
