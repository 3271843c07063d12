# SPDX-License-Identifier: Apache-2.0
"""TLS of a client of P4Runtime: the authority of the switch, and the certificate by which the client is known to it.

The files are read for each session, so that new ones are used from the next one on.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

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

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """Return a channel to the switch. Raises ControlPlaneError as `check`."""
        self.check()
        certificate = None if self.certificate is None else self.certificate.read_bytes()
        key = None if self.key is None else self.key.read_bytes()
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), key, certificate)
        return grpc.secure_channel(address, credentials, options)

    def why_not(self, host: str, port: int) -> str:
        """Return why the handshake with a server fails, as far as a handshake beside gRPC's shows it; else empty."""
        try:
            with socket.create_connection((host, port), _PROBE_S) as plain:
                plain.settimeout(_PROBE_S)
                with self._context().wrap_socket(plain, server_hostname=host) as secure:
                    with suppress(TimeoutError):  # a server that wants another certificate of us says so afterwards
                        secure.recv(1)
        except OSError as error:  # ssl.SSLError among them
            return str(error)
        return ""

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            context.set_alpn_protocols(["h2"])
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, lambda: "")
        except OSError as error:
            given = ", ".join(str(each) for each in (self.ca, self.certificate, self.key) if each)
            hint = "give authorities, and a certificate with its key without a password (PEM)"
            raise ControlPlaneError(f"TLS to the switch: {given}: {error}", hint=hint) from error
        return context


def open_channel(address: str, options: Sequence[tuple[str, Any]], tls: SwitchTls | None) -> grpc.Channel:
    """Return a channel to a switch, with TLS where its files are given. Raises ControlPlaneError for these."""
    return grpc.insecure_channel(address, options) if tls is None else tls.channel(address, options)


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
