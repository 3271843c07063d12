# SPDX-License-Identifier: Apache-2.0
"""What hosts and operators reach of a controller: the services of hopsum.rpc's control.proto.

server     gRPC: sockets, threads, TLS       refusals   errors of the control plane as status codes
handlers   bytes -> message -> answer        access     bearer tokens, files that hold secrets
workers    locate, join, wait, beat, leave   jobs       create, list, show, delete, switches
messages   messages <-> values of `cluster`

Only this folder imports gRPC and messages; the manager behind it knows neither.
"""

from __future__ import annotations
