# SPDX-License-Identifier: Apache-2.0
"""The errors of calls to the controller: a refusal, or a controller that cannot be reached."""

from __future__ import annotations

from hopsum.errors import HopsumError


class ControllerError(HopsumError):
    """The controller refused a call. `code` is gRPC's name of the kind: NOT_FOUND, UNAUTHENTICATED, ..."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ControllerUnreachableError(ControllerError):
    """No answer: whether the call was served is not known. To repeat any call of hopsum's is harmless."""
