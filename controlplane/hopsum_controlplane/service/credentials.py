# SPDX-License-Identifier: Apache-2.0
"""The certificates of the service, which can be replaced while it serves."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.token_files import read_private
from hopsum_wire.quiet_grpc import grpc

_DAY_S: Final = 86400.0
# As of the alarm HopsumCertificateEnds.
_SOON_S: Final = 14 * _DAY_S
_NO_PASSWORD: Final = b""
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module `ssl` has no name for."""


def read_names(path: Path) -> frozenset[str]:
    """Return the common names of clients that may call: one a line, but for empty lines and those that begin with #.

    Raises ControlPlaneError when the file cannot be read.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ControlPlaneError(f"TLS: names {path} cannot be read: {error}", hint="see tls_client_names") from error
    return frozenset(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True)
class Tls:
    """PEM files: certificate and key of the server, and the authorities that certify clients, if these are asked."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class _Content:
    """Contents of the files of a Tls. `ends_at_s` is the end of the certificate, in unix seconds."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    ends_at_s: float

    def configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.client_ca)


class ServerCredentials:
    """Credentials of a gRPC server that read their files once, and again at `prepare`.

    Connections that are open keep the certificate that they began with. Raises ControlPlaneError for files that cannot
    be read, that others can read, or that do not belong together.
    """

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self._now = self._given = _read(tls)
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._now.configuration(), self._next, require_client_authentication=tls.client_ca is not None
        )

    @property
    def ends_at_s(self) -> float:
        """Return when the certificate ends, in unix seconds."""
        return self._now.ends_at_s

    def notice(self) -> str:
        """Say that the certificate ends soon, an empty string while it does not."""
        left_s = self.ends_at_s - time.time()
        if left_s > _SOON_S:
            return ""
        when = f"in {left_s / _DAY_S:.0f} days" if left_s >= _DAY_S else f"in {max(left_s, 0) / 3600:.1f} hours"
        return f"the certificate {self.tls.certificate} ends {when}, at {_utc(self.ends_at_s)}: replace it, then SIGHUP"

    def prepare(self, tls: Tls) -> tuple[Tls, _Content]:
        """Read the files for `use`.

        Raises ControlPlaneError as construction does, or when clients are asked for certificates from now on, or not
        any more: the credentials are the old ones then.
        """
        if (tls.client_ca is None) != (self.tls.client_ca is None):
            raise ControlPlaneError(
                "whether clients need a certificate (tls_client_ca) cannot change while the service runs",
                hint="start the controller again: jobs continue meanwhile",
            )
        return tls, _read(tls)

    def use(self, prepared: tuple[Tls, _Content]) -> None:
        """Use prepared TLS settings and their certificate for new connections."""
        self.tls, self._now = prepared

    def _next(self) -> Any:
        """Return the certificate of a new connection, None for the one before. Called by a thread of gRPC's."""
        # One read of the attribute: `use` may replace it in another thread.
        now = self._now
        if now is self._given:
            return None
        self._given = now
        return now.configuration()


def _read(tls: Tls) -> _Content:
    key = read_private(tls.key, "TLS: key", "tls_key")
    try:
        certificate = tls.certificate.read_bytes()
        authorities = None if tls.client_ca is None else tls.client_ca.read_bytes()
    except OSError as error:
        raise ControlPlaneError(f"TLS: {error}", hint="see tls_certificate and tls_client_ca") from error
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(tls.certificate, tls.key, lambda: _NO_PASSWORD)
    except (ssl.SSLError, OSError) as error:
        raise ControlPlaneError(
            f"TLS: certificate {tls.certificate} and key {tls.key} do not go together: {error}",
            hint="give a certificate (PEM), and its key (PEM) without a password",
        ) from error
    if authorities is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=tls.client_ca)
        except ssl.SSLError as error:
            raise ControlPlaneError(
                f"TLS: {tls.client_ca} has no certificates: {error}", hint="see tls_client_ca"
            ) from error
    ends_at_s = _end_of(server, tls.certificate)
    if ends_at_s <= time.time():
        raise ControlPlaneError(
            f"TLS: certificate {tls.certificate} ended at {_utc(ends_at_s)}: no client would take it",
            hint="make another one at the same path",
        )
    return _Content(certificate, key, authorities, ends_at_s)


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def _end_of(server: ssl.SSLContext, certificate: Path) -> float:
    """Return when the certificate of a server ends, as a client in this process finds it, in unix seconds."""
    # The module `ssl` parses a certificate only for the other side of a connection: a handshake in memory makes one.
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cafile=certificate)
    # The certificate vouches for itself, whether it has ended or not.
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    # Three turns of a TLS 1.3 handshake: hello, certificate, finished.
    for each in (theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            each.do_handshake()
    found = theirs.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
