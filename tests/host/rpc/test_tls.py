# SPDX-License-Identifier: Apache-2.0
"""TLS: who has the certificate is talked to, nobody else, and clients are asked for theirs where that is wanted."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerUnreachableError, TlsError
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient
from hopsum_base.tls_client import TlsClientFiles
from hopsum_base.tls_server import ServerCredentials, TlsServerFiles
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service

from .desk import NAME, TOKEN, Desk, LockedSwitch

DEADLINE_S = 60.0
_openssl = shutil.which("openssl")
pytestmark = pytest.mark.skipif(_openssl is None, reason="no openssl command to make certificates with")


@dataclass
class Authority:
    """Certifies in a folder of its own."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.certificate, self._key = self.folder / f"{self.name}.pem", self.folder / f"{self.name}.key"
        self._run("req", "-x509", *self._new_key(self._key), "-out", self.certificate, "-subj", f"/CN={self.name}")

    def certify(self, name: str, *, alternative: str = "IP:127.0.0.1") -> tuple[Path, Path]:
        """Return certificate and key of `name`."""
        certificate, key, request = (self.folder / f"{self.name}-{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n")
        self._run("req", *self._new_key(key), "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2")
        self._run("x509", "-req", "-in", request, *signed, "-extfile", extensions, "-out", certificate)
        return certificate, key

    def _new_key(self, path: Path) -> tuple[str | Path, ...]:
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout", path

    def _run(self, *arguments: str | Path) -> None:
        done = subprocess.run([str(_openssl), *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def other(authority: Authority) -> Authority:
    return Authority(authority.folder, "theirs")


@pytest.fixture
def desk() -> Iterator[Desk]:
    with LockedSwitch() as switch:
        yield Desk(switch)


def _locate(place: ControllerAddress) -> int:
    with Channel(place) as channel:
        return MemberClient(channel, NAME, TOKEN).locate(1.0).workers


def test_the_certificate_is_checked(desk: Desk, authority: Authority, other: Authority) -> None:
    certificate, key = authority.certify("controller")
    with Service(desk, "127.0.0.1:0", safeguards=Safeguards(tls=TlsServerFiles(certificate, key))) as service:
        assert _locate(ControllerAddress.of(service.address, ca_file=authority.certificate)) == 2
        for place in (
            ControllerAddress.of(service.address, ca_file=other.certificate),
            ControllerAddress.of(service.address, tls=True),
        ):
            with pytest.raises(ControllerUnreachableError, match=r"TLS: .*CERTIFICATE_VERIFY_FAILED.*renew the files"):
                _locate(place)
        without_tls = ControllerAddress.of(service.address)
        with pytest.raises(ControllerUnreachableError, match="asked as it listens"):
            _locate(without_tls)


def test_a_certificate_for_another_name_is_none(desk: Desk, authority: Authority) -> None:
    certificate, key = authority.certify("elsewhere", alternative="IP:192.0.2.1")
    with (
        Service(desk, "127.0.0.1:0", safeguards=Safeguards(tls=TlsServerFiles(certificate, key))) as service,
        pytest.raises(ControllerUnreachableError),
    ):
        _locate(ControllerAddress.of(service.address, ca_file=authority.certificate))


def test_clients_are_asked_for_theirs(desk: Desk, authority: Authority, other: Authority) -> None:
    certificate, key = authority.certify("controller")
    tls = TlsServerFiles(certificate, key, client_ca=authority.certificate)
    with Service(desk, "127.0.0.1:0", safeguards=Safeguards(tls=tls)) as service:
        known, known_key = authority.certify("worker")
        stranger, stranger_key = other.certify("worker")
        ca = authority.certificate
        assert (
            _locate(ControllerAddress.of(service.address, ca_file=ca, certificate_file=known, key_file=known_key)) == 2
        )
        with pytest.raises(ControllerUnreachableError, match=r"refuses the certificate of this client \(it has none\)"):
            _locate(ControllerAddress.of(service.address, ca_file=ca))
        with pytest.raises(ControllerUnreachableError, match=r"refuses the certificate of this client \(.*theirs"):
            _locate(ControllerAddress.of(service.address, ca_file=ca, certificate_file=stranger, key_file=stranger_key))


def test_renewed_files_are_used_by_a_channel_that_was_opened_before(
    desk: Desk, authority: Authority, other: Authority, tmp_path: Path
) -> None:
    """The authority of server and clients is another one at the controller's next start."""
    ca, certificate, key = tmp_path / "ca.pem", tmp_path / "worker.pem", tmp_path / "worker.key"

    def certify(by: Authority, authorities: bytes) -> Safeguards:
        """Renew the worker's files, and return the controller's."""
        ca.write_bytes(authorities)
        for mine, made in zip((certificate, key), by.certify("worker"), strict=True):
            shutil.copy(made, mine)
        return Safeguards(tls=TlsServerFiles(*by.certify("controller"), client_ca=by.certificate))

    safeguards = certify(authority, authority.certificate.read_bytes())
    with Service(desk, "127.0.0.1:0", safeguards=safeguards) as service:
        address = service.address
        channel = Channel(ControllerAddress.of(address, ca_file=ca, certificate_file=certificate, key_file=key))
        member = MemberClient(channel, NAME, TOKEN)
        assert member.locate(DEADLINE_S).workers == 2
    with channel:
        safeguards = certify(other, authority.certificate.read_bytes() + other.certificate.read_bytes())
        with Service(desk, address, safeguards=safeguards):
            assert member.locate(DEADLINE_S).workers == 2
            ca.write_text("a file that is being written")
        # Files that do not fit just now leave the connection as it is.
        with pytest.raises(ControllerUnreachableError):
            member.locate(0.5)


def test_a_controller_that_is_away_is_no_matter_of_tls(authority: Authority) -> None:
    """A worker that TLS shuts out for a lease gives up, and one whose controller is stopped or gone does not."""
    lease = object.__new__(Lease)
    lease._registration = SimpleNamespace(rank=0, lease_s=0.0, heartbeat_s=1.0)  # type: ignore[assignment]
    lease._silent_since = lease._no_tls = None
    lease._note_silence(ControllerUnreachableError("", "UNAVAILABLE", "certificate has expired"))
    assert lease.lost_by_tls == "certificate has expired"
    lease._note_silence(ControllerUnreachableError("", "UNAVAILABLE"))
    assert lease.lost_by_tls == ""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        assert TlsClientFiles(authority.certificate).handshake_failure(*stopped.getsockname()) == ""


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(TlsError, match="do not fit"):
        Channel(ControllerAddress.of("127.0.0.1:1", ca_file=tmp_path / "ca.pem"))
    with pytest.raises(TlsError, match="cannot be read"):
        Channel(ControllerAddress.of("127.0.0.1:1", ca_file=tmp_path / "none.pem"))
    with pytest.raises(ControlPlaneError, match=r"none\.key.*cannot be read"):
        ServerCredentials(TlsServerFiles(tmp_path / "none.pem", tmp_path / "none.key"), ControlPlaneError)


def test_tls_goes_without_saying_where_secrets_leave_the_machine() -> None:
    for target, tls in (
        ("127.0.0.1:4700", False),
        ("localhost:4700", False),
        ("[::1]:4700", False),
        ("unix:/run/hopsum.socket", False),
        ("10.0.0.1:4700", True),
        ("controller:4700", True),
    ):
        assert ControllerAddress.of(target).tls is tls, target
    assert not ControllerAddress.of("10.0.0.1:4700", tls=False).tls
