# SPDX-License-Identifier: Apache-2.0
"""The checks of one worker. Each one depends on earlier ones.

    check        not made unless these pass          and then
    membership   -
    rank         membership
    address      rank
    route        address
    mtu          route
    port         address
    switch       port, route                         not while another socket has the worker's port, unless root
    gso          switch                              not while the worker runs, and not with HOPSUM_GSO=off
    generation   switch
    slots        generation
    peers        address
    buffer       membership

The checks do not disturb a running job: they send the switch PROBEs, which change nothing, from an address that it
admits. Peers' side channels get a connection without messages. If the route has a gateway, one PROBE is padded to the
size of the largest datagram, which the switch counts as bad_length.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hopsum.config import ConfigError
from hopsum.connection.membership_url import membership_at
from hopsum.errors import name_ranks
from hopsum_base import interfaces
from hopsum_cli.diagnosis import host_checks, switch_checks
from hopsum_cli.diagnosis.probe_client import ProbeClient, ProbeSource, open_probe_client
from hopsum_cli.diagnosis.rows import CheckRow, DiagnosisReport, Status, failed, of_shard, passed, skipped
from hopsum_wire.membership import Endpoint, JobMembership, MembershipError
from hopsum_wire.payload import LONGEST_BYTES

_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "membership": (),
    "rank": ("membership",),
    "address": ("rank",),
    "route": ("address",),
    "mtu": ("route",),
    "port": ("address",),
    "switch": ("port", "route"),
    "gso": ("switch",),
    "generation": ("switch",),
    "slots": ("generation",),
    "peers": ("address",),
    "buffer": ("membership",),
}

_OF_SHARD: Final = ("route", "mtu", "port", "switch", "gso", "generation", "slots")
"""Checks that are made for each shard of a job."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience of the checks: waits in seconds."""

    answer_s: float = 1.0
    """The time to wait for answers to a handful of PROBEs, for a TCP connection."""
    refusal_s: float = 0.5
    """The time to wait for a router's word that a datagram is too long. It does not come where all is well."""
    settle_s: float = 1.0
    """The time for which a slot that waits may be on its way."""


def examine(location: str, rank: int | None = None, *, patience: Patience | None = None) -> DiagnosisReport:
    """Make all checks of one worker, on the host where it runs or is to run. Errors are rows of the report.

    The switch is sent PROBEs, which change nothing. For further shards only the checks of the switch are made.

    Args:
        location: a membership file, or a URL that names one (file://, raw://).
        rank: the worker's. Left out: that of the worker whose address is on this host.
        patience: the waits. Left out: those of `Patience()`.
    """
    patience = patience or Patience()
    first = _Examination(location, rank, patience)
    report = first.run()
    if report["rank"].status is Status.PASS:
        # The host is the same for all shards, so only the checks of the switch are repeated.
        for number, shard in enumerate(first.membership.further_shards, 1):
            rows = _Examination(location, first.rank, patience, shard).run().rows
            report.rows += [of_shard(row, number) for row in rows if row.check in _OF_SHARD]
    return report


class _Examination:
    """The findings of earlier checks that later ones need."""

    membership: JobMembership
    own: Endpoint
    switch: Endpoint
    route: interfaces.Route

    def __init__(self, location: str, rank: int | None, patience: Patience, shard: JobMembership | None = None) -> None:
        self._location, self._shard = location, shard
        self.rank = -1 if rank is None else rank
        self._patience = patience
        self._client: ProbeClient | None = None
        self._refusal = ""
        self._begun = False
        self.report = DiagnosisReport(f"worker of {location}")

    def run(self) -> DiagnosisReport:
        """Make the checks, each unless one that it needs did not pass."""
        try:
            for check, needs in _NEEDS.items():
                # A check after a failed one would fail for the same reason, and hide the cause.
                lacking = [need for need in needs if self.report[need].status is not Status.PASS]
                made: Callable[[], CheckRow] = getattr(self, "_" + check.replace(" ", "_"))
                self.report.rows.append(
                    skipped(check, f"nothing to be learnt without {lacking[0]}") if lacking else made()
                )
        finally:
            if self._client is not None:
                self._client.close()
        return self.report

    def _membership(self) -> CheckRow:
        fix = "give the file that the controller wrote for this job, or a URL with ?membership=PATH"
        try:
            self.membership = found = self._shard or membership_at(self._location)
        except (MembershipError, ConfigError) as error:
            return failed("membership", str(error), fix)
        told = f"job {found.job!r}, generation {found.generation}, {len(found.workers)} workers, quorum {found.quorum}"
        facts = {"job": found.job, "generation": found.generation, "workers": len(found.workers), "slots": found.slots}
        return passed("membership", f"{told}, window {found.window}", facts)

    def _rank(self) -> CheckRow:
        workers = self.membership.workers
        here = [each.rank for each in workers if interfaces.is_local(each.endpoint.ip)]
        if self.rank < 0 and len(here) == 1:
            self.rank = here[0]
        seat = next((each for each in workers if each.rank == self.rank), None)
        if seat is None:
            there = f"the job has {name_ranks([each.rank for each in workers])}; "
            there += f"{len(here)} of them have addresses of this host" + (
                f": {', '.join(map(str, here))}" if here else ""
            )
            finding = f"no rank {self.rank}: {there}" if self.rank >= 0 else f"which worker? {there}"
            return failed("rank", finding, "say --rank R", {"here": here})
        self.own, self.switch = seat.endpoint, seat.send_to
        self.report.subject = f"rank {self.rank} of job {self.membership.job!r}"
        return passed("rank", f"{self.rank} at {self.own}, sends to {self.switch}", {"rank": self.rank})

    def _address(self) -> CheckRow:
        return host_checks.check_address(self.own)

    def _route(self) -> CheckRow:
        row = host_checks.check_route(self.own, self.switch)
        if row.status is Status.PASS:
            self.route = interfaces.route_to(self.switch.ip, self.own.ip)
            self._open()
        return row

    def _mtu(self) -> CheckRow:
        path_bytes = None
        if self.route.gateway and self._client is not None:
            path_bytes = self._client.path_mtu(LONGEST_BYTES, self._patience.refusal_s)
        return host_checks.check_mtu(self.own, self.switch, path_bytes)

    def _port(self) -> CheckRow:
        # The probe's own socket has the port now, which proves that it was free.
        if self._client is not None and not self._client.transport.how:
            return passed("port", f"UDP {self.own} is free", {"held": False})  # it was; now it is ours
        row = host_checks.check_port(self.own, self.switch)
        self._begun = row.status is Status.PASS and bool(row.facts["held"])
        return row

    def _switch(self) -> CheckRow:
        client = self._client
        if client is None:
            return skipped("switch", self._refusal, "run this as root")
        try:
            return switch_checks.check_switch(client, self.switch, self.route, self._patience.answer_s)
        except OSError as error:
            told = f"nothing can be sent to {self.switch}: {error.strerror or os.strerror(error.errno or 0)}"
            return failed(
                "switch", told, "look for a firewall rule of this host (nft list ruleset, iptables -L OUTPUT)"
            )

    def _gso(self) -> CheckRow:
        client = self._client
        assert client is not None, "after switch"
        if client.transport.how or os.environ.get("HOPSUM_GSO") == "off":
            why = "not tried while the worker runs" if client.transport.how else "HOPSUM_GSO=off"
            return skipped("gso", why)
        return switch_checks.check_gso(client, self.membership.window, self._patience.answer_s)

    def _generation(self) -> CheckRow:
        return switch_checks.check_generation(self.membership, self.report["switch"].facts["generations"])

    def _slots(self) -> CheckRow:
        patience, client = self._patience, self._client
        assert client is not None, "after switch"
        row, window = switch_checks.check_slots(
            client, self.membership, self.rank, wait_s=patience.answer_s, settle_s=patience.settle_s
        )
        self._begun |= window.begun
        return row

    def _peers(self) -> CheckRow:
        return switch_checks.check_peers(
            self.membership, self.own, self.rank, begun=self._begun, wait_s=self._patience.answer_s
        )

    def _buffer(self) -> CheckRow:
        return host_checks.check_buffer(self.membership.window)

    def _open(self) -> None:
        """Open a socket for PROBEs: at the worker's address, or a raw one if the worker runs."""
        source = ProbeSource(self.rank, self.membership.generation, self.own)
        self._client, self._refusal = open_probe_client(source, self.switch)
