# SPDX-License-Identifier: Apache-2.0
"""Errors of the engine: programs that cannot be loaded and control-plane accesses that are refused."""

from __future__ import annotations


class ProgramError(Exception):
    """A compiled program is malformed or uses something the engine does not run.

    The message names the construct and, where the compiler recorded it, the P4 file, line and text.
    Change the P4 source (or compile again). The engine holds nothing of a refused program.
    """


class UnsupportedError(ProgramError):
    """The program is well formed, but uses a construct listed in `program.unsupported`."""


class TableError(Exception):
    """A read or write of the control plane was refused. No state changed.

    Base of all refusals by the stores (tables, multicast groups, counters, registers).
    """


class AlreadyExistsError(TableError):
    """The entry or group to insert is there already: modify it, or delete it first."""


class NotFoundError(TableError):
    """The table, entry, group, counter or register does not exist."""


class InvalidArgumentError(TableError):
    """A value is out of range, of the wrong kind, or not allowed here."""


class OutOfSpaceError(TableError):
    """The table or the group space is full: delete something first."""


class ReadOnlyError(TableError):
    """The program declares this entry, table or default action constant."""
