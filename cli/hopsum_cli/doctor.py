# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor`: why does a worker not begin, or hang?"""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hopsum.config import Config, ConfigError, resolve
from hopsum.connection.controller_url import controller_at
from hopsum.diagnosis import DiagnosisReport, ObserverIdentity, Patience, Status, examine
from hopsum.diagnosis.joining_side import Admission, examine_admission, not_admitted
from hopsum.errors import HopsumError
from hopsum.rpc.channel import CALL_S, Channel, ControllerError, ControllerUnreachableError
from hopsum.rpc.controller_job import leaf_of, source_towards
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.membership import Endpoint

_MARKS: Final = {Status.PASS: "[green]pass[/]", Status.FAIL: "[bold red]FAIL[/]", Status.SKIP: "[dim]skip[/]"}
_REFUSED: Final = {
    "NOT_FOUND": ("job", "make it (hopsum job create), or give the name of one that is there (hopsum job list)"),
    "UNAUTHENTICATED": ("token", "give the token that hopsum job create printed; a job made again has another one"),
}


def _observer(text: str) -> ObserverIdentity:
    rank, _, endpoint = text.partition("@")
    ip, _, port = endpoint.rpartition(":")
    return ObserverIdentity(int(rank), Endpoint(str(ipaddress.IPv4Address(ip)), int(port)))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum doctor",
        description="Check a worker's way to its switch, on the host where it runs or is to run: each line passes, or "
        "fails with what to do. A running job is not disturbed. Ends with 1 if a line failed. How a controller and its "
        "jobs are, say `hopsum job show` and `hopsum top`.",
    )
    parser.add_argument(
        "target", metavar="MEMBERSHIP", help="membership file of the job, or a URL: hopsum://, file://, udp://"
    )
    parser.add_argument(
        "--rank",
        type=int,
        help="rank of the worker (default: HOPSUM_RANK or RANK, else the rank whose address is on this host)",
    )
    parser.add_argument(
        "--observer", type=_observer, metavar="RANK@IP:PORT", help="probe the switch as this observer of the job"
    )
    parser.add_argument(
        "--timeout", type=float, default=1.0, metavar="SECONDS", help="time to wait for an answer (default %(default)s)"
    )
    parser.add_argument(
        "--stuck-after",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time that a slot may wait for the same ranks before it counts as stuck (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 0 if nothing failed."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.timeout <= 0 or options.stuck_after < 0:
        parser.error("--timeout is more than 0 seconds, --stuck-after 0 or more")
    # A refusal ('port unreachable') comes at once or never: half of the patience is enough for it.
    patience = Patience(answer_s=options.timeout, refusal_s=options.timeout / 2, settle_s=options.stuck_after)
    try:
        # A job's URL has no membership file: the controller is asked first, as a worker asks it.
        if options.target.startswith("hopsum://"):
            report = url_report(resolve({"url": options.target, "rank": options.rank}), patience)
        else:
            # By the settings of workers: HOPSUM_RANK and RANK count here as for a worker in this terminal.
            rank = resolve({"rank": options.rank}).rank
            report = examine(options.target, rank, observer=options.observer, patience=patience)
    except ConfigError as error:
        print(f"hopsum doctor: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        print_report(report, Console())
    return 0 if report.good else 1


def url_report(config: Config, patience: Patience) -> DiagnosisReport:
    """Ask the controller of a hopsum:// URL for its job, as a worker asks, and examine this host's way into the job."""
    url = config.url
    try:
        place, job, token = controller_at(config)
        channel = Channel(place)
    except HopsumError as error:
        return not_admitted(
            url, "url", str(error), "a URL of a controller's job is hopsum://HOST:PORT/JOB?token_file=PATH"
        )
    # Each refusal belongs to the check that it answers, so that its remedy stands beside it.
    with channel:
        try:
            found = _admission(channel, config, job, token)
        except ControllerUnreachableError as error:
            fix = "start it (hopsum controller), give the address where it listens, and ask with TLS where it has TLS"
            return not_admitted(url, "controller", str(error), fix)
        except ControllerError as error:
            check, fix = _REFUSED.get(error.code, ("controller", "see the controller's log"))
            return not_admitted(url, check, str(error), fix)
        except ConfigError as error:
            # At none of a tree's leaves.
            return not_admitted(url, "url", str(error), "set HOPSUM_IP to the address that this worker is to have")
    return examine_admission(url, found, config.rank, patience)


def _admission(channel: Channel, config: Config, job: str, token: str) -> Admission:
    located = MemberClient(channel, job, token).locate(CALL_S)
    send_to = leaf_of(located, config.ip)
    how = "with TLS" if channel.address.tls else "without TLS"
    found = Admission(
        controller=f"{channel.address.target}, {how},",
        job=job,
        workers=located.workers,
        send_to=Endpoint(*send_to),
        # The address that the kernel would take towards this switch: a host may have several.
        own_ip=source_towards(send_to, config.ip),
        further=tuple((Endpoint(*place), source_towards(place, config.ip)) for place in located.further),
    )
    try:
        return replace(found, state=message_to_dict(JobsClient(channel, token).job(job)))
    except ControllerUnreachableError:
        raise
    except ControllerError:
        # A controller that does not show jobs to their tokens: no probe can be a worker's.
        return found


def print_report(report: DiagnosisReport, console: Console) -> None:
    """Print one line for each check, below it what to do, and a verdict."""
    table = Table(title=escape(report.subject), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in report.rows:
        table.add_row(_MARKS[row.status], row.check, escape(row.finding))
        if row.fix:
            table.add_row("", "", f"[bold]->[/] {escape(row.fix)}")
    console.print(table)
    failures = [row.check for row in report.rows if row.status is Status.FAIL]
    skips = sum(row.status is Status.SKIP for row in report.rows)
    left_out = f", {skips} not made" if skips else ""
    if failures:
        console.print(f"[bold red]{', '.join(failures)} failed[/]{left_out}")
    else:
        console.print(f"[bold green]nothing failed[/]{left_out}")
