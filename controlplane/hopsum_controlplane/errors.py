# SPDX-License-Identifier: Apache-2.0
"""The errors of the control plane: what went wrong, where, with which numbers, and the remedy.

The cluster has a class for each status that its service answers with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopsum_controlplane.entries import Entity, Update


class ControlPlaneError(Exception):
    """Something that the control plane was asked for did not happen.

    `what` names it with its numbers, `where` the switch (address and device id, empty when none is involved),
    `hint` what the caller does next.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return the message on one line: where, what, then what to do."""
        message = f"{self.where}: {self.what}" if self.where else self.what
        return f"{message}; {self.hint}" if self.hint else message


class ForeignEntriesError(ControlPlaneError):
    """A switch has `entities` that the database does not have, and no operator has decided that they are to go."""

    def __init__(self, what: str, entities: Sequence[Entity], *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.entities = tuple(entities)


class SessionLostError(ControlPlaneError):
    """There is no session with the switch, or it did not answer in time: open another one."""


class NotPrimaryError(ControlPlaneError):
    """Another client controls the switch: nothing was changed, and this device changes nothing any more."""


class SwitchStateLostError(ControlPlaneError):
    """The switch does not run our program any more, because it restarted or another client pushed another program.

    All generations on it are over.
    """


class FailedUpdate(NamedTuple):
    """One refused update: its place in the batch (from 0), and the code and words of the switch."""

    position: int
    update: Update
    code: str
    message: str

    def __str__(self) -> str:
        """Return the refusal on one line."""
        return f"update {self.position} ({self.update}): {self.code} {self.message!r}"


class WriteError(ControlPlaneError):
    """A batch was not written as a whole.

    `failures` are the updates that the switch named as refused. The other updates of the batch are installed. When it
    is empty the batch ended without an answer (deadline, connection lost): each of its updates may or may not stand.
    """

    def __init__(
        self,
        batch: Sequence[Update],
        failures: Sequence[FailedUpdate],
        *,
        why: str = "",
        where: str = "",
        hint: str = "",
    ) -> None:
        named = "; ".join(str(failure) for failure in failures)
        what = f"{len(failures)} of {len(batch)} updates refused: {named}" if failures else why
        super().__init__(what, where=where, hint=hint)
        self.batch = tuple(batch)
        self.failures = tuple(failures)

    def may_be_installed(self) -> list[Entity]:
        """Return the entries that were written, or may have been, in the order of the batch."""
        refused = {failure.position for failure in self.failures}
        return [update.entity for index, update in enumerate(self.batch) if index not in refused]


class ClusterConfigError(ControlPlaneError):
    """A configuration that is unreadable, has an unknown key, or a value that does not fit."""


class InvalidRequestError(ControlPlaneError):
    """A request that can never be granted as it is: an argument is wrong."""


class UnknownJobError(ControlPlaneError):
    """There is no job of this name, or not any more."""


class JobExistsError(ControlPlaneError):
    """There is a job of this name already."""


class UnauthenticatedError(ControlPlaneError):
    """A token, a member's secret or an incarnation that is not accepted (any more)."""


class UndecidedError(ControlPlaneError):
    """No operator has decided yet about generations that are on a switch and not in the database."""


class ResourceExhaustedError(ControlPlaneError):
    """Slots, job indices or ranks are used up. The message says how much is left, and where."""


class SwitchUnavailableError(ControlPlaneError):
    """A switch does not do what it was asked for now. The database is right, and the controller keeps trying."""


class PipelineMismatchError(SwitchUnavailableError):
    """A switch runs a program that is not ours."""


class StoreError(ControlPlaneError):
    """The database cannot be opened, read or written. Nothing is half changed."""


class StoreLockedError(StoreError):
    """Another controller has the database."""


def condition_reason(error: Exception) -> str:
    """Return in one word what a switch's failure is, for programs that act on it.

    `not_primary`, `other_program`, `unreachable` (no session, or no answer), `store`, or `other`.
    """
    if isinstance(error, NotPrimaryError):
        return "not_primary"
    if isinstance(error, SwitchStateLostError | PipelineMismatchError):
        return "other_program"
    if isinstance(error, SessionLostError) or (isinstance(error, WriteError) and not error.failures):
        return "unreachable"
    return "store" if isinstance(error, StoreError) else "other"
