# SPDX-License-Identifier: Apache-2.0
"""`hopsum job` at a cluster in memory behind its service."""

from __future__ import annotations

import errno
import io
import json
import re
import stat
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hopsum.codec import job_tables, make_codec
from hopsum.protocol.stream import slots_for
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerUnreachableError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_base.token_files import AdminToken
from hopsum_cli.job.job_command import main
from hopsum_cli.operator import take_snapshot
from hopsum_cli.top.screen import screen
from hopsum_controlplane import ControlPlaneError, JobSpec
from hopsum_controlplane.cluster.requests import check_job
from hopsum_controlplane.cluster.tokens import matches
from hopsum_controlplane.errors import InvalidRequestError
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service
from hopsum_wire import MAX_SLOTS
from hopsum_wire.watch.rates import document

from ..cluster.world import LEASE_S, Cluster, enter, noted_tree
from .conftest import Terminal

pytestmark = pytest.mark.system
ADMIN = "administrators-token-of-a-test"


def test_a_codec_brings_its_table_and_the_token_goes_into_a_file(
    cluster: Cluster, at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "digits.token"
    assert main(["create", "digits", "--workers", "4", "--codec", "thc", "--token-file", str(path), *at]) == 0
    told = capsys.readouterr().out
    token = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in told
    assert f"hopsum://{at[1]}/digits?token_file={path}" in told
    assert cluster.controller.member_requests.locate("digits", token).workers == 4
    spec = cluster.controller._cache.get("digits").spec
    assert spec.tables == job_tables(make_codec("thc", workers=4, backend="numpy"))
    assert spec.slots == 32
    located = cluster.controller.member_requests.locate("digits", token)
    assert (located.codec, located.codec_options) == ("thc", "")


def test_the_job_records_its_codec_with_its_options(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["create", "job", "--workers", "4", "--codec", "uhc:bits=8", *at]
    assert main(asked) == 0
    capsys.readouterr()
    assert main(["show", "job", *at]) == 0
    assert re.search(r'^codec +uhc \{"bits": 8\}', capsys.readouterr().out, re.MULTILINE)
    assert main(["show", "job", "--json", *at]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["codec"], shown["codec_options"]) == ("uhc", '{"bits": 8}')
    spec = cluster.controller._cache.get("job").spec
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("codec", "name", "options"),
    [
        ("thc:bits=4,result_bits=4", "table4", {"bits": 4, "result_bits": 4}),
        ("thc:bits=3", "table3", {"bits": 3}),
        ("thc:bits=2", "table2", {"bits": 2}),
        ("thc:result_bits=8", "table", {"result_bits": 8}),
        ("uhc:lane_bits=16", "table16", {"lane_bits": 16}),
    ],
)
def test_a_codec_selects_its_table(
    cluster: Cluster, at: list[str], codec: str, name: str, options: dict[str, int]
) -> None:
    assert main(["create", "job", "--workers", "4", "--codec", codec, *at]) == 0
    spec = cluster.controller._cache.get("job").spec
    assert [*spec.tables] == [name]
    assert spec.tables == job_tables(make_codec(codec, workers=4, backend="numpy"))
    assert json.loads(spec.codec_options) == options
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("codec", "options", "message"),
    [
        ("two words", "", "codec 'two words'"),
        ("", '{"bits": 8}', "without a codec"),
        ("uhc", "[8]", "they are a JSON object"),
        ("uhc", "{bits", "they are a JSON object"),
        ("uhc", '{"name": "%s"}' % ("x" * 5000), "5012 characters"),
    ],
)
def test_a_codec_that_cannot_be_recorded_is_refused(codec: str, options: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_job(JobSpec("job", ranks=2, slots=16, codec=codec, codec_options=options))


def test_all_of_a_job_can_be_asked_for(cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = "--workers 3 --slots 16 --quorum 2 --min-quorum 2 --switch s1 --lease 30 --codec uhc"
    assert main(["create", "odd", *words.split(), "--json", *at]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["slots"], made["switches"], made["url"]) == (16, ["s1"], f"hopsum://{at[1]}/odd")
    spec = cluster.controller._cache.get("odd").spec
    assert (spec.ranks, spec.quorum, spec.min_quorum) == (3, 2, 2)
    assert (spec.lease_s, spec.codec) == (30, "uhc")
    assert cluster.controller.member_requests.locate("odd", made["token"]).workers == 3


def test_a_job_of_any_number_of_workers(cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "many", "--workers", "2:8", "--replace", "5", *at]) == 0
    assert "its 2:8 workers connect to" in capsys.readouterr().out
    spec = cluster.controller._cache.get("many").spec
    assert (spec.ranks, spec.min_workers, spec.replace_s) == (8, 2, 5.0)
    assert spec.tables == job_tables(make_codec("thc", workers=8)), "proved for all that may come"
    assert main(["show", "many", *at]) == 0
    assert "without lost workers, while 2 are there" in capsys.readouterr().out
    for words in ("2:", ":8", "2:4:8", "many"):
        with pytest.raises(SystemExit):
            main(["create", "odd", "--workers", words, *at])
        assert "is no number of workers: write 4, or 2:8 for 2 to 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "slots"),
    [
        ("--round-trip 1ms", slots_for(1e9, 1e-3)),
        ("--round-trip 2ms --rate 2gbit", slots_for(2e9, 2e-3)),
        ("--round-trip 1s", MAX_SLOTS),
    ],
)
def test_slots_follow_from_the_round_trip(cluster: Cluster, at: list[str], asked: str, slots: int) -> None:
    assert main(["create", "far", "--workers", "2", *asked.split(), *at]) == 0
    assert cluster.controller._cache.get("far").spec.slots == slots


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["--workers", "2", "--slots", "4000"], "4000 slots"),
        (["--workers", "2", "--switch", "elsewhere"], "no switch 'elsewhere'; there are s1"),
        (["--workers", "2", "--quorum", "3"], "quorum 3"),
        (["--workers", "8:2"], "job 'job' of 8:2 workers; MIN is 1 .. MAX"),
    ],
)
def test_a_refusal_has_the_numbers_and_leaves_no_file(
    at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], why: str
) -> None:
    path = tmp_path / "job.token"
    assert main(["create", "job", *asked, "--token-file", str(path), *at]) == 1
    assert why in capsys.readouterr().err
    assert not path.exists()


MAKING = (["create", "job", "--workers", "2"], ["rotate-token", "job"])


@pytest.mark.parametrize("command", MAKING)
def test_a_token_that_the_disk_does_not_take_is_nobodys(
    cluster: Cluster, at: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A disk that is full when the block is written: nothing is made, rotated or left behind."""
    if command[0] == "rotate-token":
        cluster.make("job")
    before = [record.token_digest for record in cluster.controller._cache.records()]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "job.token"
    monkeypatch.setattr("os.fsync", full)
    assert main([*command, "--token-file", str(path), *at]) == 1
    assert [record.token_digest for record in cluster.controller._cache.records()] == before
    assert not [each for each in tmp_path.iterdir() if "token" in each.name]


@pytest.mark.parametrize("command", MAKING)
def test_a_command_whose_answer_was_lost_is_given_again(
    cluster: Cluster, at: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    if command[0] == "rotate-token":
        cluster.make("job")
    call = JobsClient._call

    def lost(self: JobsClient, *arguments: object) -> None:
        call(self, *arguments)
        raise ControllerUnreachableError("the connection broke", "UNAVAILABLE")

    path = tmp_path / "job.token"
    with monkeypatch.context() as patch:
        patch.setattr(JobsClient, "_call", lost)
        assert main([*command, "--token-file", str(path), *at]) == 1
    assert not path.exists()
    after = cluster.controller._cache.get("job")
    assert main([*command, "--token-file", str(path), *at]) == 0
    assert cluster.controller._cache.get("job") == after, "the second command changes nothing"
    assert matches(path.read_text().strip(), after.token_digest)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir() if "token" in each.name] == ["job.token"]


def test_a_token_that_waits_is_neither_lost_nor_taken_from_others(
    cluster: Cluster, at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting, path = tmp_path / ".job.token.job", tmp_path / "job.token"
    command = ["create", "job", "--workers", "2", "--token-file", str(path), *at]
    waiting.write_text("t" * 43)
    waiting.chmod(0o644)
    assert main(command) == 1
    assert "no job was made" in capsys.readouterr().err
    waiting.chmod(0o600)
    elsewhere = waiting.rename(tmp_path / "elsewhere")
    waiting.symlink_to(elsewhere)
    assert main(command) == 1
    assert cluster.controller.jobs() == []
    waiting.unlink()
    elsewhere.rename(waiting)
    # The earlier command made the job. This one asks for another job of the same name.
    cluster.controller.create_job(JobSpec("job", ranks=2, slots=8), "t" * 43)
    assert main(command) == 1
    assert f"a token waits in {waiting}" in capsys.readouterr().err
    assert waiting.read_text() == "t" * 43


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_comes_meanwhile_is_not_replaced(
    at: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    waiting, path = tmp_path / ".job.token.job", tmp_path / "job.token"

    def answer(self: JobsClient, name: str, token: str) -> str:
        path.write_text("of another job\n")
        return token

    monkeypatch.setattr(JobsClient, "rotate_token", answer)
    if not has_links:
        monkeypatch.setattr("os.link", no_links)
    command = ["rotate-token", "job", "--token-file", str(path), *at]
    assert main(command) == 1
    assert f"the token is in {waiting}" in capsys.readouterr().err
    token = waiting.read_text()
    assert path.read_text() == "of another job\n"
    path.unlink()
    monkeypatch.setattr(JobsClient, "rotate_token", lambda self, name, token: token)
    if not has_links:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", no_links)
            assert main(command) == 1
        assert f"the token is in {waiting}: {path} cannot be written: " in capsys.readouterr().err
        assert waiting.read_text() == token
        assert not path.exists(), "an empty file would refuse the command, given again"
    assert main(command) == 0
    assert path.read_text() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert not waiting.exists()


def test_a_controller_of_before_draws_the_token_itself(
    at: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobsClient, "rotate_token", lambda self, name, token: "of the controller")
    path = tmp_path / "job.token"
    assert main(["rotate-token", "job", "--token-file", str(path), *at]) == 0
    assert path.read_text() == "of the controller\n"


def test_a_token_file_that_is_there_is_kept(
    cluster: Cluster, at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.token"
    path.write_text("of another job\n")
    assert main(["create", "job", "--workers", "2", "--token-file", str(path), *at]) == 1
    assert "no job was made" in capsys.readouterr().err
    assert path.read_text() == "of another job\n"
    assert cluster.controller.jobs() == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["--codec", "thc:colour=1"], "colour"),
        (["--codec", "thc:bits 8"], "'bits 8' is no OPTION=VALUE, as in thc:bits=2"),
        (["--codec", "thc:bits=5"], "thc with codes of 5 bits: 2, 3, 4"),
        (["--codec", "thc:result_bits=6"], "result_bits=6 with bits=4: results have as many bits as codes, or 8"),
    ],
)
def test_arguments_that_do_not_fit_reach_no_controller(
    capsys: pytest.CaptureFixture[str], asked: list[str], why: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["create", "job", "--workers", "2", "--controller", "127.0.0.1:1", *asked])
    assert stop.value.code == 2
    assert why in capsys.readouterr().err


def test_list_and_show_tell_what_there_is(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", *at]) == 0
    assert capsys.readouterr().out == "no jobs\n"
    crew = cluster.make("train", workers=3, slots=16)
    crew[1].join()
    assert main(["list", *at]) == 0
    (_, line, below) = capsys.readouterr().out.splitlines()
    assert line.split() == ["train", "forming,", "waiting", "s1", "0-15", "1/3", "-"]
    assert below == "train: waits for ranks 0, 2 of 3 to join"
    enter(crew)
    assert main(["show", "train", *at]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("running", "3/3, quorum 3", f"lease {LEASE_S:g} s", "10.0.1.3:4002", "counted by the switch"):
        assert words in shown
    assert main(["show", "train", "--json", *at]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main(["list", "--json", *at]) == 0
    (same,) = json.loads(capsys.readouterr().out)["jobs"]
    assert one["state"] == same["state"] == "running"
    assert one["generation"] == same["generation"] > 0
    assert [member["rank"] for member in one["members"]] == [0, 1, 2]


def test_show_has_the_status_and_its_events(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    crew = cluster.make("train", workers=3, slots=16)
    for _ in range(2):
        with pytest.raises(ControlPlaneError):
            crew[0].join(ip="192.0.2.1")
    crew[1].join()
    cluster.clock.sleep(7)
    assert main(["show", "train", *at]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "waiting waits for ranks 0, 2 of 3 to join" in shown
    assert "Normal 7 s ago Created 3 workers, switch s1" in shown
    assert any(line.startswith("Warning 7 s ago (2 times) JoinRefused") for line in shown)
    assert main(["show", "train", "--json", *at]) == 0
    one = json.loads(capsys.readouterr().out)
    assert [each["reason"] for each in one["events"]] == ["Created", "JoinRefused", "MemberJoined"]


def test_a_tree_is_shown_with_all_its_switches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cluster = noted_tree(tmp_path)
    cluster.start()
    with Service(cluster.controller, "127.0.0.1:0") as service:
        at = ["--controller", service.address]
        assert main(["create", "train", "--workers", "3", "--slots", "16", "--tree", "--switch", "s3", *at]) == 0
        told = "job 'train' on s1: slots 0 to 15; s2: slots 0 to 15; then s3: slots 0 to 15, forming"
        assert capsys.readouterr().out.splitlines()[0] == told
        assert main(["create", "odd", "--workers", "3", "--quorum", "2", *at]) == 1
        assert "over a tree of switches: quorum 2 of 3 workers" in capsys.readouterr().err
        assert main(["list", *at]) == 0
        assert "train  forming, idle  s1, s2, then s3  0-15" in capsys.readouterr().out
        cluster.controller.delete_job("train")
        cluster.run("train", 3, 16)
        assert main(["show", "train", *at]) == 0
        shown = capsys.readouterr().out
        assert all(f"{name}, slots 0-15, job index 0" in shown for name in ("s1", "s2", "s3"))
        assert "counted by the switches  s1  s2  s3" in shown
        with Channel(ControllerAddress.of(service.address)) as channel:
            cluster.make("other", 2, 16, switch="s1")
            snapshot = take_snapshot(JobsClient(channel))
        Console().print(screen(document(snapshot, snapshot)))
        assert re.search(r"^train +s1, s2, then s3 +running", capsys.readouterr().out, re.MULTILINE)
    cluster.stop()


def test_delete_says_what_is_gone(cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        cluster.make(name)
    assert main(["delete", "a", "nobody", "b", *at]) == 1
    told = capsys.readouterr()
    assert told.out == "job 'a' is gone\n"
    assert "no job 'nobody'" in told.err
    assert main(["delete", "b", "c", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": ["b", "c"]}
    assert cluster.controller.jobs() == []


def test_a_job_with_workers_is_deleted_only_when_told_so(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run("busy")
    cluster.make("idle")
    generation = cluster.controller.job("busy").generation
    assert main(["delete", "idle", "busy", *at]) == 1  # nobody at the terminal
    told = capsys.readouterr()
    assert told.out == ""
    assert "job 'busy' is running, with ranks 0, 1 in it; nothing was deleted: give --yes" in told.err

    for answer in ("", "n\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert main(["delete", "idle", "busy", *at]) == 1
        assert "End it? [y/N]" in capsys.readouterr().err
        assert len(cluster.controller.jobs()) == 2
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(["delete", "idle", "busy", *at]) == 0
    assert (
        capsys.readouterr().out
        == f"job 'idle' is gone\njob 'busy' is gone: ended for ranks 0, 1, generation {generation}\n"
    )
    cluster.run("busy")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["delete", "busy", "--yes", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": ["busy"]}


def test_the_administrators_token_comes_from_a_file_that_others_cannot_read(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "admin.token"
    path.write_text(ADMIN)
    path.chmod(0o644)
    with Service(cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as service:
        at = ["--controller", service.address]
        assert main(["list", *at]) == 1
        assert "this call has no token" in capsys.readouterr().err
        assert main(["list", *at, "--admin-token-file", str(path)]) == 1
        assert "others can read it" in capsys.readouterr().err
        path.chmod(0o600)
        assert main(["list", *at, "--admin-token-file", str(path)]) == 0
        assert capsys.readouterr() == ("no jobs\n", "")


def test_a_controller_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--controller", f"unix:{tmp_path}/nobody"]) == 1
    assert "check that it runs there" in capsys.readouterr().err


@pytest.fixture
def switches() -> int:
    return 2


def test_a_job_is_moved_and_the_reason_is_shown(
    cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("train", 2, 16, switch="s1")
    assert main(["move", "train", *at]) == 0
    assert capsys.readouterr().out == "job 'train' moves from switch s1 to s2: slots 0 to 15\n"
    assert main(["show", "train", *at]) == 0
    assert "it moves from switch s1 to switch s2" in capsys.readouterr().out.replace("\n", " ")
    cluster.controller.tick()
    assert main(["move", "train", "--from-switch", "s2", "--to-switch", "s1", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "from_switch": "s2", "to_switch": "s1", "slot_base": 0, "slots": 16
    }  # fmt: skip
