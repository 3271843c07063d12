# SPDX-License-Identifier: Apache-2.0
"""`hopsum top`: switches, jobs, rates and stragglers, as they change."""

from __future__ import annotations

from hopsum_cli.top.top_command import build_parser, main

__all__ = ["build_parser", "main"]
