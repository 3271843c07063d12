# SPDX-License-Identifier: Apache-2.0
"""Errors of the engine: programs that cannot be loaded and control-plane accesses that are refused."""

from __future__ import annotations


class ProgramError(Exception):
    """A compiled program is malformed or uses something the engine does not run.

    The message names the construct and, where the compiler recorded it, the P4 file, line and text.
    Change the P4 source (or compile again). The engine holds nothing of a refused program.
    """


class UnsupportedError(ProgramError):
    """The program is well formed, but the engine cannot run one of its constructs.

    The interpreter refuses the constructs of `program.unsupported`, native code also those of
    `native.only_interpreted`. The error is also raised where native code is asked for and cannot be used at all.
    """


class TableError(Exception):
    """A read or write of the control plane was refused. No state changed.

    Base of all refusals by the stores: tables, groups, clone sessions, counters, registers, meters, digests.
    """


class AlreadyExistsError(TableError):
    """The entry, group, clone session or digest to insert is there already: modify it, or delete it first."""


class NotFoundError(TableError):
    """The table, entry, group, clone session, counter, register, meter or digest does not exist."""


class InvalidArgumentError(TableError):
    """A value is out of range, of the wrong kind, or not allowed here."""


class OutOfSpaceError(TableError):
    """The table is full: delete an entry first."""


class ReadOnlyError(TableError):
    """The program declares this entry, table or default action constant."""
