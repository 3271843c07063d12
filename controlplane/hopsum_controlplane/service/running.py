# SPDX-License-Identifier: Apache-2.0
"""A controller's parts, composed::

    state store -> cluster controller, which takes the switches over -> pulse -> service -> page and metrics

and ended the other way round: no call is taken any more before anything behind it goes. What stands on the switches
stays, and jobs go on, until a controller comes back to the same database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterController,
    StateStore,
    device_factories,
    pipelines,
    registrable,
)
from hopsum_controlplane.cluster.switch_reconciler import MayRemove
from hopsum_controlplane.devices.base import PipelineConfig
from hopsum_controlplane.service.pulse import Pulse
from hopsum_controlplane.service.server import Service, safeguards
from hopsum_controlplane.service.vitals import Vitals
from hopsum_controlplane.web import WebServer

CONNECT_S: Final = 3.0
"""Deadline for opening a session with a switch. A switch that does not answer is tried again later."""


@dataclass(frozen=True, slots=True)
class Running:
    """A controller that serves: where, and the URLs of its page and its metrics, empty for none."""

    controller: ClusterController
    service: Service
    vitals: Vitals
    address: str
    page_url: str
    metrics_url: str


@contextmanager
def running(
    config: ClusterConfig, *, may_remove: MayRemove | None = None, clock: Callable[[], float] = time.time
) -> Iterator[Running]:
    """Run a controller for the block.

    Args:
        may_remove: what says whether what others wrote may be taken off a switch, see SwitchReconciler.
        clock: unix seconds, for generations.

    Raises ControlPlaneError: the database cannot be had, an address is taken, a file cannot be read. Then nothing runs.
    """
    safeguards(config)
    program = PipelineConfig.load(*compiled_program())
    pipeline = pipelines(config, program)
    with ExitStack() as stack:
        store = StateStore(config.database)
        stack.callback(store.close)
        sources = device_factories(config, pipeline, owner=store.owner, connect_timeout_s=CONNECT_S)
        controller = ClusterController(
            config,
            store,
            sources,
            clock=clock,
            pipeline=pipeline,
            registered=registrable(program, owner=store.owner, connect_timeout_s=CONNECT_S),
            may_remove=may_remove,
        )
        stack.callback(controller.close)
        pulse = stack.enter_context(Pulse(controller))
        service = stack.enter_context(Service.of(config, controller))
        vitals = Vitals(controller, pulse, service)
        page_url = metrics_url = ""
        if config.metrics_listen:
            web = stack.enter_context(WebServer(controller, config.metrics_listen, vitals=vitals))
            page_url, metrics_url = web.url, web.metrics_url
        yield Running(controller, service, vitals, service.address, page_url, metrics_url)
