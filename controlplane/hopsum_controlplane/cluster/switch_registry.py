# SPDX-License-Identifier: Apache-2.0
"""Switches that register by themselves, such as one beside each worker, and their leases::

    state       event                                        to          also
    unknown     registers, and its P4Runtime server answers  LIVE        it is in the database, and driven
    LIVE        registers again                              LIVE        its lease is renewed
    LIVE, LOST  another process of its host registers        LIVE        the first process is refused from then on
    LIVE        deregisters, or is silent for its lease      LOST        it takes no further job
    LOST        registers again                              LIVE
    LOST        no job has a place there                     unknown     it is not driven any more

A switch that registers is in the database until it is forgotten: a controller that starts again drives it at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Network

from hopsum_controlplane.addresses import ipv4_to_int
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, PortRule, SwitchConfig
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.records import RegisteredSwitch
from hopsum_controlplane.cluster.requests import NAME, JobRequest
from hopsum_controlplane.cluster.switch_reconcilers import SwitchReconcilers
from hopsum_controlplane.cluster.tokens import INCARNATION_BYTES
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.errors import (
    ControlPlaneError,
    InvalidRequestError,
    ResourceExhaustedError,
    StoreError,
    UnauthenticatedError,
)
from hopsum_controlplane.job_spec import MAX_UDP_PORT, SwitchEndpoint
from hopsum_wire.control import control_pb2 as pb

PORT = 1
"""The switch port behind which all workers are: a UDP port of the embedded switch."""
KEPT_REPLACED = 16
"""The number of processes that had a switch's name that are remembered, the last ones."""
_MAX_ADDRESS = 128
_log = logging.getLogger(__name__)


def _checked(request: pb.RegisterSwitchRequest) -> SwitchConfig:
    """Make the configuration of a switch that registers. Raises InvalidRequestError naming the first wrong value."""
    who = f"switch {request.name!r:.80}"
    if not NAME.fullmatch(request.name):
        hint = "a name has 1 .. 64 letters, digits, dots, dashes or underscores, and begins with a letter or digit"
        raise InvalidRequestError(f"switch name {request.name!r:.80}", hint=hint)
    if len(request.incarnation) != INCARNATION_BYTES:
        what = f"{who}: an incarnation of {len(request.incarnation)} bytes"
        raise InvalidRequestError(what, hint=f"it is {INCARNATION_BYTES} random bytes")
    host, _, port = request.address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= MAX_UDP_PORT):
        hint = "it is HOST:PORT of the switch's P4Runtime server"
        raise InvalidRequestError(f"{who}: address {request.address!r:.{_MAX_ADDRESS}}", hint=hint)
    service = request.service
    if len(request.address) > _MAX_ADDRESS or not 1 <= service.udp_port <= MAX_UDP_PORT:
        what = f"{who}: workers send to {service.ip!r:.40} port {service.udp_port}"
        raise InvalidRequestError(what, hint=f"ports are 1 .. {MAX_UDP_PORT}")
    made = SwitchConfig(
        request.name,
        "native",
        request.address,
        request.device_id,
        SwitchEndpoint(request.mac, request.ip),
        (PortRule(PORT, IPv4Network("0.0.0.0/0")),),
        (service.ip, service.udp_port),
        slots=request.slots,
        registered=True,
    )
    try:
        ipv4_to_int(service.ip)
        made.check()
    except ControlPlaneError as error:
        raise InvalidRequestError(f"{who}: {error.what}", hint=error.hint) from error
    return made


class SwitchRegistry:
    """The switches that registered with one controller. Thread-safe.

    `config` is the controller's, and has the times. `monotonic` gives seconds that never go back.
    """

    def __init__(
        self,
        config: ClusterConfig,
        cache: JobStateCache,
        reconcilers: SwitchReconcilers,
        monotonic: Callable[[], float],
    ) -> None:
        self._config, self._cache, self._reconcilers, self._monotonic = config, cache, reconcilers, monotonic
        self._configured = {switch.name for switch in config.switches}
        # `_until_s` and `_coming` are used under the cache's lock.
        self._until_s: dict[str, float] = {}
        self._coming: set[str] = set()
        for switch in cache.switches():
            # After a start nobody has been heard yet: every known switch has a whole lease to register again.
            self._renew(switch.name)

    def register(self, request: pb.RegisterSwitchRequest) -> pb.RegisterSwitchResponse:
        """Take a switch, or renew its lease. The same process that asks again gets the same answer.

        Raises InvalidRequestError: it does not fit, its name is taken, or its P4Runtime server does not answer.
        UnauthenticatedError: another process has taken its name over. ResourceExhaustedError: ask again.
        StoreError. Nothing has changed then.
        """
        config = _checked(request)
        with self._announced(request.name):
            known = self._cache.switch(request.name)
            if known is None or known.incarnation != request.incarnation:
                self._take(config, request.incarnation, known)
            elif known.config != config:
                what = f"switch {request.name!r} is at {known.config.address}, and now at {config.address}"
                raise InvalidRequestError(what, hint="a process that starts anew draws a new incarnation")
            self._renew(request.name)
        return pb.RegisterSwitchResponse(lease_s=self._config.lease_s, heartbeat_s=self._config.heartbeat_s)

    def deregister(self, name: str, incarnation: bytes) -> tuple[str, ...]:
        """Let a switch go, and return the jobs that have a place there. Harmless when that is done, or it was replaced.

        Raises StoreError.
        """
        with self._cache.changed:
            known = self._cache.switch(name)
            if known is None or known.incarnation != incarnation:
                return ()
            if self.is_live(name):
                _log.info("switch %s deregisters", name, extra={"switch": name})
            # The switch stays in the database while jobs have places there: only its lease ends.
            self._until_s[name] = -math.inf
            left = tuple(record.name for record in self._cache.records(name))
        self._forget_unused()
        return left

    def expire(self) -> None:
        """Forget the switches without a lease and without a job. Raises no StoreError: the next call tries again."""
        with suppress(StoreError):
            self._forget_unused()

    def excuse(self, away_s: float) -> None:
        """Extend all leases by seconds in which no switch was heard, none beyond a new one."""
        with self._cache.changed:
            most_s = self._monotonic() + self._config.lease_s
            for name, until_s in self._until_s.items():
                self._until_s[name] = min(until_s + away_s, max(most_s, until_s))

    def is_live(self, name: str) -> bool:
        """Return whether a switch that registered has a lease."""
        return self.lease_left_s(name) > 0

    def lease_left_s(self, name: str) -> float:
        """Return the seconds that are left of the lease of a switch that registered, 0 when it is over."""
        return max(0.0, self._until_s.get(name, -math.inf) - self._monotonic())

    def obstacle(self, switch: SwitchConfig) -> str:
        """Return why a switch takes no further job for its lease's sake, an empty string when it does."""
        if not switch.registered or self.is_live(switch.name):
            return ""
        return f"it has deregistered, or was silent for its lease of {self._config.lease_s:g} s"

    def spread(self, request: JobRequest) -> JobRequest:
        """Return a request over the switches that registered, by name, where it asks for them. Under the cache's lock.

        Raises InvalidRequestError when there are none.
        """
        if not request.hosts:
            return request
        names = tuple(switch.name for switch in self._cache.switches() if self.is_live(switch.name))
        if not names:
            raise InvalidRequestError(
                f"job {request.name!r}: no host's switch has registered", hint="run `hopsum worker-switch` on each host"
            )
        if len(names) == 1:
            return replace(request, hosts=False, switch=names[0])
        found = replace(request, hosts=False, shards=len(names), shard_switches=names)
        found.check()
        return found

    @contextmanager
    def _announced(self, name: str) -> Iterator[None]:
        """Keep a name for one registration at a time, for the block."""
        with self._cache.changed:
            if name in self._coming:
                what = f"switch {name!r} is being registered"
                raise ResourceExhaustedError(what, hint="ask again in a moment")
            self._coming.add(name)
        try:
            yield
        finally:
            with self._cache.changed:
                self._coming.remove(name)

    def _take(self, config: SwitchConfig, incarnation: bytes, known: RegisteredSwitch | None) -> None:
        """Write a switch into the database, and drive it, once its P4Runtime server has answered."""
        self._require_free(config, incarnation, known)
        try:
            source = self._reconcilers.source(config)
            if not isinstance(source, Device):
                # A session is opened and closed as a test: a switch behind a firewall is refused with a reason, not
                # listed as unreachable.
                source().close()
        except ControlPlaneError as error:
            raise InvalidRequestError(
                f"switch {config.name!r}: the controller does not reach its P4Runtime server at {config.address}: "
                f"{error.what}",
                hint="register the address of the interface towards the controller, and let TCP to that port pass",
            ) from error
        replaced = () if known is None else (*known.replaced, known.incarnation)[-KEPT_REPLACED:]
        try:
            self._reconcilers.put(RegisteredSwitch(config, incarnation, replaced))
        except StoreError:
            raise
        except ControlPlaneError as error:
            raise InvalidRequestError(f"switch {config.name!r}: {error.what}", hint=error.hint) from error
        self._renew(config.name)
        where, how = config.address, "in the place of another process" if known else "new"
        _log.info("switch %s registers, %s, P4Runtime at %s", config.name, how, where, extra={"switch": config.name})
        self._reconcilers[config.name].reconcile()

    def _require_free(self, config: SwitchConfig, incarnation: bytes, known: RegisteredSwitch | None) -> None:
        """Raise where the name is another switch's."""
        name = config.name
        if name in self._configured:
            what = f"the controller's configuration has a switch {name!r}"
            raise InvalidRequestError(what, hint="register by another name (--switch-name)")
        if known is None:
            return
        # Two processes under one name would take the switch from each other at every heartbeat.
        if incarnation in known.replaced:
            what = f"switch {name!r} was started again, at {known.config.address}: another process has its name"
            raise UnauthenticatedError(what, hint="run one worker-switch of a name at a time")
        there, here = known.config.service[0], config.service[0]
        if there != here and self.is_live(name):
            lease_s = self._config.lease_s
            hint = f"register by another name (--switch-name), or wait for its lease of {lease_s:g} s to end"
            raise InvalidRequestError(f"switch {name!r} is registered from {there}, and this is {here}", hint=hint)
        # A restarted switch with fewer slots could not hold the jobs that have places on it.
        used = max((record.place(name)[1].end for record in self._cache.records(name)), default=0)
        if used > config.slots:
            what = f"switch {name!r} comes back with {config.slots} slots, and its jobs have slots up to {used}"
            raise InvalidRequestError(what, hint="give it as many slots as before, or delete those jobs first")

    def _forget_unused(self) -> None:
        """Forget the switches without a lease and without a job."""
        gone = []
        with self._cache.changed:
            for switch in self._cache.switches():
                name = switch.name
                if self.is_live(name) or self._cache.records(name) or name in self._coming:
                    continue
                gone.append(self._reconcilers.remove(name))
                self._until_s.pop(name, None)
                _log.info("switch %s is forgotten: no job is there, and it has no lease", name, extra={"switch": name})
        # Outside the cache's lock: a thread at work on the switch may wait for that lock.
        for reconciler in gone:
            reconciler.close()

    def _renew(self, name: str) -> None:
        with self._cache.changed:
            self._until_s[name] = self._monotonic() + self._config.lease_s
