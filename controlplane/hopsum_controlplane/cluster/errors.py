# SPDX-License-Identifier: Apache-2.0
"""The reasons why the cluster refuses: one class for each answer that a service gives its callers."""

from __future__ import annotations

from hopsum_controlplane.errors import (
    ControlPlaneError,
    NotPrimaryError,
    SessionLostError,
    SwitchStateLostError,
    WriteError,
)


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
