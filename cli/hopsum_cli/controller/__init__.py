# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller`: arguments, log and signals around `hopsum_controlplane.service.controller_process`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    from hopsum_cli.controller.controller_command import build_parser as build

    return build()


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return the exit status."""
    # gRPC's core writes lines of its own form to stderr, and reads this when it is imported; the log has what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from hopsum_cli.controller.controller_command import main as run

    return run(arguments)
