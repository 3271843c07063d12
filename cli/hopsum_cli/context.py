# SPDX-License-Identifier: Apache-2.0
"""The context of operator commands: the controller and the files that options leave out.

Each value is the command's option, else its environment variable, else its key in the table [context] of a file::

    [context]
    controller = "10.0.0.1:4700"                # HOPSUM_CONTROLLER, else 127.0.0.1:4700
    admin_token_file = "admin.token"            # HOPSUM_ADMIN_TOKEN_FILE
    ca_file = "ca.pem"                          # HOPSUM_CA_FILE, which workers read too
    certificate_file = "operator.pem"           # HOPSUM_CERTIFICATE_FILE, likewise
    key_file = "operator.key"                   # HOPSUM_KEY_FILE, likewise
    tls = true                                  # HOPSUM_TLS, true or false

The file is the one that HOPSUM_CONFIG names, else `hopsum/config.toml` in XDG_CONFIG_HOME or ~/.config, if it exists.
Paths in the file are relative to its folder. A controller and its token and certificates belong together: a command
that names its controller by the option takes nothing from the file, only from the environment.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hopsum.config import BOOLEANS, FILE_VARIABLE
from hopsum.errors import HopsumError

DEFAULT_CONTROLLER: Final = "127.0.0.1:4700"
TABLE: Final = "context"
_FILES: Final = ("admin_token_file", "ca_file", "certificate_file", "key_file")
KEYS: Final = ("controller", *_FILES, "tls")


class ContextError(HopsumError):
    """A context that cannot be read, or a value in it that does not fit. The message says where it came from."""


def variable(key: str) -> str:
    """Return the environment variable of a key of KEYS."""
    return f"HOPSUM_{key.upper()}"


def complete(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Return a copy of the options in which the context stands for what was left out, None or empty.

    Raises:
        ContextError: a file that cannot be read, an unknown key, or a value that does not fit.
    """
    environment = os.environ if environment is None else environment
    made = argparse.Namespace(**vars(options))
    # A token is not sent to another controller than its own: the file's belongs to the file's controller.
    context = read_context(environment, with_file=not options.controller)
    for key in KEYS:
        # An empty text is an option that a script filled from an unset variable.
        if getattr(made, key) in (None, ""):
            setattr(made, key, context.get(key))
    made.controller = made.controller or DEFAULT_CONTROLLER
    return made


def read_context(environment: Mapping[str, str], *, with_file: bool = True) -> dict[str, Any]:
    """Return the values of the environment and of the file, by key: texts, and `tls` as bool. Raises ContextError."""
    found = _from_file(environment) if with_file else {}
    # The environment comes after the file, because it has priority.
    for key in KEYS:
        text = environment.get(variable(key), "")
        if text:
            found[key] = _flag(text, variable(key)) if key == "tls" else text
    return found


def _from_file(environment: Mapping[str, str]) -> dict[str, Any]:
    path = _path(environment)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContextError(f"configuration {path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ContextError(f"configuration {path}: {TABLE} is no table; write [{TABLE}] above its keys")
    for key, value in table.items():
        if key not in KEYS:
            raise ContextError(f"configuration {path}: [{TABLE}] has no key {key!r}; there are {', '.join(KEYS)}")
        # TOML has types, so a quoted "true" is an error here. The environment has only texts.
        if not isinstance(value, bool if key == "tls" else str):
            kind = "true or false" if key == "tls" else "a text"
            raise ContextError(f"configuration {path}: {TABLE}.{key} is {value!r:.80}: it is {kind}")
    return {
        key: str(path.parent / Path(value).expanduser()) if key in _FILES and value else value
        for key, value in table.items()
    }


def _path(environment: Mapping[str, str]) -> Path | None:
    """Return the file, which exists unless HOPSUM_CONFIG names it, or None without one."""
    # A file that somebody names has to exist; the one at the usual place need not.
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    home = environment.get("HOME", "")
    folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    path = Path(folder) / "hopsum" / "config.toml"
    return path if folder and path.is_file() else None


def _flag(text: str, origin: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ContextError(f"environment variable {origin} is {text!r:.80}: it is true or false")
    return BOOLEANS[text.lower()]


def add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --controller, --admin-token-file and the options of TLS to a parser. An option that is left out is None."""
    group = parser.add_argument_group(
        "controller", "Options left out come from the environment, then from [context] of ~/.config/hopsum/config.toml."
    )
    group.add_argument(
        "--controller",
        metavar="HOST:PORT",
        help=f"address of the controller, or unix:PATH ({variable('controller')}; default {DEFAULT_CONTROLLER})",
    )
    group.add_argument(
        "--admin-token-file",
        type=Path,
        metavar="PATH",
        help=f"file with the administrator's token ({variable('admin_token_file')})",
    )
    group.add_argument(
        "--ca-file",
        metavar="PATH",
        help=f"CA certificate (PEM) to verify the controller; enables TLS ({variable('ca_file')})",
    )
    group.add_argument(
        "--certificate-file",
        metavar="PATH",
        help=f"client certificate (PEM), where the controller requires one ({variable('certificate_file')})",
    )
    group.add_argument(
        "--key-file", metavar="PATH", help=f"private key (PEM) of the client certificate ({variable('key_file')})"
    )
    group.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help=f"use TLS ({variable('tls')}; default: on with a TLS file or a controller on another machine)",
    )
