# SPDX-License-Identifier: Apache-2.0
"""The command word, and what is said when something is missing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from hopsum_cli.main import COMMANDS, GROUPS, INTERRUPTED, SECTIONS, UNREAD, Command, build_parser, load, main

pytestmark = pytest.mark.system


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    ones = {name: row.summary for name, row in COMMANDS.items() if " " not in name}
    assert all(f"  {name} " in text and summary in text for name, summary in (ones | GROUPS).items())
    assert [text.index(f"{heading}:") for heading in SECTIONS] == sorted(
        text.index(f"{heading}:") for heading in SECTIONS
    )
    assert "exit status:" in text


def test_every_command_is_in_one_section() -> None:
    listed = [word for words in SECTIONS.values() for word in words]
    assert sorted(listed) == sorted({name.partition(" ")[0] for name in COMMANDS})


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_help_of_a_group_lists_its_words(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, group)
    rows = {name: row for name, row in COMMANDS.items() if name.startswith(f"{group} ")}
    assert rows
    assert all(name.split()[1] in text and row.summary in text for name, row in rows.items())


@pytest.mark.parametrize("words", [[], *([group] for group in sorted(GROUPS))], ids=" ".join)
def test_without_a_command_the_list_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == help_of(capsys, *words)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"usage: hopsum {name}" in help_of(capsys, *name.split())


def test_an_interrupted_command_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hopsum_cli.main.load", lambda _: interrupted)
    assert main(["job", "list"]) == INTERRUPTED == 128 + signal.SIGINT
    assert capsys.readouterr().err == "hopsum job: interrupted\n"


def _heed_sigint() -> None:
    """Let a child end by SIGINT, which the background job of a shell ignores and hands down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_command_that_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "hopsum_cli.main", "top", "--controller", at]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_sigint
        ) as asking:
            try:
                silent.settimeout(60)
                connection, _ = silent.accept()
                with connection:
                    asking.send_signal(signal.SIGINT)
                    _, errors = asking.communicate(timeout=60)
            finally:
                asking.kill()
    assert (asking.returncode, errors.splitlines()[-1]) == (INTERRUPTED, "hopsum top: interrupted")


@pytest.mark.parametrize("options", [["--json"], []], ids=["text", "a table of Rich"])
def test_output_that_nobody_reads_ends_a_command(options: list[str]) -> None:
    command = [sys.executable, "-m", "hopsum_cli.main", "topology", "show", "two_rack", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writing:
        assert writing.stdout is not None
        assert writing.stderr is not None
        writing.stdout.close()
        assert writing.stderr.read() == ""
    assert writing.returncode == UNREAD == 128 + signal.SIGPIPE


def test_a_command_that_takes_a_broken_pipe_for_its_own_failure_ends_in_the_same_way() -> None:
    program = """
import sys
from hopsum_cli import main
def command(_):
    try: print("x" * 100_000)
    except OSError: return 1
main.load = lambda _: command
sys.exit(main.main(["switch-ctl"]))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writing:
        assert writing.stdout is not None
        writing.stdout.close()
    assert writing.returncode == UNREAD


def test_what_no_command_expects_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A broken pipe that is not the output's is such a fault."""

    def broken(_: Sequence[str]) -> int:
        raise BrokenPipeError("a\nconnection")

    monkeypatch.setattr("hopsum_cli.main.load", lambda _: broken)
    assert main(["job", "list"]) == 1
    error = capfd.readouterr().err
    assert error.startswith("hopsum job: internal error: BrokenPipeError: a connection at tests/cli/test_main.py:")
    assert (error.count("\n"), "please report" in error) == (1, True)


def test_unknown_command_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["trian"])
    assert stop.value.code == 2
    assert "trian" in capfd.readouterr().err


def test_missing_dependency_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("hopsum_cli.main.import_module", missing)
    with pytest.raises(SystemExit, match=r"needs the module grpc; pip install 'hopsum\[switch\]'"):
        load(Command("", "hopsum_switch.cli", "switch"))


def test_p4runtime_shell_asks_for_an_environment_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It pins a protobuf that would take the place of the one that switch and controller have."""
    monkeypatch.setattr("hopsum_controlplane.shell_prompt.find_spec", lambda _: None)
    assert main(["shell", "127.0.0.1:9559"]) == 1
    assert "in an environment of its own, pip install 'hopsum[shell]'" in capsys.readouterr().err
