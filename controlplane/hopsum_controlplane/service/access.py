# SPDX-License-Identifier: Apache-2.0
"""Authentication: bearer tokens in a call's metadata, and the file with the administrator's."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hopsum_base.tls_server import TlsServerFiles
from hopsum_base.token_files import MAX_TOKEN_CHARACTERS, AdminToken
from hopsum_controlplane.errors import UnauthenticatedError
from hopsum_wire.control.services import BEARER

ANYBODY: Final = "anybody"


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the bearer token of a call's metadata, empty without one, or if it is too long for a token."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            token = value.removeprefix(BEARER)
            return token if len(token) <= MAX_TOKEN_CHARACTERS else ""
    return ""


class Safeguards(NamedTuple):
    """The means that keep strangers out of a service: TLS files, tokens, and names in clients' certificates."""

    tls: TlsServerFiles | None = None
    """None: secrets pass in the clear."""
    admin_tokens: Sequence[AdminToken] = ()
    """Tokens of administrators. Without one, every caller is an administrator."""
    client_names: frozenset[str] | None = None
    """Common names of certificates whose clients may call, None where all may."""


class Access:
    """Decides which clients may call a service, by `safeguards`, which a reload replaces as a whole."""

    def __init__(self, safeguards: Safeguards) -> None:
        self.safeguards = safeguards

    def require_admin(self, token: str) -> str:
        """Return the name of the administrator with this token, ANYBODY where the service has no such tokens.

        Raises UnauthenticatedError unless the token is an administrator's.
        """
        tokens = self.safeguards.admin_tokens
        if not tokens:
            return ANYBODY
        names = [each.name for each in tokens if hmac.compare_digest(each.token.encode(), token.encode())]
        if not names:
            told = "another token than the administrator's" if token else "no token"
            raise UnauthenticatedError(
                f"jobs are for the administrator, and this call has {told}",
                hint="give the file that the controller's admin_token_file names",
            )
        return names[0]

    def require_certificate(self, certificate: str) -> None:
        """Raise UnauthenticatedError unless the client of a certificate may call.

        `certificate` is its common name, empty without one. Where no names are configured, every client may call.
        """
        names = self.safeguards.client_names
        if names is not None and certificate not in names:
            raise UnauthenticatedError(
                f"certificate {certificate!r} is not among the names that may call this controller",
                hint="take a certificate with another name, or have its name written into the file of tls_client_names",
            )
