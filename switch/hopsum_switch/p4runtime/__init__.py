# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime v1 server around the engine.

pipeline_config   the saved and the running program, packet-in and packet-out headers
p4info_index      ids, names and widths of the objects of a P4Info
status            canonical error codes, byte strings <-> integers
translate         matches, actions, counters <-> the arguments of the engine's stores
table_entries     Write and Read of tables, direct counters and direct meters
entities          Write and Read of all other entities
idle_timeouts     table entries that no packet hits
service           arbitration of clients, streams, gRPC

Only `service` imports gRPC. The protobuf bindings are those of the `p4runtime` package, which registers them once in
the process. `hopsum_base.p4runtime` makes them load on any protobuf.
"""

from __future__ import annotations

from hopsum_base.p4runtime import p4info_pb2, p4runtime_pb2

__all__ = ["p4info_pb2", "p4runtime_pb2"]
