# SPDX-License-Identifier: Apache-2.0
"""All options of all commands, each with one meaning, and the context: options before environment."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import hopsum
from hopsum.config import resolve
from hopsum_base.owned_folder import OwnedFolder
from hopsum_cli.context import KEYS, ContextError, add_operator_arguments, complete, variable_name
from hopsum_cli.main import COMMANDS
from hopsum_cli.operator import address_of


class Built(Exception):  # noqa: N818
    """Carries the parser that a command has made, in place of parsing."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command. Skips where the command's extra is not installed."""

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise Built(parser)

    module = pytest.importorskip(COMMANDS[name].module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(Built) as built:
            module.main([])
    return built.value.parser


def actions_of(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.Action]]:
    """Yield (command, option or argument), those of its words too; without --help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from actions_of(below, f"{path} {word}")
        elif not isinstance(action, argparse._HelpAction):
            yield path, action


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    for path, action in actions_of(parser_of(name), name):
        shown = "/".join(action.option_strings) or action.dest
        assert action.help, f"hopsum {path} {shown} has no help"
        first = action.help.split()[0]
        assert first not in {"of", "that", "where", "which", "to", "for", "from", "or", "with"}, (
            path,
            shown,
            action.help,
        )
        assert not action.help.endswith("."), (path, shown, action.help)


def said_in_two_ways(tell: Callable[[argparse.Action], Any]) -> dict[str, dict[Any, list[str]]]:
    """Return the spellings of which `tell` says different things, with the commands by what it says."""
    found: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for path, action in actions_of(parser_of(name), name):
            for spelling in action.option_strings:
                found[spelling][tell(action)].append(path)
    return {spelling: dict(said) for spelling, said in found.items() if len(said) > 1}


def test_a_spelling_takes_the_same_kind_of_value_everywhere() -> None:
    assert not said_in_two_ways(_kind)


TWO_TYPES = {
    "--codec": "bench allreduce times codecs without a switch too",
    "--elements": "plan reads 25M for 25000000 too",
    "--only": "each benchmark has parts of its own",
    "--model": "bench training times networks of the published sizes",
    "--placement": "bench training takes several",
    "--rate": "bench training takes several; the demonstration has a least rate",
    "--seed": "the switch takes the 64 bits that the P4 program's random() has",
    "--target": "not every command has the Mininet network",
    "--workers": "codec compare takes several numbers",
}
"""Options whose values are read in two ways, by spelling, and why the meaning is one all the same."""


def test_the_values_of_a_spelling_are_read_alike() -> None:
    two = said_in_two_ways(_type)
    assert set(two) == set(TWO_TYPES), two


def _type(action: argparse.Action) -> tuple[str, tuple[str, ...]]:
    """Return the name of what reads an option's value, and the values that it may have."""
    reads = getattr(action.type, "__name__", str(action.type))
    return reads, tuple(map(str, action.choices or ()))


def _kind(action: argparse.Action) -> tuple[bool, bool]:
    """Return whether an option takes a value, and whether that is the name of a file."""
    metavars: Sequence[str] = [action.metavar] if isinstance(action.metavar, str) else action.metavar or ()
    return action.nargs != 0, any(word in {"FILE", "PATH", "DIR"} for word in metavars)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_operator_arguments(parser)
    return parser.parse_args(arguments)


def test_nothing_said_is_the_controller_of_this_machine() -> None:
    found = complete(options(), {})
    assert (found.controller, found.admin_token_file, found.ca_file, found.tls) == ("127.0.0.1:4700", None, None, None)


def test_the_option_comes_before_the_environment() -> None:
    environment = {"HOPSUM_CONTROLLER": "environment:2", "HOPSUM_TLS": "false", "HOPSUM_ADMIN_TOKEN_FILE": "/own"}
    found = complete(options("--controller", ""), environment)
    assert (found.controller, found.admin_token_file, found.tls) == ("environment:2", "/own", False)
    found = complete(options("--controller", "option:3", "--tls"), environment)
    assert (found.controller, found.admin_token_file, found.tls) == ("option:3", "/own", True)


def test_a_variable_that_does_not_fit_is_named() -> None:
    with pytest.raises(ContextError, match="environment variable HOPSUM_TLS is 'maybe': it is true or false"):
        complete(options(), {"HOPSUM_TLS": "maybe"})


def test_the_place_is_the_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPSUM_CONTROLLER", "10.0.0.1:9")
    monkeypatch.setenv("HOPSUM_CA_FILE", str(tmp_path / "ca.pem"))
    address = address_of(options())
    assert (address.target, address.tls, address.ca_file) == ("10.0.0.1:9", True, tmp_path / "ca.pem")


def test_workers_take_no_notice_of_it() -> None:
    environment = {variable_name(key): "x" for key in KEYS if key != "tls"} | {"HOPSUM_TLS": "1"}
    assert resolve(environment=environment) == hopsum.config.Config(ca_file="x", certificate_file="x", key_file="x")


def test_a_job_by_hosts_is_found_by_its_rank_0_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def complete_hosts(address: str = "") -> tuple[str, object, object]:
        made = complete(options("--controller", f"hosts://{address}"), {})
        return made.controller, made.admin_token_file, made.tls

    with pytest.raises(ContextError, match="controller hosts://: no job of this user by hosts://"):
        complete_hosts()
    with OwnedFolder("hosts") as first, OwnedFolder("hosts") as second:
        # Ranks above 0 have such a folder without a controller.
        (first / "controller.address").write_text("10.0.0.1:4001")
        assert complete_hosts() == ("10.0.0.1:4001", first / "admin.token", False)
        assert complete(options(), {"HOPSUM_CONTROLLER": "hosts://"}).controller == "10.0.0.1:4001"
        (second / "controller.address").write_text("10.0.0.2:4002")
        with pytest.raises(
            ContextError, match=r"there are 2 jobs here: name one, of hosts://10\.0\.0\.1:4001, hosts://"
        ):
            complete_hosts()
        assert complete_hosts("10.0.0.2:4002")[1] == second / "admin.token"
        with pytest.raises(ContextError, match=r"hosts://x: no job .* there are hosts://10\.0\.0\.1:4001, "):
            complete_hosts("x")
