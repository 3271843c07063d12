# SPDX-License-Identifier: Apache-2.0
"""Authentication: bearer tokens in a call's metadata, and the file with the administrator's."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hopsum_controlplane.cluster.errors import UnauthenticatedError
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire.control.services import BEARER

MIN_TOKEN_CHARACTERS: Final = 16
MAX_TOKEN_CHARACTERS: Final = 256
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the token of a call, empty if it has none that could be one."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            token = value.removeprefix(BEARER)
            return token if len(token) <= MAX_TOKEN_CHARACTERS else ""
    return ""


class AdminAuth:
    """Knows the administrator by a token; without one, everybody who gets here is."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    @property
    def required(self) -> bool:
        """Return whether a token is asked for."""
        return self._token is not None

    def require(self, token: str) -> None:
        """Raise UnauthenticatedError unless the token is the administrator's."""
        if self._token is not None and not hmac.compare_digest(self._token.encode(), token.encode()):
            told = "another token than the administrator's" if token else "no token"
            raise UnauthenticatedError(
                f"jobs are for the administrator, and this call has {told}",
                hint="give the file that the controller's admin_token_file names",
            )


class SwitchAuth:
    """Knows the switches that may register by the token that they share; without one, none may."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def require(self, token: str) -> None:
        """Raise UnauthenticatedError unless the token is that of the switches."""
        if self._token is None:
            raise UnauthenticatedError(
                "this controller takes no switches that register",
                hint="give its configuration a switch_token_file, and start it again",
            )
        if not hmac.compare_digest(self._token.encode(), token.encode()):
            told = "another token than that for switches" if token else "no token"
            raise UnauthenticatedError(
                f"switches register with the token for switches, and this call has {told}",
                hint="give the file that the controller's switch_token_file names",
            )


def read_token(path: Path, setting: str) -> str:
    """Return what a file holds that only its owner can read; `setting` names it.

    Raises ControlPlaneError when it cannot be read, others can read it, or it holds no token.
    """
    what = setting.removesuffix("_file").replace("_", " ")
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4 * MAX_TOKEN_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ControlPlaneError(f"{what} file {path} cannot be read: {error}", hint=f"see {setting}") from error
    if mode & _OTHERS:
        raise ControlPlaneError(
            f"{what} file {path} has mode {stat.S_IMODE(mode):04o}: others can read it",
            hint=f"chmod 600 {path}, and write a new token",
        )
    if not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise ControlPlaneError(
            f"{what} file {path} holds {len(token)} characters, not one word of "
            f"{MIN_TOKEN_CHARACTERS} .. {MAX_TOKEN_CHARACTERS}",
            hint="write one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`",
        )
    return token
