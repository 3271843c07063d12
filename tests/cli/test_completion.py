# SPDX-License-Identifier: Apache-2.0
"""Tests of `hopsum completion`: bash itself reads the script and completes words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopsum_cli.completion import SHELLS, main
from hopsum_cli.main import COMMANDS, GROUPS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "hopsum.bash"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-m", "hopsum_cli.main", "completion", "bash"], stdout=file, check=True)
    return path


def complete(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of the words after `hopsum`."""
    source = """
    source "$1"; shift
    COMP_WORDS=(hopsum "$@"); COMP_CWORD=$#
    "$(complete -p hopsum | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" hopsum "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "--norc", "-c", source, "bash", str(script), *words]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_every_first_word_is_offered(script: Path) -> None:
    assert complete(script, "") >= {name.partition(" ")[0] for name in COMMANDS}
    assert complete(script, "do") == {"doctor"}


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_the_words_of_a_group_are_offered(script: Path, group: str) -> None:
    assert complete(script, group, "") >= {name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")}


def test_options_choices_and_files_are_offered(script: Path) -> None:
    (script.parent / "token").touch()
    assert {"create", "delete", "list", "show"} <= complete(script, "job", "")
    assert complete(script, "job", "create", "--wor") == {"--workers"}
    assert complete(script, "demo", "--target", "b") == {"bmv2"}
    assert complete(script, "job", "create", "--token-file", "tok") == {"token"}
    assert "--minibatch" in complete(script, "plan", "paper", "--mini")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_every_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([shell]) == 0
    text = capsys.readouterr().out
    assert all(name.partition(" ")[0] in text for name in COMMANDS)


def test_other_commands_do_not_wait_for_it() -> None:
    code = "import sys, hopsum_cli.main as m; m.build_parser(); sys.exit('shtab' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
