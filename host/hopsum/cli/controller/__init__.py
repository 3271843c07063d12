# SPDX-License-Identifier: Apache-2.0
"""`hopsum controller`: the process that an operator runs.

command    arguments, the log, signals        run    books, manager, page, metrics, service: begun and ended in order
pulse      threads that keep the manager going       descriptors how many files it may have open
"""

from __future__ import annotations

from hopsum.cli.controller.command import main

__all__ = ["main"]
