# SPDX-License-Identifier: Apache-2.0
"""On which switch a job goes, and where a member stands: pure functions of the configuration and what is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from hopsum.wire import MAX_JOBS
from hopsum_controlplane.allotments import Allotment, Allotments, Room
from hopsum_controlplane.cluster.config import SwitchConfig
from hopsum_controlplane.cluster.errors import InvalidRequest, NoRoom
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import WorkerEndpoint


class Candidate(NamedTuple):
    """A switch that a job may go to: what is left there, and why it cannot be used if it cannot."""

    config: SwitchConfig
    allotments: Allotments
    obstacle: str = ""

    @property
    def room(self) -> Room:
        """Return what is left."""
        return self.allotments.room


def taken(config: SwitchConfig, records: Iterable[JobRecord]) -> Allotments:
    """Return what the records of a switch leave of it. Raises ControlPlaneError when they do not fit its slots."""
    allotments = Allotments(config.slots)
    for record in records:
        try:
            allotments.reserve(record.region.size, Allotment(record.job_index, record.region))
        except ControlPlaneError as error:
            raise ControlPlaneError(
                f"job {record.name!r} is in the books with a place that switch {config.name!r} does not have: "
                f"{error.what}",
                hint="configure as many slots as before, or delete the job first",
            ) from error
    return allotments


def place(request: JobRequest, candidates: Sequence[Candidate]) -> tuple[str, Allotment]:
    """Return the switch for a job and its place there, which is reserved in the candidate's allotments.

    It is the one that the request names, or of those that reach every network of the cluster the one with most free
    slots, the first of equals. Raises NoRoom or InvalidRequest saying for every switch why not, and what would fit.
    """
    if request.switch is None:
        eligible = _reaching(candidates)
    else:
        eligible = [candidate for candidate in candidates if candidate.config.name == request.switch]
    fitting = [candidate for candidate in eligible if not _why_not(request, candidate)]
    if not fitting:
        reasons = "; ".join(f"{each.config.name}: {_why_not(request, each)}" for each in eligible)
        most = max((each.room.largest_range for each in eligible if each.room.jobs and not each.obstacle), default=0)
        hint = f"ask for up to {most} slots, or delete a job" if most else "delete a job, or see to the switches"
        raise NoRoom(f"no place for job {request.name!r} with {request.slots} slots: {reasons}", hint=hint)
    best = max(fitting, key=lambda candidate: candidate.room.slots)  # the first of equals
    return best.config.name, best.allotments.reserve(request.slots)


def endpoint(request: JoinRequest, rank: int, switch: SwitchConfig) -> WorkerEndpoint:
    """Return where a member stands: its switch port by its address.

    Raises InvalidRequest when no port of the switch has its network, or its MAC address is needed and missing.
    """
    port = switch.port_of(IPv4Address(request.ip))
    if port is None:
        raise InvalidRequest(
            f"{request.ip} is of no network of switch {switch.name!r}, which has "
            + ", ".join(str(rule) for rule in switch.ports),
            hint="join from an address of these, or add a rule to the switch's ports",
        )
    mac = request.mac or _made_up_mac(switch, port)
    return WorkerEndpoint(rank, port, mac, request.ip, request.udp_port)


def _reaching(candidates: Sequence[Candidate]) -> list[Candidate]:
    networks = {rule.network for candidate in candidates for rule in candidate.config.ports}
    reaching = [candidate for candidate in candidates if _unreached(candidate.config, networks) is None]
    if not reaching:
        lacking = "; ".join(f"{each.config.name} lacks {_unreached(each.config, networks)}" for each in candidates)
        raise InvalidRequest(
            f"no switch reaches the workers of all networks: {lacking}",
            hint="name the switch that the job's workers are at",
        )
    return reaching


def _unreached(config: SwitchConfig, networks: Iterable[IPv4Network]) -> IPv4Network | None:
    reached = list(collapse_addresses(rule.network for rule in config.ports))
    return next((each for each in sorted(networks) if not any(each.subnet_of(known) for known in reached)), None)


def _why_not(request: JobRequest, candidate: Candidate) -> str:
    room = candidate.room
    if candidate.obstacle:
        return candidate.obstacle
    if room.jobs == 0:
        return f"all {MAX_JOBS} jobs are taken"
    if room.largest_range < request.slots:
        return (
            f"the largest free range has {room.largest_range} of {candidate.config.slots} slots, "
            f"{room.slots} are free in all"
        )
    return ""


def _made_up_mac(switch: SwitchConfig, port: int) -> str:
    """Return the address that a UDP port of the embedded switch gives everybody behind it."""
    if switch.driver != "native":
        raise InvalidRequest(
            f"no MAC address, which a {switch.driver} switch needs", hint="join with that of the worker's interface"
        )
    return f"02:00:00:{port >> 8:02x}:01:{port & 0xFF:02x}"
