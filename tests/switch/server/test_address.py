# SPDX-License-Identifier: Apache-2.0
"""The address of a switch that is not told one: a socket for its user alone, which its tools find, and only one has."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from hopsum_cli.shell import build_parser
from hopsum_switch import management_command
from hopsum_switch.grpc_address import ServerError, default_address
from hopsum_switch.server import SwitchServer

from .controller import DEADLINE_S, Controller
from .switch_process import SWITCH, started

pytestmark = pytest.mark.system


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def refused(*arguments: str) -> str:
    """Return what a switch says that cannot start."""
    done = subprocess.run([*SWITCH, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_it_is_a_socket_for_its_user_alone_and_its_tools_find_it(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("--udp", "7=127.0.0.1:0", command=SWITCH) as (process, address, _):
        path = runtime / f"hopsum-{os.getuid()}" / "switch.sock"
        assert address == default_address() == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert management_command.main(["ports"]) == 0
        assert list(json.loads(capsys.readouterr().out)) == ["7"]
        assert build_parser().parse_args([]).address == address
        with Controller(address, device_id=0) as controller:
            controller.become_primary()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert not path.exists()


def test_without_a_runtime_folder_it_is_under_the_one_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/somewhere")
    assert default_address() == f"unix:/somewhere/hopsum-{os.getuid()}/switch.sock"


@pytest.mark.parametrize("given", [False, True])
def test_a_second_switch_says_what_to_give_it_and_the_first_one_goes_on(runtime: Path, given: bool) -> None:
    arguments = ["--grpc", f"unix:{runtime / 'mine'}"] if given else []
    with started(*arguments, command=SWITCH) as (_, address, _):
        message = refused(*arguments)
        assert f"cannot listen on {address}: another switch listens there" in message
        assert "--grpc unix:PATH or --grpc HOST:PORT" in message
        with Controller(address, device_id=0) as controller:
            controller.become_primary()
        with started() as (_, other, _):
            assert other.startswith("127.0.0.1:")


def test_of_two_that_start_at_once_one_starts(runtime: Path) -> None:
    pair = [subprocess.Popen(SWITCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        lines = []
        for process in pair:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        assert sorted(line.partition(" ")[0] for line in lines) == ["", "ready"]
        for process in pair:
            process.terminate()
        errors = [process.communicate(timeout=DEADLINE_S)[1] for process in pair]
        assert sorted("another switch listens there" in text for text in errors) == [False, True]
    finally:
        for process in pair:
            process.kill()
            process.wait()


def test_what_a_killed_switch_left_is_taken_over(runtime: Path) -> None:
    with started(command=SWITCH) as (process, address, _):
        process.kill()
        process.wait(DEADLINE_S)
        assert Path(address.removeprefix("unix:")).exists()
    with started(command=SWITCH) as (_, again, _):
        assert again == address


def test_a_folder_that_is_open_to_others_is_refused(runtime: Path) -> None:
    folder = runtime / f"hopsum-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ServerError, match=r"open to others.*--grpc unix:PATH"), SwitchServer(default_address()):
        pass
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(ServerError, match=r"cannot make the folder.*--grpc unix:PATH"), SwitchServer(default_address()):
        pass


def test_a_path_that_was_given_is_for_its_user_alone_too(tmp_path: Path) -> None:
    with SwitchServer(f"unix:{tmp_path / 'socket'}"):
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ServerError, match="cannot listen on"), SwitchServer(f"unix:{tmp_path / 'file'}"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_socket_whose_queue_is_full_is_somebodys(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        waiting.connect(str(tmp_path / "socket"))
        with pytest.raises(ServerError, match="another switch"), SwitchServer(f"unix:{tmp_path / 'socket'}"):
            pass
