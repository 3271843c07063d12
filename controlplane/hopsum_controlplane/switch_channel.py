# SPDX-License-Identifier: Apache-2.0
"""The gRPC channel to a switch's server, of P4Runtime or of BF Runtime, and the refusals in the server's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from google.rpc import code_pb2, status_pb2

from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.switch_tls import SwitchTls

_METADATA_BYTES: Final = 4 << 20
OPTIONS: Final = (
    # No switch is behind a proxy, least of all on a loopback address: proxy variables are not obeyed.
    ("grpc.enable_http_proxy", 0),
    # Channels to one address share a connection otherwise, and so a dead one.
    ("grpc.use_local_subchannel_pool", 1),
    # A refused batch is answered with an error for each of its updates, in metadata: some 70 bytes each at least.
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
)
SEARCH: Final = (
    # A switch that comes up is to be seen soon, and one that does not is not worth more than a packet now and then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
)
_DETAILS_KEY: Final = "grpc-status-details-bin"


class RefusedUpdate(NamedTuple):
    """A refused update of one RPC: its place in the RPC, from 0, and the code and words of the switch."""

    position: int
    code: str
    message: str


def open_channel(address: str, options: Sequence[tuple[str, Any]], tls: SwitchTls | None) -> grpc.Channel:
    """Make a channel to a switch, with TLS if `tls` has its files. The first call connects.

    Raises ControlPlaneError for files of TLS that cannot be used.
    """
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*tls.contents()), options)


def refusals(error: Any, make: Callable[[], Any], updates: int) -> list[RefusedUpdate]:
    """Return the updates of a batch that a server refused, an empty list where the error does not name any.

    Args:
        error: the grpc.RpcError of the call. Its details hold an error message for every update, also for the
            accepted ones.
        make: the class of these messages, p4.v1.Error or that of BF Runtime.
        updates: the number of updates in the RPC. Details beyond it belong to no update, and are left out.
    """
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            status.ParseFromString(value)
    found = []
    for position, detail in enumerate(status.details[:updates]):
        refused = make()
        if detail.Unpack(refused) and refused.canonical_code != code_pb2.OK:
            found.append(RefusedUpdate(position, code_pb2.Code.Name(refused.canonical_code), refused.message))
    return found
