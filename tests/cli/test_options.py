# SPDX-License-Identifier: Apache-2.0
"""All options of all commands, each with one meaning, and the context: options before environment before file."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import hopsum
from hopsum.config import ConfigError, resolve
from hopsum_cli.context import KEYS, ContextError, add_operator_arguments, complete, variable
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


def test_a_spelling_takes_the_same_kind_of_value_everywhere() -> None:
    kinds: dict[str, dict[tuple[bool, bool], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for path, action in actions_of(parser_of(name), name):
            for spelling in action.option_strings:
                kinds[spelling][_kind(action)].append(path)
    two = {spelling: dict(found) for spelling, found in kinds.items() if len(found) > 1}
    assert not two


TWO_TYPES = {
    "--elements": "plan reads 25M for 25000000 too",
    "--only": "each benchmark has parts of its own",
    "--seed": "the switch takes the 64 bits that the P4 program's random() has",
    "--target": "not every command has the Mininet network",
    "--workers": "codec compare takes several numbers",
}
"""Options whose values are read in two ways, by spelling, and why the meaning is one all the same."""


def test_the_values_of_a_spelling_are_read_alike() -> None:
    types: dict[str, dict[tuple[str, tuple[str, ...]], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for path, action in actions_of(parser_of(name), name):
            for spelling in action.option_strings:
                types[spelling][_type(action)].append(path)
    two = {spelling: dict(found) for spelling, found in types.items() if len(found) > 1}
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hopsum").mkdir()
    return tmp_path / "hopsum"


def write(folder: Path, text: str) -> dict[str, str]:
    """Write the configuration, and return the environment that leads to it."""
    (folder / "config.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(folder.parent)}


def test_nothing_said_is_the_controller_of_this_machine(tmp_path: Path) -> None:
    found = complete(options(), {"HOME": str(tmp_path)})
    assert (found.controller, found.admin_token_file, found.ca_file, found.tls) == ("127.0.0.1:4700", None, None, None)


def test_the_option_comes_before_the_environment_before_the_file(folder: Path) -> None:
    environment = write(folder, '[context]\ncontroller = "file:1"\nkey_file = "own.key"\ntls = true\n')
    found = complete(options(), environment)
    assert (found.controller, found.key_file, found.tls) == ("file:1", str(folder / "own.key"), True)
    environment |= {"HOPSUM_CONTROLLER": "environment:2", "HOPSUM_TLS": "false"}
    found = complete(options(), environment)
    assert (found.controller, found.key_file, found.tls) == ("environment:2", str(folder / "own.key"), False)
    assert complete(options("--controller", "option:3", "--tls"), environment).tls is True


def test_a_controller_by_option_gets_no_secret_from_the_file(folder: Path) -> None:
    environment = write(folder, '[context]\ncontroller = "file:1"\nadmin_token_file = "token"\n')
    found = complete(options("--controller", "other:2"), environment)
    assert (found.controller, found.admin_token_file) == ("other:2", None)
    environment["HOPSUM_ADMIN_TOKEN_FILE"] = "/own"
    assert complete(options("--controller", "other:2"), environment).admin_token_file == "/own"


def test_home_and_a_named_file(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "hopsum"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[context]\ncontroller = "home:1"\n')
    assert complete(options(), {"HOME": str(tmp_path)}).controller == "home:1"
    named = tmp_path / "named.toml"
    named.write_text('[context]\ncontroller = "named:1"\n')
    assert complete(options(), {"HOME": str(tmp_path), "HOPSUM_CONFIG": str(named)}).controller == "named:1"
    with pytest.raises(ContextError, match=r"configuration /no/such\.toml cannot be read"):
        complete(options(), {"HOPSUM_CONFIG": "/no/such.toml"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[context]\nhost = "a"\n',
            r"config\.toml: \[context\] has no key 'host'; there are controller, admin_token_file",
        ),
        ("[context]\ncontroller = 4700\n", r"config\.toml: context\.controller is 4700: it is a text"),
        ('[context]\ntls = "on"\n', r"config\.toml: context\.tls is 'on': it is true or false"),
        ("context = 3\n", r"config\.toml: context is no table; write \[context\] above its keys"),
        ("[context\n", r"config\.toml cannot be read: "),
    ],
)
def test_a_file_that_does_not_fit_is_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ContextError, match=message):
        complete(options(), write(folder, text))


def test_a_variable_that_does_not_fit_is_named() -> None:
    with pytest.raises(ContextError, match="environment variable HOPSUM_TLS is 'maybe': it is true or false"):
        complete(options(), {"HOPSUM_TLS": "maybe"})


def test_the_place_is_the_contexts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name, value in write(folder, '[context]\ncontroller = "10.0.0.1:9"\nca_file = "ca.pem"\n').items():
        monkeypatch.setenv(name, value)
    address = address_of(options())
    assert (address.target, address.tls, address.ca_file) == ("10.0.0.1:9", True, folder / "ca.pem")


def test_workers_take_no_notice_of_it(folder: Path) -> None:
    environment = {variable(key): "x" for key in KEYS if key != "tls"} | {"HOPSUM_TLS": "1"}
    assert resolve(environment=environment) == hopsum.config.Config(ca_file="x", certificate_file="x", key_file="x")
    path = folder / "config.toml"
    path.write_text('[context]\ncontroller = "file:1"\n')
    assert resolve(file=path, environment={}) == hopsum.config.Config()
    path.write_text("[other]\n")
    with pytest.raises(ConfigError, match=r"has no table \[hopsum\]; it has other"):
        resolve(file=path, environment={})
