# SPDX-License-Identifier: Apache-2.0
"""The context of operator commands: the controller and the files that options leave out, from the environment.

HOPSUM_CONTROLLER         its address, else 127.0.0.1:4700; hosts:// for that of a job by hosts:// on this host
HOPSUM_ADMIN_TOKEN_FILE   the file with the administrator's token
HOPSUM_CA_FILE, HOPSUM_CERTIFICATE_FILE, HOPSUM_KEY_FILE   of TLS, which workers read too
HOPSUM_TLS                true or false
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from hopsum.config import BOOLEANS
from hopsum.errors import HopsumError
from hopsum.hosts.children import ADDRESS_FILE, FOLDER, TOKEN_FILE
from hopsum_base.owned_folder import folders_in_use

DEFAULT_CONTROLLER: Final = "127.0.0.1:4700"
_OVER_HOSTS: Final = "hosts://"
KEYS: Final = ("controller", "admin_token_file", "ca_file", "certificate_file", "key_file", "tls")


class ContextError(HopsumError):
    """A variable of a command (HOPSUM_...) has a value that does not fit. The message names the variable."""


def variable_name(key: str) -> str:
    """Return the name of the environment variable of a key of KEYS: HOPSUM_CA_FILE for "ca_file"."""
    return f"HOPSUM_{key.upper()}"


def complete(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Return a copy of the options, in which the environment fills in for those of KEYS left out, None or empty.

    Without any `controller` is DEFAULT_CONTROLLER. For hosts:// it is the address of that job's controller, with its
    token file and without TLS. `environment` is that of the process unless given.

    Raises:
        ContextError: HOPSUM_TLS is neither true nor false, or hosts:// means no job, or several.
    """
    environment = os.environ if environment is None else environment
    made = argparse.Namespace(**vars(options))
    for key in KEYS:
        # An empty text is an option that a script filled from an unset variable.
        if getattr(made, key) in (None, "") and (text := environment.get(variable_name(key), "")):
            setattr(made, key, _flag(text, variable_name(key)) if key == "tls" else text)
    made.controller = made.controller or DEFAULT_CONTROLLER
    if made.controller.startswith(_OVER_HOSTS):
        made.controller, made.admin_token_file = _job_over_hosts(made.controller.removeprefix(_OVER_HOSTS))
        made.tls = False
    return made


def _job_over_hosts(wanted: str) -> tuple[str, Path]:
    """Return address and token file of the controller that this user's rank 0 of a job by hosts:// runs here.

    Args:
        wanted: the address, where there are several. Empty for the only one.
    """
    found = {}
    for folder in folders_in_use(FOLDER):
        # Other ranks have no controller, and rank 0 has none yet while it starts.
        with suppress(OSError):
            found[(folder / ADDRESS_FILE).read_text(encoding="ascii")] = folder / TOKEN_FILE
    there = ", ".join(f"{_OVER_HOSTS}{address}" for address in sorted(found))
    fitting = [wanted] if wanted in found else [] if wanted else [*found]
    if len(fitting) == 1:
        return fitting[0], found[fitting[0]]
    if fitting:
        raise ContextError(f"controller {_OVER_HOSTS}: there are {len(fitting)} jobs here: name one, of {there}")
    raise ContextError(
        f"controller {_OVER_HOSTS}{wanted}: no job of this user by hosts:// has its rank 0 on this host, with this "
        f"TMPDIR{f'; there are {there}' if there else ''}"
    )


def _flag(text: str, origin: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ContextError(f"environment variable {origin} is {text!r:.80}: it is true or false")
    return BOOLEANS[text.lower()]


def add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --controller, --admin-token-file and the options of TLS to a parser. An option that is left out is None."""
    group = parser.add_argument_group("controller", "Options left out come from the environment.")
    group.add_argument(
        "--controller",
        metavar="HOST:PORT",
        help=f"address of the controller, unix:PATH, or hosts:// on the host of rank 0 of such a job "
        f"({variable_name('controller')}; default {DEFAULT_CONTROLLER})",
    )
    group.add_argument(
        "--admin-token-file",
        type=Path,
        metavar="PATH",
        help=f"file with the administrator's token ({variable_name('admin_token_file')})",
    )
    group.add_argument(
        "--ca-file",
        metavar="PATH",
        help=f"CA certificate (PEM) to verify the controller; enables TLS ({variable_name('ca_file')})",
    )
    group.add_argument(
        "--certificate-file",
        metavar="PATH",
        help=f"client certificate (PEM), where the controller requires one ({variable_name('certificate_file')})",
    )
    group.add_argument(
        "--key-file", metavar="PATH", help=f"private key (PEM) of the client certificate ({variable_name('key_file')})"
    )
    group.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help=f"use TLS ({variable_name('tls')}; default: on with a TLS file or a controller on another machine)",
    )
