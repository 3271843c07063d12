# SPDX-License-Identifier: Apache-2.0
"""TLS of a gRPC server: its certificate, replaced while the server runs, and the names of clients that may call."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hopsum_base.private_files import read_private
from hopsum_base.quiet_grpc import grpc

_DAY_S: Final = 86400.0
# As of the alarm HopsumCertificateEnds.
_SOON_S: Final = 14 * _DAY_S
_NO_PASSWORD: Final = b""
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module `ssl` has no name for."""


def read_client_names(path: Path, error: type[Exception]) -> frozenset[str]:
    """Return the common names of clients that may call: one a line, but for empty lines and those that begin with #.

    Raises `error` when the file cannot be read.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as refusal:
        raise error(f"TLS: names {path} cannot be read: {refusal}") from refusal
    return frozenset(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True)
class TlsServerFiles:
    """PEM files: certificate and key of the server, and the authorities that certify clients, if these are asked."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class _Content:
    """Contents of the files of a server. `ends_at_s` is the end of the certificate, in unix seconds."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    ends_at_s: float

    def configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.client_ca)


class ServerCredentials:
    """Credentials of a gRPC server that read their files once, and again at `prepare`.

    Connections that are open keep the certificate that they began with. Raises `error` for files that cannot be read,
    that others can read, that do not belong together, or whose certificate has ended.
    """

    def __init__(self, files: TlsServerFiles, error: type[Exception]) -> None:
        self.files, self._error = files, error
        self._now = self._given = _read(files, error)
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._now.configuration(), self._next, require_client_authentication=files.client_ca is not None
        )

    @property
    def ends_at_s(self) -> float:
        """Return when the certificate ends, in unix seconds."""
        return self._now.ends_at_s

    def expiry_warning(self) -> str:
        """Return a text that the certificate ends within 14 days, with a remedy; empty while it does not."""
        left_s = self.ends_at_s - time.time()
        if left_s > _SOON_S:
            return ""
        when = f"in {left_s / _DAY_S:.0f} days" if left_s >= _DAY_S else f"in {max(left_s, 0) / 3600:.1f} hours"
        return (
            f"the certificate {self.files.certificate} ends {when}, at {_utc(self.ends_at_s)}: replace it, then SIGHUP"
        )

    def prepare(self, files: TlsServerFiles) -> tuple[TlsServerFiles, _Content]:
        """Read and check the files for `use`, and change nothing yet. Raises an error as construction does."""
        return files, _read(files, self._error)

    def use(self, prepared: tuple[TlsServerFiles, _Content]) -> None:
        """Use prepared files and their certificate for new connections."""
        self.files, self._now = prepared

    def _next(self) -> Any:
        """Return the certificate of a new connection, None for the one before. Called by a thread of gRPC's."""
        # One read of the attribute: `use` may replace it in another thread.
        now = self._now
        if now is self._given:
            return None
        self._given = now
        return now.configuration()


def _read(files: TlsServerFiles, error: type[Exception]) -> _Content:
    key = read_private(files.key, "TLS: key", error)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        certificate = files.certificate.read_bytes()
        authorities = None if files.client_ca is None else files.client_ca.read_bytes()
    except OSError as refusal:
        raise error(f"TLS: {refusal}") from refusal
    try:
        server.load_cert_chain(files.certificate, files.key, lambda: _NO_PASSWORD)
    except OSError as refusal:  # ssl.SSLError among them
        raise error(
            f"TLS: certificate {files.certificate} and key {files.key} do not go together: {refusal}; "
            "give a certificate (PEM), and its key (PEM) without a password"
        ) from refusal
    if authorities is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=files.client_ca)
        except ssl.SSLError as refusal:
            raise error(f"TLS: {files.client_ca} has no certificates: {refusal}") from refusal
    ends_at_s = _end_of(server, files.certificate)
    if ends_at_s <= time.time():
        raise error(
            f"TLS: certificate {files.certificate} ended at {_utc(ends_at_s)}: no client would take it; "
            "make another one at the same path"
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
