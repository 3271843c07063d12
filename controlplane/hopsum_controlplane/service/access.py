# SPDX-License-Identifier: Apache-2.0
"""Authentication: bearer tokens in a call's metadata, and the file with the administrator's."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from hopsum_controlplane.errors import UnauthenticatedError
from hopsum_controlplane.token_files import MAX_TOKEN_CHARACTERS, AdminToken
from hopsum_wire.control.services import BEARER

ANYBODY: Final = "anybody"


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the token of a call, empty if it has none that could be one."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            token = value.removeprefix(BEARER)
            return token if len(token) <= MAX_TOKEN_CHARACTERS else ""
    return ""


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
