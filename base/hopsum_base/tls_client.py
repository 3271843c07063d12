# SPDX-License-Identifier: Apache-2.0
"""TLS of a gRPC client: its files, read for each connection, and the reason why a handshake fails."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

_PROBE_S = 2.0
Contents = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class TlsClientFiles:
    """PEM files: authorities of the server, None for the usual ones. Certificate and key of the client, both or none.

    All methods read the files: a renewed file is used from the next connection on.
    """

    ca: Path | None
    certificate: Path | None = None
    key: Path | None = None

    def contents(self) -> Contents:
        """Return authorities, key and certificate as gRPC takes them, None for each that is not set.

        Raises OSError for a file that cannot be read, and unless they fit each other.
        """
        self._context()
        ca, key, certificate = (
            None if file is None else file.read_bytes() for file in (self.ca, self.key, self.certificate)
        )
        return ca, key, certificate

    def handshake_failure(self, host: str, port: int) -> str:
        """Connect to a server, and return why the TLS handshake fails; empty where it works, or no server answers.

        Own files that cannot be read, or do not fit each other, are a reason too. It may take some seconds.
        """
        try:
            plain = socket.create_connection((host, port), _PROBE_S)
        # Nobody listens there, which is no matter of TLS.
        except OSError:
            return ""
        try:
            with plain, self._context().wrap_socket(plain, server_hostname=host) as secure:
                # HTTP/2 begins with the server's settings. A server of gRPC that refuses this client's certificate
                # closes the connection in place of them, and gives no reason.
                if not secure.recv(1):
                    return f"the server refuses the certificate of this client ({self.certificate or 'it has none'})"
        except OSError as error:  # ssl.SSLError among them
            # A server that is stopped says nothing, and its TLS may be in order.
            return "" if isinstance(error, TimeoutError) else str(error)
        return ""

    def days_left(self, host: str, port: int) -> float | None:
        """Connect to a server, and return the days until its certificate ends; None if no handshake succeeds."""
        try:
            plain = socket.create_connection((host, port), _PROBE_S)
            with plain, self._context().wrap_socket(plain, server_hostname=host) as secure:
                ends_at = str((secure.getpeercert() or {})["notAfter"])
        except (OSError, KeyError):
            return None
        return (ssl.cert_time_to_seconds(ends_at) - time.time()) / 86400

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        # gRPC refuses a server that does not agree on HTTP/2 in the TLS handshake.
        context.set_alpn_protocols(["h2"])
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key, lambda: "")
        return context
