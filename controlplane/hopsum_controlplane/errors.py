# SPDX-License-Identifier: Apache-2.0
"""The errors of the control plane. A message has the failure with its numbers, the switch, and the remedy.

Each status of the cluster's service has a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopsum_controlplane.entries import Entity, Update


class ControlPlaneError(Exception):
    """A request to the control plane failed.

    `what` is the failure with its numbers, `where` the switch (address and device id, empty without a switch), `hint`
    the remedy.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return the message on one line: where, what, hint."""
        message = f"{self.where}: {self.what}" if self.where else self.what
        return f"{message}; {self.hint}" if self.hint else message


class ForeignEntriesError(ControlPlaneError):
    """A switch has `entities` that the database does not have, and no operator has permitted their removal."""

    def __init__(self, what: str, entities: Sequence[Entity], *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.entities = tuple(entities)


class SessionLostError(ControlPlaneError):
    """There is no session with the switch, or it did not answer a call in time: open another session.

    A device's `write` raises it only before anything was sent. An unanswered batch is a WriteError.
    """


class NotPrimaryError(ControlPlaneError):
    """Another client controls the switch. Nothing was changed, and this device can change nothing any more."""


class SwitchStateLostError(ControlPlaneError):
    """The switch no longer runs hopsum's program, because it restarted or another client pushed another program.

    All generations on the switch have ended.
    """


class FailedUpdate(NamedTuple):
    """One refused update: its position in the batch (from 0), and the code and message of the switch."""

    position: int
    update: Update
    code: str
    message: str

    def __str__(self) -> str:
        """Return the refusal on one line."""
        return f"update {self.position} ({self.update}): {self.code} {self.message!r}"


class WriteError(ControlPlaneError):
    """A batch was not written as a whole.

    `failures` are the refused updates; the other updates of the batch are installed. If `failures` is empty, the switch
    did not answer (deadline, connection lost), and each update may or may not be installed.
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
    """A token, a member's secret or an incarnation is unknown or no longer valid."""


class UndecidedError(ControlPlaneError):
    """No operator has decided yet about generations that are on a switch and not in the database."""


class ResourceExhaustedError(ControlPlaneError):
    """Slots, job indices or ranks are used up. The message has the free ones by switch."""


class SwitchUnavailableError(ControlPlaneError):
    """A switch has not executed a request yet. The database has the request, and the controller retries."""


class PipelineMismatchError(SwitchUnavailableError):
    """A switch runs another program than hopsum's, and no operator has permitted its removal."""


class StoreError(ControlPlaneError):
    """The database cannot be opened, read or written. A failed change has no effect."""


class StoreLockedError(StoreError):
    """Another controller has the database."""


def condition_reason(error: Exception) -> str:
    """Return the kind of a switch's failure as one word, for programs.

    `not_primary`, `other_program`, `unreachable` (no session, or no answer), `store`, or `other`.
    """
    if isinstance(error, NotPrimaryError):
        return "not_primary"
    if isinstance(error, SwitchStateLostError | PipelineMismatchError):
        return "other_program"
    if isinstance(error, SessionLostError) or (isinstance(error, WriteError) and not error.failures):
        return "unreachable"
    return "store" if isinstance(error, StoreError) else "other"
