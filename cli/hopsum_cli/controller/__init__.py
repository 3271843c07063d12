# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller` and `hopsum controller backup`: arguments, log and signals around the controller's service."""

from __future__ import annotations

import os

# gRPC's core writes lines of its own form to stderr, and reads this when it is imported; the log has what matters.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
