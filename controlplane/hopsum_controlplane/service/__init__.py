# SPDX-License-Identifier: Apache-2.0
"""The running controller, and the services of control.proto that hosts and operators reach.

controller_process  database, controller, page, metrics, service: begun and ended in order; threads that keep the
                    cluster going; health checks; the configuration read again
grpc_service        the gRPC server: sockets, threads, TLS
handlers            token -> message -> answer; the calls that may be in progress; errors as status codes
member_service      locate, join, wait, heartbeat, leave
operator_service    create, list, show, delete, move, rotate tokens, backup
event_loop          the event loop on its thread, and news of jobs for the coroutines that wait there
access              bearer tokens, administrators            connections   the silence of TCP connections
audit_log           lines for calls that changed something         log_format    the log on stderr

The cluster controller does not know gRPC.
"""

from __future__ import annotations
