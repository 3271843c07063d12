# SPDX-License-Identifier: Apache-2.0
"""TLS of a client of P4Runtime: the authority of the switch, and the certificate by which the client is known to it.

The files are read for each session, so that new ones are used from the next one on.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hopsum_controlplane.errors import ControlPlaneError

_PROBE_S = 2.0


@dataclass(frozen=True)
class SwitchTls:
    """PEM files: the authority that certified the switch; certificate and key of the client, both or none."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Raise ControlPlaneError unless the files can be read and go together."""
        self._context()

    def contents(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return authority, key and certificate as gRPC takes them. Raises ControlPlaneError as `check`."""
        self.check()
        key, certificate = (None if file is None else file.read_bytes() for file in (self.key, self.certificate))
        # Read for each session: a renewed certificate is used from the next session on.
        return self.ca.read_bytes(), key, certificate

    def why_not(self, host: str, port: int) -> str:
        """Return why the handshake with a server fails, as far as a handshake beside gRPC's shows it; else empty."""
        try:
            plain = socket.create_connection((host, port), _PROBE_S)
            # A server that wants another certificate of this client says so after the handshake, or is silent.
            with plain, self._context().wrap_socket(plain, server_hostname=host) as secure, suppress(TimeoutError):
                secure.settimeout(_PROBE_S)
                secure.recv(1)
        except OSError as error:  # ssl.SSLError among them
            return str(error)
        return ""

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            # gRPC refuses a server that does not agree on HTTP/2 in the TLS handshake.
            context.set_alpn_protocols(["h2"])
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, lambda: "")
        except OSError as error:
            given = ", ".join(str(each) for each in (self.ca, self.certificate, self.key) if each)
            hint = "give authorities, and a certificate with its key without a password (PEM)"
            raise ControlPlaneError(f"TLS to the switch: {given}: {error}", hint=hint) from error
        return context


def no_answer(address: str, tls: SwitchTls | None) -> tuple[str, str]:
    """Return why a server did not answer, and what to do next, as far as can be found out."""
    host, _, port = address.rpartition(":")
    silent = "start the switch, or check the address"
    if address.startswith("unix:") or not port.isdigit():
        return "", silent
    try:
        socket.create_connection((host, int(port)), _PROBE_S).close()
    except OSError:
        return "", silent
    if tls is None:
        return "", f"something listens there: if it speaks TLS, give its authority (tls_ca); else {silent}"
    why = tls.why_not(host, int(port))
    told = f": TLS: {why}" if why else ""
    return told, "check tls_ca, the address in the switch's certificate, and that the switch knows this client's"
