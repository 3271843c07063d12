# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller backup` as its page has it, and the question before anything is removed from a switch."""

from __future__ import annotations

import argparse
import io
import logging
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.jobs_client import JobsClient
from hopsum_cli.controller.backup import main
from hopsum_cli.controller.controller_command import build_parser, removal_question
from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.service import operator_service as jobs_service
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.token_files import AdminToken
from hopsum_ptf.fake_device import FakeDevice

from ...support.pages import blocks
from ..cluster.world import Cluster, switch_config
from .conftest import Terminal
from .test_controller import NOBODY, write_config

pytestmark = pytest.mark.system
ADMIN = "the-token-of-the-administrator"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "controller"
    folder.mkdir()
    made = Cluster(folder, (switch_config(),), {"s1": FakeDevice()})
    made.start()
    yield made
    made.stop()


def test_the_commands_on_the_page(cluster: Cluster, tmp_path: Path) -> None:
    taking, restoring = blocks("administration", "Backup, restore, upgrade")
    cluster.run("train")
    (tmp_path / "admin.token").touch(0o600)
    (tmp_path / "admin.token").write_text(ADMIN)
    write_config(tmp_path, NOBODY)
    (tmp_path / "state.sqlite").write_bytes(b"what was there before")
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as service:
        for block in (taking.replace("--admin", f"--controller {service.address} --admin"), restoring):
            script = f'hopsum() {{ "{sys.executable}" -m hopsum_cli.main "$@"; }}\n{block}'
            done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE((tmp_path / "state-backup.sqlite").stat().st_mode) == 0o600
    store = StateStore(tmp_path / "state.sqlite")
    assert cluster.store is not None
    assert store.load() == cluster.store.load()
    store.close()


def test_a_large_backup_comes_in_parts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_service, "PART_BYTES", 1000)
    cluster.run("train")
    with (
        Service(cluster.controller, "127.0.0.1:0") as service,
        Channel(ControllerAddress.of(service.address)) as channel,
    ):
        assert JobsClient(channel).backup() == cluster.controller.backup()


def test_a_backup_that_fails_leaves_the_last_one(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backup.sqlite"
    path.write_text("the last one")
    assert main([str(path), "--controller", f"unix:{tmp_path}/nobody"]) == 1
    assert "check that it runs there" in capsys.readouterr().err
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as service:
        assert main([str(path), "--controller", service.address]) == 1
        assert "this call has no token" in capsys.readouterr().err
    with Service(cluster.controller, "127.0.0.1:0") as service:
        monkeypatch.setattr(cluster.controller, "backup", lambda: b"no database" * 100)
        assert main([str(path), "--controller", service.address]) == 1
        assert "hopsum controller backup: error: " in capsys.readouterr().err
    assert path.read_text() == "the last one"
    assert [each.name for each in tmp_path.iterdir() if "backup" in each.name] == ["backup.sqlite"]


def options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["--config", "cluster.toml", *words])


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("", False)])
def test_what_would_be_removed_is_shown_and_asked(
    answer: str, removed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert removal_question(options()) is None
    question = removal_question(options("--remove-existing"))
    assert question is not None
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert question("leaf1", ["generation 7: slots 0-15", "jobs[7]"]) is removed
    told = capsys.readouterr().err
    assert "switch leaf1 has, and the database has not:\n  generation 7: slots 0-15\n  jobs[7]\n" in told
    assert "It ends the jobs that use it. [y/N]" in told


def test_scripts_have_to_say_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hopsum_cli")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    for words, removed in ((["--remove-existing"], False), (["--remove-existing", "--yes"], True)):
        question = removal_question(options(*words))
        assert question is not None
        assert question("leaf1", ["jobs[7]"]) is removed
    assert "nothing is removed: answer at a terminal, or give --yes" in caplog.text
