# SPDX-License-Identifier: Apache-2.0
"""Authentication: bearer tokens in a call's metadata, and the file with the administrator's."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopsum_controlplane.errors import ControlPlaneError, UnauthenticatedError
from hopsum_controlplane.service.credentials import read_private
from hopsum_wire.control.services import BEARER

MIN_TOKEN_CHARACTERS: Final = 16
MAX_TOKEN_CHARACTERS: Final = 256
MAX_TOKENS: Final = 64
MAX_NAME_CHARACTERS: Final = 64
ADMINISTRATOR: Final = "administrator"
"""Name of who has a token without a name."""
ANYBODY: Final = "anybody"
_MAKE_ONE: Final = "write one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the token of a call, empty if it has none that could be one."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            token = value.removeprefix(BEARER)
            return token if len(token) <= MAX_TOKEN_CHARACTERS else ""
    return ""


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token of an administrator, and the name of its holder."""

    token: str
    name: str = ADMINISTRATOR


class AdminAuth:
    """Checks the bearer tokens of administrators against `tokens`, which a reload replaces.

    Without tokens every caller is an administrator.
    """

    def __init__(self, tokens: Sequence[AdminToken] = ()) -> None:
        self.tokens = tuple(tokens)

    @property
    def required(self) -> bool:
        """Return whether a token is asked for."""
        return bool(self.tokens)

    def require(self, token: str) -> str:
        """Return the name of the administrator with this token, "anybody" where none is asked for.

        Raises UnauthenticatedError unless the token is an administrator's.
        """
        if not self.tokens:
            return ANYBODY
        names = [each.name for each in self.tokens if hmac.compare_digest(each.token.encode(), token.encode())]
        if not names:
            told = "another token than the administrator's" if token else "no token"
            raise UnauthenticatedError(
                f"jobs are for the administrator, and this call has {told}",
                hint="give the file that the controller's admin_token_file names",
            )
        return names[0]


class CertificateAuth:
    """Knows clients by the common names of their certificates; without `names`, which may be replaced, all may call."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.names = names

    def require(self, certificate: str) -> None:
        """Raise UnauthenticatedError unless the client of a certificate may call."""
        if self.names is not None and certificate not in self.names:
            raise UnauthenticatedError(
                f"certificate {certificate!r} is not among the names that may call this controller",
                hint="take a certificate with another name, or have its name written into the file of tls_client_names",
            )


class SwitchAuth:
    """Knows the switches that may register by the `token` that they share. Without one, none may register."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token

    def require(self, token: str) -> None:
        """Raise UnauthenticatedError unless the token is that of the switches."""
        if self.token is None:
            raise UnauthenticatedError(
                "this controller takes no switches that register",
                hint="give its configuration a switch_token_file, and start it again",
            )
        if not hmac.compare_digest(self.token.encode(), token.encode()):
            told = "another token than that for switches" if token else "no token"
            raise UnauthenticatedError(
                f"switches register with the token for switches, and this call has {told}",
                hint="give the file that the controller's switch_token_file names",
            )


def read_token(path: Path, setting: str) -> str:
    """Return the first token of a file, see `read_tokens`. Raises ControlPlaneError."""
    return read_tokens(path, setting)[0].token


def read_admin_tokens(path: Path) -> tuple[AdminToken, ...]:
    """Return the tokens of the file of administrators. Raises ControlPlaneError."""
    return read_tokens(path, "admin_token_file")


def read_tokens(path: Path, setting: str) -> tuple[AdminToken, ...]:
    """Return what a file holds that only its owner can read: a token a line, each with a name before it or without.

    All of them are valid, so that one replaces another without a moment in which neither is known to somebody.
    `setting` names the file. Raises ControlPlaneError when it cannot be read, others can read it, or has no token.
    """
    what = f"{setting.removesuffix('_file').replace('_', ' ')} file"
    content = read_private(path, what, setting)
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise ControlPlaneError(f"{what} {path} cannot be read: {error}", hint=_MAKE_ONE) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(numbered) <= MAX_TOKENS:
        raise ControlPlaneError(f"{what} {path} holds {len(numbered)} tokens, not 1 .. {MAX_TOKENS}", hint=_MAKE_ONE)
    return tuple(_admin_token(line, f"{what} {path}, line {number}") for number, line in numbered)


def _admin_token(line: str, where: str) -> AdminToken:
    """Read TOKEN or NAME TOKEN. Raises ControlPlaneError, whose message does not show the line."""
    *names, token = line.split(" ")
    if len(names) > 1 or not line.isprintable() or not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise ControlPlaneError(
            f"{where} holds {len(line)} characters, not one word of {MIN_TOKEN_CHARACTERS} .. {MAX_TOKEN_CHARACTERS}, "
            "or a name and such a word",
            hint=_MAKE_ONE,
        )
    return AdminToken(token, *(name[:MAX_NAME_CHARACTERS] for name in names))
