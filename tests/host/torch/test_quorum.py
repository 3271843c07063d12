# SPDX-License-Identifier: Apache-2.0
"""Process groups whose ranks change, as torchft's Manager changes them; and torchft itself where it is installed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum.config import ConfigError
from hopsum.torch import QuorumProcessGroup
from hopsum_topologies.free_port import free_port

from ...support.printed import parse_printed

pytestmark = pytest.mark.system
HERE, WAIT_S = Path(__file__).parent, 600.0


@contextmanager
def replicas(script: str, *arguments: str, numbers: range) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a script for each replica: `SCRIPT REPLICA ARGUMENTS`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    with ExitStack() as kept:
        running = []
        for number in numbers:
            process = subprocess.Popen(
                [sys.executable, str(HERE / script), str(number), *arguments],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            kept.callback(end, process)
            running.append(process)
        yield running


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a replica printed, once it has ended."""
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    found: dict[str, Any] = parse_printed(out)
    return found


def test_quorums_that_shrink_and_grow() -> None:
    with replicas("quorum_worker.py", str(free_port(socket.SOCK_STREAM)), numbers=range(4)) as running:
        found = {number: told(running[number]) for number in (1, 3, 0)}
        assert running[2].wait(WAIT_S) == -9
    for number in (0, 1):
        assert found[number]["first"] == [1.0, 1.0]
        assert found[number]["small"] == 3
        assert found[number]["second"] == [[0.5, 0.5], "None"], "an error of the quorum before is over"
        assert found[number]["broadcast"] == 1.0
        assert "rank 2" in found[number]["lost"]["error"]
        assert "rank 2" in found[number]["lost"]["errored"]
    for number in (0, 1, 3):
        assert found[number]["third"][0] == pytest.approx(4 / 3, abs=1e-6)
        assert found[number]["third"] == found[0]["third"]


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'codek'"):
        QuorumProcessGroup(codek="thc")
    with pytest.raises(ConfigError, match="settings codec with a connect of your own"):
        QuorumProcessGroup(lambda quorum: None, codec="thc")  # type: ignore[arg-type, return-value]
    with pytest.raises(RuntimeError, match="no quorum yet"):
        QuorumProcessGroup().size()


@pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed (it needs another protobuf)")
def test_torchfts_manager_goes_on_without_a_replica() -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=2000)
    try:
        port = lighthouse.address().rsplit(":", 1)[1]
        with replicas("torchft_worker.py", f"http://127.0.0.1:{port}", numbers=range(3)) as running:
            found = [told(running[number]) for number in (0, 1)]
            assert running[2].wait(WAIT_S) == -9
    finally:
        lighthouse.shutdown()
    assert found[0]["digest"] == found[1]["digest"]
    for each in found:
        assert {3, 2} <= set(each["participants"]), "the quorum never shrank: the test proves nothing"
        assert each["allreduces"] > 0
        assert each["losses"][-1] < 0.5 * each["losses"][0]
