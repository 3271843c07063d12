# SPDX-License-Identifier: Apache-2.0
"""The gRPC server: where it listens, with which certificate, on how many threads."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from hopsum.rpc.channel import UNIX, is_local
from hopsum.rpc.services import JOBS, MESSAGE_BYTES_MAX, WORKERS
from hopsum_controlplane.cluster.config import ClusterConfig
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.access import Administrator, read_admin_token
from hopsum_controlplane.service.handlers import handler_of
from hopsum_controlplane.service.jobs import Jobs
from hopsum_controlplane.service.workers import Workers

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.manager import Manager

THREADS: Final = 32
WAITS: Final = 16
"""Threads that may wait for memberships; the others are for what is answered at once."""
CALLS_MAX: Final = 1024
"""In progress or queued; more are refused with RESOURCE_EXHAUSTED."""
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second controller at the same port is an error, not a half of the calls
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 8 << 10),
)
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tls:
    """PEM files: certificate and key of the server, and the authorities that certify clients, if these are asked."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Service:
    """Serves a manager from construction until `close`.

    Args:
        listen: HOST:PORT, port 0 for any, or unix:PATH, which only this user can then reach.
        tls: None: secrets pass in the clear.
        admin_token: of who may make and delete jobs; None only where nobody of another machine gets here.

    Raises:
        ControlPlaneError: the address cannot be had, a file cannot be read, or everybody could delete jobs.
    """

    def __init__(
        self,
        manager: Manager,
        listen: str,
        *,
        tls: Tls | None = None,
        admin_token: str | None = None,
        threads: int = THREADS,
        waits: int = WAITS,
    ) -> None:
        _require_token(listen, admin_token)
        credentials = None if tls is None else _credentials(tls)
        self._workers = Workers(manager, waits=waits)
        jobs = Jobs(manager, Administrator(admin_token))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hopsum-service")
        self._server = grpc.server(self._pool, options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        self._server.add_generic_rpc_handlers(
            (handler_of(WORKERS, self._workers.answers()), handler_of(JOBS, jobs.answers()))
        )
        self.address = self._bind(listen, credentials)
        """Where it listens, with the port that it got."""
        self._server.start()
        _report(self.address, tls, admin_token)

    @classmethod
    def of(cls, config: ClusterConfig, manager: Manager) -> Self:
        """Return the service of a configuration. Raises ControlPlaneError."""
        tls, token = safeguards(config)
        return cls(manager, config.listen, tls=tls, admin_token=token)

    def close(self, grace_s: float = 1.0) -> None:
        """Take no calls any more, and cut those off that are not answered in `grace_s`. Harmless when it is closed."""
        self._workers.close()
        self._server.stop(grace_s).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _bind(self, listen: str, credentials: Any) -> str:
        before = os.umask(0o177)  # of a unix socket's file
        port, why = 0, "no such address here"
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            why = str(error)
        finally:
            os.umask(before)
        if not port:
            self._pool.shutdown(wait=False)
            raise ControlPlaneError(
                f"the service cannot listen at {listen}{'' if credentials is None else ' with TLS'} ({why})",
                hint="see whether another controller runs there, and that tls_key belongs to tls_certificate",
            )
        return listen if listen.startswith(UNIX) else f"{listen.rpartition(':')[0]}:{port}"


def safeguards(config: ClusterConfig) -> tuple[Tls | None, str | None]:
    """Return the TLS files and the administrator's token of a configuration.

    Raises ControlPlaneError for what would keep a service of it from listening, but that the address may be taken.
    """
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        tls = Tls(config.tls_certificate, config.tls_key, config.tls_client_ca)
        _credentials(tls)
    token = None if config.admin_token_file is None else read_admin_token(config.admin_token_file)
    _require_token(config.listen, token)
    return tls, token


def _require_token(listen: str, admin_token: str | None) -> None:
    if admin_token is None and not is_local(listen):
        raise ControlPlaneError(
            f"the service at {listen} would let everybody who reaches it make and delete jobs",
            hint="write a token into a file of mode 0600 and name it as admin_token_file, or listen on loopback",
        )


def _report(address: str, tls: Tls | None, admin_token: str | None) -> None:
    """Say where it listens, and what that leaves open."""
    _log.info("service at %s, TLS %s", address, "off" if tls is None else "on")
    if admin_token is None:
        _log.warning("service at %s: every user of this machine who reaches it may make and delete jobs", address)
    if tls is None and not is_local(address):
        _log.warning("service at %s without TLS: tokens pass in the clear; give tls_certificate and tls_key", address)


def _credentials(tls: Tls) -> Any:
    try:
        key, certificate = tls.key.read_bytes(), tls.certificate.read_bytes()
        authorities = None if tls.client_ca is None else tls.client_ca.read_bytes()
    except OSError as error:
        raise ControlPlaneError(f"TLS: {error}", hint="see tls_certificate, tls_key and tls_client_ca") from error
    return grpc.ssl_server_credentials([(key, certificate)], authorities, authorities is not None)
