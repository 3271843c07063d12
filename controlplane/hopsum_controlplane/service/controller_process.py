# SPDX-License-Identifier: Apache-2.0
"""A controller's parts, composed::

    state store -> cluster controller, which takes the switches over -> maintenance -> service -> page and metrics

and ended in the reverse order: no call is taken any more before anything behind it ends. The entries on the switches
stay, and jobs continue, until a controller comes back to the same database.
"""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterController,
    StateStore,
    device_factories,
    load_config,
    load_pipelines,
)
from hopsum_controlplane.cluster.switch_inventory import MayRemove
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.service.grpc_service import Service, read_safeguards
from hopsum_controlplane.service.log_format import set_level
from hopsum_controlplane.web import WebServer

PERIOD_S: Final = 0.25
ABSENT_PERIODS: Final = 4
"""The number of periods without a beat that are an absence."""
_log: Final = logging.getLogger(__name__)


def boot_clock_s() -> float:
    """Return seconds that never go back. They include the sleep of the machine where the system has CLOCK_BOOTTIME."""
    # CLOCK_BOOTTIME advances while the machine sleeps, which CLOCK_MONOTONIC does not.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class MaintenanceThreads:
    """The threads that call `check_leases`, and `reconcile` of every switch, each `period_s` seconds.

    A context manager: the threads run in its block. Its end waits for work in progress, which the deadlines of a
    switch's calls bound. `clock` gives seconds that continue while this process is stopped.
    """

    def __init__(
        self,
        controller: ClusterController,
        period_s: float = PERIOD_S,
        *,
        clock: Callable[[], float] = boot_clock_s,
    ) -> None:
        self._controller, self._clock = controller, clock
        self._period_s = period_s
        self._leases_at_s = clock()
        self.leases_checked_at_s = time.monotonic()
        """The time at which leases were last looked at, seconds of `time.monotonic`."""
        self._over = threading.Event()
        self._leases = threading.Thread(target=self._beat, name="hopsum-leases", daemon=True)
        # A thread for each switch: one that does not answer holds up no other.
        self._switches = [
            threading.Thread(target=self._attend, args=(name,), name=f"hopsum-switch-{name}", daemon=True)
            for name in controller.switch_names
        ]

    def check_leases(self) -> None:
        """Extend all leases by the time for which this process was stopped, if it was. Then evict silent members.

        Sets `leases_checked_at_s`.
        """
        now_s = self._clock()
        # Measured before anybody is judged: members could not be heard while the process was stopped.
        away_s, self._leases_at_s = now_s - self._leases_at_s, now_s
        if away_s > ABSENT_PERIODS * self._period_s:
            self._controller.liveness.extend_for_absence(away_s)
        self._controller.expire()
        self.leases_checked_at_s = time.monotonic()

    def __enter__(self) -> Self:
        self._leases_at_s = self._clock()
        for thread in (self._leases, *self._switches):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in (self._leases, *self._switches):
            thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._period_s):
            self._try(self.check_leases)

    def _attend(self, switch: str) -> None:
        while not self._over.wait(self._period_s):
            self._try(lambda: self._controller.reconcile(switch))

    @staticmethod
    def _try(duty: Callable[[], None]) -> None:
        try:
            duty()
        except Exception:  # whatever it was, leases and the other jobs need the next one
            _log.exception("%s failed, and continues", threading.current_thread().name)


STALE_S: Final = 20.0
"""A thread that has not come by for so long is stuck."""
ANSWER_S: Final = 2.0
"""The time that the service's event loop has for an answer."""


class ControllerHealth:
    """The liveness and readiness of the controller, for systemd, Kubernetes and load balancers.

    A switch that does not answer is no reason to start a controller again: it is in neither answer.
    """

    def __init__(
        self,
        controller: ClusterController,
        maintenance: MaintenanceThreads,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller, self._maintenance, self._service, self._clock = controller, maintenance, service, clock

    @property
    def certificate_ends_at_s(self) -> float | None:
        """Return when the service's certificate ends, in unix seconds, or None without TLS."""
        return self._service.certificate_ends_at_s

    def notices(self) -> list[str]:
        """Return the troubles of the controller itself, in words."""
        return self._service.notices()

    def why_not_healthy(self) -> str:
        """Return why this process should be started again, an empty string when none of its threads hangs.

        It waits up to ANSWER_S seconds.
        """
        # Leases are looked at four times a second: 20 s without is a thread that hangs, for example on the cache's
        # lock.
        stale_s = self._clock() - self._maintenance.leases_checked_at_s
        if stale_s > STALE_S:
            return f"leases were last looked at {stale_s:.0f} s ago"
        if not self._service.responds_within(ANSWER_S):
            return f"the service's event loop did not answer within {ANSWER_S:g} s"
        return ""

    def why_not_ready(self) -> str:
        """Return why calls should not come here, an empty string when they are answered and can change jobs.

        It waits up to ANSWER_S seconds.
        """
        return self.why_not_healthy() or self._controller.database_condition


CONNECT_S: Final = 3.0
"""Deadline for opening a session with a switch. A switch that does not answer is tried again later."""


@dataclass(frozen=True, slots=True)
class RunningController:
    """A controller that serves at `address`, and the URLs of its page and its metrics, empty for none."""

    controller: ClusterController
    service: Service
    health: ControllerHealth
    address: str
    page_url: str
    metrics_url: str


@contextmanager
def run_controller(
    config: ClusterConfig, *, may_remove: MayRemove | None = None, clock: Callable[[], float] = time.time
) -> Iterator[RunningController]:
    """Run a controller for the block: lock the database, take over the switches, and serve calls, page and metrics.

    Switches may get the program and entries. The end of the block leaves them as they are.

    Args:
        may_remove: decides whether entries of others may be removed from a switch, see SwitchInventory.
        clock: unix seconds, for generations.

    Raises ControlPlaneError: the database cannot be had, an address is taken, a file cannot be read. Then nothing runs.
    """
    # Files that are wrong are found before the database is locked or a switch is touched.
    read_safeguards(config)
    program = PipelineConfig.load(*compiled_program())
    pipeline = load_pipelines(config, program)
    with ExitStack() as stack:
        # The first thing that can fail for another controller's sake: its lock keeps a second one away from the
        # switches.
        store = StateStore(config.database)
        stack.callback(store.close)
        sources = device_factories(config, pipeline, owner=store.owner, connect_timeout_s=CONNECT_S)
        controller = ClusterController(
            config,
            store,
            sources,
            clock=clock,
            pipeline=pipeline,
            may_remove=may_remove,
        )
        stack.callback(controller.close)
        # Leases are watched before calls are served, and longer than calls are.
        maintenance = stack.enter_context(MaintenanceThreads(controller))
        service = stack.enter_context(Service.from_config(config, controller))
        health = ControllerHealth(controller, maintenance, service)
        page_url = metrics_url = ""
        if config.metrics_listen:
            web = stack.enter_context(WebServer(controller, config.metrics_listen, health=health))
            page_url, metrics_url = web.url, web.metrics_url
        yield RunningController(controller, service, health, service.address, page_url, metrics_url)


ENOUGH: Final = 1 << 16
"""The descriptors that are enough for the workers of 64 jobs many times over."""


def raise_open_files_limit() -> int:
    """Raise this process's limit of open files as far as it may, at most to ENOUGH. Return the limit after that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


_TLS: Final = ("tls_certificate", "tls_key", "tls_client_ca", "tls_client_names")
RELOADED: Final = (*_TLS, "admin_token_file", "log_level")
"""Settings that take effect without another start: keys of [controller], and the files that they name."""


class ConfigReloader:
    """Reads the configuration of a serving controller again.

    Args:
        config: what `path` held when the controller was started.
    """

    def __init__(self, path: Path, config: ClusterConfig, service: Service) -> None:
        self._path, self._service, self._config = path, service, config

    def reload(self) -> bool:
        """Apply the settings of RELOADED from the present file. Return whether they were applied, and log the result.

        Changes of other settings are named in the log, and take effect at the next start.
        """
        try:
            found = load_config(self._path)
            self._service.reload(found)
        except ControlPlaneError as error:
            _log.error("SIGHUP: %s; nothing has changed", error)
            return False
        # Only these settings are taken over, so that the next comparison names the others again.
        self._config = replace(self._config, **{name: getattr(found, name) for name in RELOADED})
        _log.info("SIGHUP: read %s again: certificates, keys, tokens, log level", self._path)
        ignored = [each.name for each in fields(ClusterConfig) if _differ(self._config, found, each.name)]
        if ignored:
            _log.warning("SIGHUP: changes of %s take effect at the next start", ", ".join(ignored))
        set_level(self._config.log_level)
        return True


def _differ(now: Any, found: Any, name: str) -> bool:
    return bool(getattr(now, name) != getattr(found, name))
