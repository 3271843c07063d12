# SPDX-License-Identifier: Apache-2.0
"""The checks of a worker's way into a controller's job, on the host where it runs or is to run (hopsum:// URLs).

    check       fails when
    url         it is malformed, or its token cannot be read
    controller  it gives no answer, as it is asked (address, TLS)
    job         it has no such job
    token       it is another job's, or no longer the job's
    address, route, mtu, buffer    as those of a worker with a membership file
    switch      no process listens there, or the switch does not answer a worker of the running generation on this host

The controller is asked with the job's token, as a worker asks. How the job and its other members are, says
`hopsum job show`. The switch is sent PROBEs, which change nothing.
"""

from __future__ import annotations

from typing import Final

from hopsum.config import Config, ConfigError
from hopsum.connection.controller_url import controller_at
from hopsum.errors import HopsumError
from hopsum.rpc.channel import CALL_S, Channel, ControllerAddress, ControllerError, ControllerUnreachableError
from hopsum.rpc.controller_job import source_towards, switch_address
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_base import interfaces
from hopsum_cli.diagnosis import host_checks, switch_checks
from hopsum_cli.diagnosis.probe_client import ProbeSource, open_probe_client
from hopsum_cli.diagnosis.rows import CheckRow, DiagnosisReport, Status, failed, of_shard, passed, skipped
from hopsum_cli.diagnosis.worker_side import Patience
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import Endpoint

_WAY: Final = ("address", "route", "mtu", "switch", "buffer")
_CHECKS: Final = ("url", "controller", "job", "token", *_WAY)
_REFUSED: Final = {
    "NOT_FOUND": ("job", "make it (hopsum job create), or give the name of one that is there (hopsum job list)"),
    "UNAUTHENTICATED": ("token", "give the token that hopsum job create printed; a job made again has another one"),
}
"""By the code of the controller's refusal: the check that fails, and its remedy."""
_TLS_FIX: Final = "renew the certificate that has ended, or give the authority that signed the controller's (ca)"
_SOON_DAYS: Final = 14


def examine_url(config: Config, patience: Patience) -> DiagnosisReport:
    """Ask the controller of a hopsum:// URL for its job, as a worker asks, and check this host's way into the job.

    The switch is sent PROBEs, which change nothing. Errors are rows of the report.

    Args:
        config: the URL, and the rank as which the switch is asked, by default any of the running generation on this
            host.
    """
    url = config.url
    try:
        place, job, token = controller_at(config)
        channel = Channel(place)
    except HopsumError as error:
        fix = "a URL of a controller's job is hopsum://HOST:PORT/JOB?token_file=PATH"
        return _not_admitted(url, "url", str(error), fix)
    # Each refusal belongs to the check that it answers, so that its remedy is shown with it.
    with channel:
        try:
            located = MemberClient(channel, job, token).locate(CALL_S)
            send_to = switch_address(located, config.ip)
            source, window = _member_here(channel, job, token, config.rank)
        except ControllerUnreachableError as error:
            fix = "start it (hopsum controller), give the address where it listens, and ask with TLS where it has TLS"
            return _not_admitted(url, "controller", str(error), _TLS_FIX if error.tls else fix)
        except ControllerError as error:
            check, fix = _REFUSED.get(error.code, ("controller", "see the controller's log"))
            return _not_admitted(url, check, str(error), fix)
        except ConfigError as error:  # at none of a tree's leaves
            return _not_admitted(url, "url", str(error), "set HOPSUM_IP to the address that this worker is to have")
    first, *further = (Endpoint(*send_to), *(Endpoint(each.ip, each.udp_port) for each in located.further))
    asked = f"{place.target}, {'with' if place.tls else 'without'} TLS,"
    shards = "".join(f" and {switch}" for switch in further)
    report = DiagnosisReport(f"worker of {url}")
    report.rows += [
        passed("url", f"job {job!r} of the controller at {asked}"),
        passed("controller", f"{asked} answers", advice=_ends_soon(place)),
        passed("job", f"{located.workers} workers, which send to {first}{shards}"),
        passed("token", "it is the job's"),
    ]
    report.rows += _way(first, source_towards(first.address, config.ip), source, patience)
    report.rows.append(host_checks.check_buffer(window))
    for number, switch in enumerate(further, 1):
        # A member's address is known for shard 0 only: further switches are asked as by a stranger.
        rows = _way(switch, source_towards(switch.address, config.ip), None, patience)
        report.rows += [of_shard(row, number) for row in rows]
    return report


def _ends_soon(place: ControllerAddress) -> str:
    """Return the advice for a controller's certificate that ends soon, an empty string for any other."""
    host, _, port = place.target.rpartition(":")
    left = place.tls_files.days_left(host, int(port)) if place.tls and port.isdecimal() else None
    return "" if left is None or left > _SOON_DAYS else f"have its certificate renewed: it ends in {left:.1f} days"


def _not_admitted(url: str, check: str, finding: str, fix: str) -> DiagnosisReport:
    """Return the report of a worker that cannot even ask where its switch is."""
    report, place = DiagnosisReport(f"worker of {url}"), _CHECKS.index(check)
    report.rows += [passed(earlier, "right") for earlier in _CHECKS[:place]]
    report.rows.append(failed(check, finding, fix))
    report.rows += [skipped(each, f"nothing to be learnt without {check}") for each in _CHECKS[place + 1 :]]
    return report


def _member_here(channel: Channel, job: str, token: str, rank: int | None) -> tuple[ProbeSource | None, int]:
    """Return the member of the running generation on this host that asks the switch, and the window of the job.

    There is no such member before the job runs, and none is known where the controller does not show a job to its
    token. A buffer for one result is then the least that must fit. Raises ControllerUnreachableError.
    """
    try:
        found = JobsClient(channel, token).job(job)
    except ControllerUnreachableError:
        raise
    except ControllerError:
        return None, 1
    for member in found.members if found.state == pb.JOB_STATE_RUNNING else ():
        ip = member.endpoint.ip
        if member.phase == pb.MEMBER_PHASE_IN and interfaces.is_local(ip) and rank in (None, member.rank):
            source = ProbeSource(member.rank, found.generation, Endpoint(ip, member.endpoint.udp_port))
            return source, found.slots
    return None, found.slots


def _way(switch: Endpoint, own_ip: str | None, source: ProbeSource | None, patience: Patience) -> list[CheckRow]:
    """Check address, route, MTU and the switch itself, in this order, each only if those before it passed."""
    if own_ip is None and source is None:
        fix = (
            f"add a route to {switch.ip}, or have the switch's service_address mended in the controller's configuration"
        )
        missing = failed("address", f"this host has no way to {switch.ip}, where workers send to", fix)
        return [missing, *(skipped(check, "nothing to be learnt without address") for check in _WAY[1:4])]
    own = Endpoint(own_ip or "", 0) if source is None else source.local
    rows = [host_checks.check_address(own)]
    if rows[0].status is Status.PASS:
        rows.append(host_checks.check_route(own, switch))
    if rows[-1].status is Status.PASS:
        return [*rows, host_checks.check_mtu(own, switch, None), _ask_switch(switch, own, source, patience)]
    return rows + [skipped(check, f"nothing to be learnt without {rows[-1].check}") for check in _WAY[len(rows) : 4]]


def _ask_switch(switch: Endpoint, own: Endpoint, source: ProbeSource | None, patience: Patience) -> CheckRow:
    """Send PROBEs to the switch, as the member of the job, or as a stranger who only hears that nobody listens."""
    client, refusal = open_probe_client(source or ProbeSource(0, 0, own), switch)
    if client is None:
        return skipped("switch", refusal, "run this as root")
    try:
        if source is not None:
            return switch_checks.check_switch(client, switch, interfaces.route_to(switch.ip, own.ip), patience.answer_s)
        # A switch answers no stranger: then silence means nothing, and only ICMP tells something.
        client.ask([(0, 1)], wait_s=patience.answer_s)
        told = (
            f"{switch} refuses nothing; it answers workers of a running generation only, and none of this job is here"
        )
        return switch_checks.unreachable_switch(client, switch) or skipped("switch", told)
    except OSError as error:
        fix = "look for a firewall rule of this host (nft list ruleset, iptables -L OUTPUT)"
        return failed("switch", f"nothing can be sent to {switch}: {error.strerror}", fix)
    finally:
        client.close()
