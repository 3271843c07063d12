# SPDX-License-Identifier: Apache-2.0
"""Errors of the control plane as status codes: RESOURCE_EXHAUSTED may also be the server's own, "too many calls"."""

from __future__ import annotations

from typing import Final

import grpc

from hopsum_controlplane.cluster.errors import (
    InvalidRequestError,
    JobExistsError,
    ResourceExhaustedError,
    StoreError,
    UnauthenticatedError,
    UndecidedError,
    UnknownJobError,
)
from hopsum_controlplane.errors import ControlPlaneError

_STATUS: Final[dict[type[ControlPlaneError], grpc.StatusCode]] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownJobError: grpc.StatusCode.NOT_FOUND,
    JobExistsError: grpc.StatusCode.ALREADY_EXISTS,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UndecidedError: grpc.StatusCode.UNAVAILABLE,  # its workers go on, as while no controller answers
    StoreError: grpc.StatusCode.INTERNAL,
}


def status_of(error: ControlPlaneError) -> grpc.StatusCode:
    """Return the code of an error: FAILED_PRECONDITION for what is asked rightly, but not now."""
    for kind, code in _STATUS.items():
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.FAILED_PRECONDITION
