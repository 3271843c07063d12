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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hopsum.diagnosis import host_checks, kernel, switch_checks
from hopsum.diagnosis.probe_client import ProbeClient, ProbeSource, open_probe_client
from hopsum.diagnosis.rows import CheckRow, DiagnosisReport, Status, failed, of_shard, passed, skipped
from hopsum.diagnosis.worker_side import Patience
from hopsum_wire.membership import Endpoint

WAY: Final = ("address", "route", "mtu", "switch", "buffer")
ASKED: Final = ("url", "controller", "job", "token")
CHECKS: Final = (*ASKED, *WAY)


@dataclass(frozen=True, slots=True)
class Admission:
    """The controller's answers to the job's token.

    Args:
        controller: its address, and whether it was asked with TLS, in words.
        workers: number of the job's workers.
        send_to: the switch that this host's workers send to.
        own_ip: this host's address towards the switch, None without a way there.
        state: the job, as `hopsum_wire.control.values.message_to_dict` gives it; None where the controller does not
            show a job to its token.
        further: the switches of shards 1 and up, each with this host's address towards it.
    """

    controller: str
    job: str
    workers: int
    send_to: Endpoint
    own_ip: str | None
    state: Mapping[str, Any] | None = None
    further: tuple[tuple[Endpoint, str | None], ...] = ()


def not_admitted(url: str, check: str, finding: str, fix: str) -> DiagnosisReport:
    """Return the report of a worker that cannot even ask where its switch is. `check` is one of ASKED."""
    report = DiagnosisReport(f"worker of {url}")
    report.rows += [passed(earlier, "right") for earlier in ASKED[: ASKED.index(check)]]
    report.rows.append(failed(check, finding, fix))
    left = CHECKS[CHECKS.index(check) + 1 :]
    report.rows += [skipped(each, f"nothing to be learnt without {check}") for each in left]
    return report


def examine_admission(url: str, found: Admission, rank: int | None, patience: Patience) -> DiagnosisReport:
    """Make the checks that follow the controller's answer.

    Args:
        rank: which worker asks the switch, by default any of the running generation on this host.
    """
    report = DiagnosisReport(f"worker of {url}")
    report.rows += [
        passed("url", f"job {found.job!r} of the controller at {found.controller}"),
        passed("controller", f"{found.controller} answers"),
        passed("job", f"{found.workers} workers, which send to {found.send_to}{_and_shards(found)}"),
        passed("token", "it is the job's"),
    ]
    report.rows += _Way(found, rank, patience).rows()
    for number, (switch, own_ip) in enumerate(found.further, 1):
        other = replace(found, send_to=switch, own_ip=own_ip, state=None)  # without members' addresses
        rows = _Way(other, rank, patience).rows()
        report.rows += [of_shard(row, number) for row in rows if row.check in ("address", "route", "mtu", "switch")]
    return report


def _and_shards(found: Admission) -> str:
    return "".join(f" and {switch}" for switch, _ in found.further)


class _Way:
    """The way from this host to the switch."""

    def __init__(self, found: Admission, rank: int | None, patience: Patience) -> None:
        self._found, self._patience = found, patience
        self._job = found.state
        self._member = _member_here(self._job, rank)
        self._own = Endpoint(found.own_ip, 0) if found.own_ip is not None else None
        if self._member is not None:
            self._own = Endpoint(self._member["endpoint"]["ip"], int(self._member["endpoint"]["udp_port"]))

    def rows(self) -> list[CheckRow]:
        """Make the checks of WAY in their order."""
        switch, own = self._found.send_to, self._own
        if own is None:
            mended = "have the switch's service_address mended in the controller's configuration"
            fix = f"add a route to {switch.ip}, or {mended}"
            missing = failed("address", f"this host has no way to {switch.ip}, where workers send to", fix)
            return [missing, *(skipped(check, "nothing to be learnt without address") for check in WAY[1:])]
        rows = [host_checks.check_address(own)]
        if rows[0].status is Status.PASS:
            rows.append(host_checks.check_route(own, switch))
        if rows[-1].status is not Status.PASS:
            rows += [skipped(check, f"nothing to be learnt without {rows[-1].check}") for check in WAY[len(rows) : 4]]
        else:
            rows.append(host_checks.check_mtu(own, switch, None))
            rows.append(self._asked(own, kernel.route_to(switch.ip, own.ip)))
        # Without the job's numbers a buffer for one result is the least that must fit.
        window = int(self._job["slots"]) if self._job is not None else 1
        return [*rows, host_checks.check_buffer(window)]

    def _asked(self, own: Endpoint, route: kernel.Route) -> CheckRow:
        """Check the switch by PROBEs."""
        client, refusal = self._client(own)
        if client is None:
            return skipped("switch", refusal, "run this as root")
        try:
            # A switch answers no stranger: then silence means nothing, and only ICMP tells something.
            if self._member is None:
                return self._listens(client)
            return switch_checks.check_switch(client, self._found.send_to, route, self._patience.answer_s)
        except OSError as error:
            told = f"nothing can be sent to {self._found.send_to}: {error.strerror}"
            return failed(
                "switch", told, "look for a firewall rule of this host (nft list ruleset, iptables -L OUTPUT)"
            )
        finally:
            client.close()

    def _client(self, own: Endpoint) -> tuple[ProbeClient | None, str]:
        rank, generation = (
            (0, 0) if self._member is None else (int(self._member["rank"]), int((self._job or {})["generation"]))
        )
        return open_probe_client(ProbeSource(rank, generation, own), self._found.send_to)

    def _listens(self, client: ProbeClient) -> CheckRow:
        """Check that no answer says that nobody listens: a switch answers members of a generation only."""
        where = self._found.send_to
        client.ask([(0, 1)], wait_s=self._patience.answer_s)
        unreachable = switch_checks.unreachable_switch(client, where)
        if unreachable is not None:
            return unreachable
        told = f"{where} refuses nothing; it answers workers of a running generation only, and none of this job is here"
        return skipped("switch", told)


def _member_here(job: Mapping[str, Any] | None, rank: int | None) -> Mapping[str, Any] | None:
    """Return the member of a job's running generation on this host that asks, or None where there is none."""
    if job is None or job["state"] != "running":
        return None
    for member in job["members"]:
        endpoint = member["endpoint"]
        here = member["phase"] == "in" and endpoint is not None and kernel.is_local(endpoint["ip"])
        if here and rank in (None, member["rank"]):
            found: Mapping[str, Any] = member
            return found
    return None
