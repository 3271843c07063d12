# SPDX-License-Identifier: Apache-2.0
"""The gRPC server: where it listens, with which certificate, and the event loop on which it runs."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Self

from hopsum_base.quiet_grpc import SERVER_OPTIONS, grpc
from hopsum_base.tls_server import ServerCredentials, TlsServerFiles, read_client_names
from hopsum_base.token_files import AdminToken, read_admin_tokens
from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.access import Access, Safeguards
from hopsum_controlplane.service.audit_log import write_audit_line
from hopsum_controlplane.service.event_loop import EventLoop, JobNotifier
from hopsum_controlplane.service.handlers import BlockingPool, CallLimiter, handler_of
from hopsum_controlplane.service.member_service import MemberCalls
from hopsum_controlplane.service.operator_service import OperatorCalls
from hopsum_wire.control import UNIX, is_local
from hopsum_wire.control.services import JOB_SERVICE, MEMBERSHIP_SERVICE, MESSAGE_BYTES_MAX

BEAT_THREADS: Final = 4
"""The threads for heartbeats alone."""
THREADS: Final = 16
"""The threads for all other calls. Calls that wait for news hold none."""
PING_S: Final = 10.0
"""Seconds of silence after which the server pings a connection."""
DEAD_S: Final = 60.0
"""Seconds without an answer to a ping after which a connection is closed. Longer than the default lease: a worker
that hangs is evicted by its lease, not by its connection."""
IDLE_S: Final = 20.0
"""A connection without a call is closed after that."""
HANDSHAKE_S: Final = 5.0
"""Seconds for a new connection's TLS handshake and HTTP/2 preface."""
REQUEST_BYTES_MAX: Final = 128 << 10
"""The largest is the report of a worker with decision.MAX_RUNS runs of results, 98 KB."""
DESCRIPTORS_KEPT: Final = 128
"""The process's descriptors for switches, database and the page. Connections to the service leave these free."""
_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
    ("grpc.keepalive_time_ms", int(PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(DEAD_S * 1000)),
    # Newer versions of gRPC read this name, and wait a minute without it.
    ("grpc.http2.ping_timeout_ms", int(DEAD_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    # No bound on pings: a stream may have no news for hours.
    ("grpc.http2.max_pings_without_data", 0),
    # Clients ping every 5 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)
_ALL: Final = (1 << 31) - 2
_log: Final = logging.getLogger(__name__)


class Service:
    """Serves a ClusterController over gRPC from construction until `close`. `address` has the port that it got.

    controller: answers the calls.
    listen: HOST:PORT, port 0 for any, or unix:PATH, which only this user can then reach.
    safeguards: keep strangers out.
    threads: for all calls but heartbeats.

    Raises ControlPlaneError: the address cannot be had, a file cannot be read, or strangers could delete jobs.
    """

    def __init__(
        self,
        controller: ClusterController,
        listen: str,
        *,
        safeguards: Safeguards = Safeguards(),  # noqa: B008 (a constant)
        threads: int = THREADS,
    ) -> None:
        _require_token(listen, safeguards.admin_tokens)
        self._listens, self._controller = listen, controller
        self._access = Access(safeguards)
        tls = safeguards.tls
        self._credentials = None if tls is None else ServerCredentials(tls, ControlPlaneError)
        self._beats = ThreadPoolExecutor(BEAT_THREADS, thread_name_prefix="hopsum-service-beats")
        self._rest = ThreadPoolExecutor(threads, thread_name_prefix="hopsum-service")
        # The event loop never blocks: everything that takes the cluster's lock or waits for a switch runs in a pool's
        # threads.
        self._events = EventLoop("hopsum-service-loop")
        self._server: Any = None
        # Heartbeats have threads of their own: joins and deletions that wait for switches must not cost a member its
        # lease.
        beats, rest = BlockingPool(self._beats), BlockingPool(self._rest)
        notifier, limiter = JobNotifier(self._events.loop), CallLimiter()
        self._workers = MemberCalls(controller.member_requests, limiter, notifier, beats=beats, rest=rest)
        # `notify` is called under the cache's lock, in any thread: it only posts to the event loop.
        self._unwatch = controller.watch(notifier.notify)
        controller.liveness.silences_s = self._workers.silences_s
        jobs = OperatorCalls(controller, self._access, limiter, rest, self.notices)
        handlers = (
            handler_of(MEMBERSHIP_SERVICE, self._workers.answers_by_method(), self._workers.admit, rest, self._access),
            handler_of(JOB_SERVICE, jobs.answers_by_method(), jobs.admit, rest, self._access),
        )
        try:
            self.address = self._events.run(self._listen(listen, handlers))
        except BaseException:
            self.close()
            raise
        write_audit_line("Start", listen=self.address, administrators=[each.name for each in safeguards.admin_tokens])
        _report(self.address, tls, safeguards.admin_tokens)
        self._warn()

    @classmethod
    def from_config(cls, config: ClusterConfig, controller: ClusterController) -> Self:
        """Read the files of a configuration, and start its service. Raises ControlPlaneError as the constructor."""
        return cls(controller, config.listen, safeguards=read_safeguards(config))

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the certificate ends, in unix seconds, or None without TLS."""
        return None if self._credentials is None else self._credentials.ends_at_s

    def notices(self) -> list[str]:
        """Return the troubles of the controller itself: a certificate that ends soon, a database that takes nothing."""
        certificate = "" if self._credentials is None else self._credentials.expiry_warning()
        return [each for each in (self._controller.database_condition, certificate) if each]

    def responds_within(self, within_s: float) -> bool:
        """Wait at most `within_s` seconds, and return whether the event loop ran. For any thread but the loop's own."""
        return self._events.responds_within(within_s)

    def reload(self, config: ClusterConfig) -> None:
        """Use the certificates, keys and tokens of a configuration for new connections and calls, and log that.

        The listening address stays, and open connections continue.

        Raises ControlPlaneError for what does not fit, or needs another start. Then nothing has changed.
        """
        # Everything is read and checked before anything is replaced: a reload changes all or nothing.
        found = read_safeguards(replace(config, listen=self._listens))
        tls = found.tls
        credentials = self._credentials
        if (tls is None) != (credentials is None) or (
            tls and credentials and (tls.client_ca is None) != (credentials.files.client_ca is None)
        ):
            raise ControlPlaneError(
                "the service cannot begin or end TLS, or its demand for clients' certificates, while it runs "
                "(tls_certificate, tls_key, tls_client_ca)",
                hint="start the controller again: jobs continue meanwhile",
            )
        prepared = None if tls is None or credentials is None else credentials.prepare(tls)
        if prepared is not None and credentials is not None:
            credentials.use(prepared)
        self._access.safeguards = found
        self._warn()
        write_audit_line("Reload", administrators=[each.name for each in found.admin_tokens])

    def close(self, grace_s: float = 1.0) -> None:
        """Stop the server. Cancel calls that are not answered in `grace_s` seconds. A second call does nothing."""
        self._unwatch()
        self._controller.liveness.silences_s = dict
        # Waiting calls are answered first, or the grace period would be spent on them.
        self._workers.close()
        server, self._server = self._server, None
        if server is not None:
            self._events.run(server.stop(grace_s))
        self._events.close()
        for pool in (self._beats, self._rest):
            pool.shutdown(wait=False, cancel_futures=True)
        if server is not None:
            write_audit_line("Stop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warn(self) -> None:
        if self._credentials is not None and (notice := self._credentials.expiry_warning()):
            _log.warning("%s", notice)

    async def _listen(self, listen: str, handlers: Sequence[grpc.GenericRpcHandler]) -> str:
        """Start the server. Return where it listens."""
        # Connections are bounded: some descriptors of the process stay free for switches, database and page.
        server = grpc.aio.server(options=(*_OPTIONS, ("grpc.max_allowed_incoming_connections", _connections_max())))
        server.add_generic_rpc_handlers(handlers)
        # The file of a unix socket gets mode 0600.
        before = os.umask(0o177)
        port, why = 0, "no such address here"
        try:
            if self._credentials is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, self._credentials.credentials)
        except RuntimeError as error:
            why = str(error)
        finally:
            os.umask(before)
        if not port:
            raise ControlPlaneError(
                f"the service cannot listen at {listen}{'' if self._credentials is None else ' with TLS'} ({why})",
                hint="see whether another controller runs there",
            )
        await server.start()
        self._server = server
        return listen if listen.startswith(UNIX) else f"{listen.rpartition(':')[0]}:{port}"


def read_safeguards(config: ClusterConfig) -> Safeguards:
    """Read and check the TLS files, tokens and names of a configuration, its switches' TLS files too. Return them.

    Raises ControlPlaneError for a file that cannot be used, and for a service that strangers could use without a token.
    """
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        tls = TlsServerFiles(config.tls_certificate, config.tls_key, config.tls_client_ca)
        ServerCredentials(tls, ControlPlaneError)
    tokens = () if config.admin_token_file is None else read_admin_tokens(config.admin_token_file, ControlPlaneError)
    _require_token(config.listen, tokens)
    for each in config.switches:
        if each.tls is not None:
            each.tls.check()
    names = None if config.tls_client_names is None else read_client_names(config.tls_client_names, ControlPlaneError)
    return Safeguards(tls, tokens, names)


def _connections_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ALL if limit == resource.RLIM_INFINITY else max(1, min(_ALL, limit - DESCRIPTORS_KEPT))


def _require_token(listen: str, admin_tokens: Sequence[AdminToken]) -> None:
    if not admin_tokens and not is_local(listen):
        raise ControlPlaneError(
            f"the service at {listen} would let everybody who reaches it make and delete jobs",
            hint="write a token into a file of mode 0600 and name it as admin_token_file, or listen on loopback",
        )


def _report(address: str, tls: TlsServerFiles | None, admin_tokens: Sequence[AdminToken]) -> None:
    """Say where it listens, and what that leaves open."""
    _log.info("service at %s, TLS %s", address, "off" if tls is None else "on")
    if not admin_tokens:
        _log.warning("service at %s: every user of this machine who reaches it may make and delete jobs", address)
    if tls is None and not is_local(address):
        _log.warning("service at %s without TLS: tokens pass in the clear; give tls_certificate and tls_key", address)
