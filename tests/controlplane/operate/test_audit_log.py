# SPDX-License-Identifier: Apache-2.0
"""The log with a line for every change, `hopsum controller backup`, and the question before a removal."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_base.token_files import AdminToken, read_admin_tokens
from hopsum_cli.controller.backup import main
from hopsum_cli.controller.controller_command import build_parser, removal_question
from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.errors import ControlPlaneError, UnknownJobError
from hopsum_controlplane.service import operator_service as jobs_service
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.audit_log import write_audit_line
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.service.log_format import configure_logging
from hopsum_ptf.fake_device import FakeDevice

from ...support.pages import blocks, type_in
from ..cluster.older_versions import make_old
from ..cluster.world import Cluster, switch_config
from .conftest import Terminal
from .test_controller import NOBODY, write_config

pytestmark = pytest.mark.system
TOKENS = (AdminToken("the-token-of-alice-0000", "alice"), AdminToken("the-token-of-nobody-000"))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["audit"] for record in caplog.records if "audit" in vars(record)]


def client(stack: ExitStack, service: Service, token: str) -> JobsClient:
    return JobsClient(stack.enter_context(Channel(ControllerAddress.of(service.address))), token)


def test_every_change_has_a_line(
    cluster: Cluster,
    tmp_path: Path,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hopsum_controlplane")
    monkeypatch.setattr(jobs_service, "STRANGERS_S", 3600.0)
    admin, rotate, *_ = blocks("administration", "Tokens and certificates")
    type_in(tmp_path, admin.splitlines()[0])
    tokens = (*read_admin_tokens(tmp_path / "admin.token", ControlPlaneError), TOKENS[1])
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=tokens)) as service:
        alice, other, stranger = (client(stack, service, each) for each in (tokens[0].token, tokens[1].token, "wrong"))
        crew = cluster.run("train")
        alice.create("vectors", 2, 16)
        with pytest.raises(ControllerError, match="exists"):
            other.create("vectors", 2, 16)
        for _ in range(3):
            with pytest.raises(ControllerError, match="another token"):
                stranger.delete("train")
        alice.jobs()  # changes nothing, and has no line
        type_in(tmp_path, rotate.replace("digits", "vectors"), HOPSUM_CONTROLLER=service.address)
        alice.delete("train")
        other.backup()
        with pytest.raises(UnknownJobError, match=r"the job was deleted by alice at ipv4:127\.0\.0\.1:\d+ at 20"):
            crew[0].beat()
    started, made, refused, strange, rotated, revoked, deleted, copied, stopped = lines(caplog)
    assert (started["action"], started["administrators"]) == ("Start", ["alice", "administrator"])
    assert (made["action"], made["job"], made["identity"], made["before"]) == ("CreateJob", "vectors", "alice", None)
    assert made["after"] == {"state": "forming", "generation": 0, "workers": 2, "slots": 16, "switches": ["s1"]}
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", made["peer"])
    assert (refused["identity"], refused["before"]) == ("administrator", refused["after"])
    assert "exists" in refused["refused"]
    assert (strange["identity"], strange["action"]) == ("unknown", "DeleteJob")
    assert [each["action"] for each in (rotated, revoked)] == ["RotateJobToken", "RevokeEarlierToken"]
    assert (tmp_path / "vectors-2.token").read_text().strip() not in caplog.text
    assert (deleted["identity"], deleted["before"]["state"], deleted["after"]) == ("alice", "running", None)
    assert deleted["before"]["generation"] == crew[0].generation
    assert (copied["action"], copied["identity"]) == ("Backup", "administrator")
    assert copied["bytes"] > 0
    assert stopped["action"] == "Stop"
    assert all(each.token not in caplog.text for each in tokens)


def test_calls_of_strangers_cannot_fill_the_log(
    cluster: Cluster, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hopsum_controlplane")
    now_s = [0.0]
    monkeypatch.setattr(jobs_service.time, "monotonic", lambda: now_s[0])
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=TOKENS)) as service:
        stranger = client(stack, service, "wrong")
        for second in (0.0, 0.5, 0.9, 5.0):
            now_s[0] = second
            with pytest.raises(ControllerError):
                stranger.jobs()
    strange = [line for line in lines(caplog) if line.get("identity") == "unknown"]
    assert [line.get("refused_before") for line in strange] == [None, 2]


def test_the_commands_on_the_page(tmp_path: Path, quiet: None) -> None:
    (block,) = blocks("administration", "Who changed what")
    with (tmp_path / "controller.log").open("w", encoding="utf-8") as file:
        handler = configure_logging(file, form="json")
        write_audit_line("CreateJob", job="digits", identity="alice", peer="ipv4:10.0.0.7:4000")
        write_audit_line("DeleteJob", job="digits", identity="bob", peer="ipv4:10.0.0.8:4000")
        write_audit_line("DeleteJob", job="other", identity="bob", peer="ipv4:10.0.0.8:4000")
        handler.flush()
    (found,) = type_in(tmp_path, block).splitlines()
    assert "DeleteJob" in found
    assert "bob" in found


ADMIN = "the-token-of-the-administrator"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "controller"
    folder.mkdir()
    made = Cluster(folder, (switch_config(),), {"s1": FakeDevice()})
    made.start()
    yield made
    made.stop()


def test_backup_the_commands_on_the_page(cluster: Cluster, tmp_path: Path) -> None:
    taking, restoring = blocks("administration", "Backup, restore, upgrade")
    cluster.run("train")
    (tmp_path / "admin.token").touch(0o600)
    (tmp_path / "admin.token").write_text(ADMIN)
    write_config(tmp_path, NOBODY)
    (tmp_path / "state.sqlite").write_bytes(b"what was there before")
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as service:
        for block in (taking.replace("--admin", f"--controller {service.address} --admin"), restoring):
            type_in(tmp_path, block)
    assert stat.S_IMODE((tmp_path / "state-backup.sqlite").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if "backup" in each.name] == ["state-backup.sqlite"]
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


def test_a_backup_of_an_older_controller_stays_as_it_is(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Newer commands take the backup before an upgrade, and the older controller is to start with it again."""
    cluster.make("train")
    content, older, path = cluster.controller.backup(), tmp_path / "older.sqlite", tmp_path / "backup.sqlite"
    older.write_bytes(content)
    store = StateStore(older)
    make_old(store, 13)
    store.close()
    monkeypatch.setattr(cluster.controller, "backup", older.read_bytes)
    with Service(cluster.controller, "127.0.0.1:0") as service:
        assert main([str(path), "--controller", service.address]) == 0
    assert capsys.readouterr().out == f"{path}: 1 jobs, {older.stat().st_size} bytes\n"
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (13,)
    assert [each.name for each in tmp_path.iterdir() if "backup" in each.name] == ["backup.sqlite"]


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
