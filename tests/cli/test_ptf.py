# SPDX-License-Identifier: Apache-2.0
"""`hopsum ptf` with tests of others: plain tests of ptf, ports from 0, and the names of their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsum_cli.ptf import main

pytest.importorskip("ptf")
pytestmark = pytest.mark.system
PROGRAM = Path(__file__).parents[1] / "switch" / "server" / "program" / "station.json"
TESTS = """
import socket
from pathlib import Path

from ptf import testutils
from ptf.base_tests import BaseTest


class Parameters(BaseTest):
    def setUp(self):
        pass

    def runTest(self):
        given = {name: testutils.test_param_get(name) for name in ("grpcaddr", "p4info", "config")}
        host, _, port = given["grpcaddr"].rpartition(":")
        if host != "unix":
            socket.create_connection((host, int(port))).close()
        assert Path(given["p4info"]).name == "station.p4info.txtpb", given
        assert Path(given["config"]).name == "station.json", given
        assert testutils.test_param_get("ports") == [0, 1, 2], given


class Fails(Parameters):
    def runTest(self):
        assert False, "as it should"
"""


def test_tests_of_others_run_unchanged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.py").write_text(TESTS)
    assert main([str(PROGRAM), str(tmp_path), "--ports", "0-2", "--cpu-port", "510"]) == 1
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["plain.Parameters", "ok"] in rows
    assert ["plain.Fails", "FAILED"] in rows


@pytest.mark.parametrize("ports", ["0", "7-0", "0-201", "a", "1-", "-1"])
def test_ports_that_make_no_range_are_refused(ports: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([str(PROGRAM), "tests", f"--ports={ports}"])
    assert refused.value.code == 2
    assert "a number of ports from 1 to 200, or FIRST-LAST" in capsys.readouterr().err
