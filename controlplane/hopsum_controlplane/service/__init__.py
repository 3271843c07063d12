# SPDX-License-Identifier: Apache-2.0
"""What hosts and operators reach of a controller: the services of hopsum.rpc's control.proto.

server     gRPC: sockets, threads, TLS       refusals   errors of the control plane as status codes
loop       the event loop, on its thread     bell       news of jobs for coroutines that wait for them
gate       which calls may be in progress    access     bearer tokens, files that hold secrets
handlers   token -> message -> answer        messages   messages <-> values of `cluster`
workers    locate, join, wait, beat, leave   jobs       create, list, show, delete, switches

Only this folder imports gRPC and messages; the manager behind it knows neither.
"""

from __future__ import annotations
