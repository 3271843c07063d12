# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime v1 server around the engine.

arbitration   who is primary                 status        canonical error codes
pipeline      the loaded program             p4info        ids, names and widths of what it declares
values        byte strings <-> integers      translate     matches, actions, counters <-> the engine's stores
entities      Write and Read of entities     packet_io     packet-in and packet-out headers
service       gRPC

Only `service` imports gRPC. The protobuf bindings are those of the `p4runtime` package, which registers them once in
the process. `hopsum_base.p4runtime` makes them load on any protobuf.
"""

from __future__ import annotations

from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2

__all__ = ["p4info_pb2", "p4runtime_pb2"]
