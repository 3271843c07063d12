# SPDX-License-Identifier: Apache-2.0
"""The running controller, and the services of control.proto that hosts and operators reach.

server     gRPC: sockets, threads, TLS       refusals   errors of the control plane as status codes
loop       the event loop, on its thread     bell       news of jobs for coroutines that wait for them
gate       which calls may be in progress    access     bearer tokens, administrators
handlers   token -> message -> answer        messages   messages <-> values of `cluster`
workers    locate, join, wait, beat, leave   jobs       create, list, show, delete, switches
running    database, controller, page, metrics, service: begun and ended in order
pulse      threads that keep the cluster controller going
reloading  the configuration, read again     credentials files that hold secrets, certificates
vitals     whether all that goes on          audit_log who changed what
logs       the log on stderr                 descriptors how many files the process may have open

Only this folder imports gRPC and messages. The cluster controller behind it knows neither.
"""

from __future__ import annotations
