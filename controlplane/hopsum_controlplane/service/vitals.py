# SPDX-License-Identifier: Apache-2.0
"""Vital signs of a controller, for whoever starts it again when it has none: systemd, Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hopsum_controlplane.service.pulse import Pulse
from hopsum_controlplane.service.server import Service

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.cluster_controller import ClusterController

STALE_S: Final = 20.0
"""A thread that has not come by for so long is stuck."""
ANSWER_S: Final = 2.0
"""The time that the service's event loop has for an answer."""


class Vitals:
    """The two questions of a health check.

    A switch that does not answer is no reason to start a controller again: it is in neither answer.
    """

    def __init__(
        self,
        controller: ClusterController,
        pulse: Pulse,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller, self._pulse, self._service, self._clock = controller, pulse, service, clock

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the service's certificate ends, in unix seconds, or None without TLS."""
        return self._service.certificate_ends_at_s

    def why_not_healthy(self) -> str:
        """Return why this process should be started again, an empty string when all its threads go on."""
        stale_s = self._clock() - self._pulse.beat_at_s
        if stale_s > STALE_S:
            return f"leases were last looked at {stale_s:.0f} s ago"
        if not self._service.answers(ANSWER_S):
            return f"the service's event loop did not answer within {ANSWER_S:g} s"
        return ""

    def why_not_ready(self) -> str:
        """Return why calls should not come here, an empty string when they are answered and can change jobs."""
        return self.why_not_healthy() or self._controller.database_condition
