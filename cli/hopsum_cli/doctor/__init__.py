# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor`: why does a worker not begin, or hang?"""

from __future__ import annotations

from hopsum_cli.doctor.command import build_parser, main

__all__ = ["build_parser", "main"]
