# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller`: the process that an operator runs.

command    arguments, the log, signals        run    books, manager, page, metrics, service: begun and ended in order
pulse      threads that keep the manager going       descriptors how many files it may have open
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    # gRPC's core writes lines of its own form to stderr, and reads this when it is imported; the log has what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from hopsum.cli.controller.command import main as run

    return run(arguments)
