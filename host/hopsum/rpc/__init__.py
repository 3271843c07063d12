# SPDX-License-Identifier: Apache-2.0
"""The clients of the controller for workers and operators, over gRPC.

channel         calls with deadlines, and their errors
jobs_client     the operator's calls
member_client   one worker's calls: join, heartbeats, leave
controller_job  hopsum:// URLs: the steps from a token to an agent
lease           the threads that keep a worker's place
job_agent       the agent under a lease, and its changes of generation

The messages are those of `hopsum_wire.control`. Importing this package imports neither grpc nor protobuf. Its modules
do.
"""

from __future__ import annotations
