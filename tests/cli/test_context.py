# SPDX-License-Identifier: Apache-2.0
"""Tests of the context of operator commands: options before the environment before the file."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import hopsum
from hopsum.config import ConfigError, resolve
from hopsum_cli.context import KEYS, ContextError, add_operator_arguments, complete, variable
from hopsum_cli.operator import address_of


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
