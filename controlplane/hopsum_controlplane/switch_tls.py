# SPDX-License-Identifier: Apache-2.0
"""TLS of a client of P4Runtime: the authority of the switch, and the certificate by which the client is known to it.

The files are read for each session, so that new ones are used from the next one on.
"""

from __future__ import annotations

import socket

from hopsum_base.tls_client import Contents, TlsClientFiles
from hopsum_controlplane.errors import ControlPlaneError

_PROBE_S = 2.0


class SwitchTls(TlsClientFiles):
    """PEM files: the authority that certified the switch; certificate and key of the client, both or none."""

    __slots__ = ()

    def check(self) -> None:
        """Read the files. Raises ControlPlaneError unless they can be read and belong together."""
        self.contents()

    def contents(self) -> Contents:
        """Read and return authority, key and certificate as gRPC takes them. Raises ControlPlaneError as `check`."""
        try:
            return super().contents()
        except OSError as error:
            given = ", ".join(str(each) for each in (self.ca, self.certificate, self.key) if each)
            hint = "give authorities, and a certificate with its key without a password (PEM)"
            raise ControlPlaneError(f"TLS to the switch: {given}: {error}", hint=hint) from error


def diagnose_unreachable(address: str, tls: SwitchTls | None) -> tuple[str, str]:
    """Connect to a server that did not answer, and return the reason, if one is found, and a remedy.

    The connection is by TCP, and with `tls` by TLS too. It takes seconds at most. The reason begins with ": ", and is
    empty where none is found.
    """
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
    why = tls.handshake_failure(host, int(port))
    told = f": TLS: {why}" if why else ""
    return told, "check tls_ca, the address in the switch's certificate, and that the switch knows this client's"
