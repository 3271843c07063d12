# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum doctor`: of a worker's side, or with --controller of the controller's."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from hopsum.config import ConfigError, resolve
from hopsum.diagnosis import DiagnosisReport, ObserverIdentity, Patience, examine
from hopsum_cli.context import ContextError, complete, read_context
from hopsum_cli.doctor.report import print_report
from hopsum_cli.operator_arguments import add_operator_arguments
from hopsum_wire.membership import Endpoint


def _observer(text: str) -> ObserverIdentity:
    rank, _, endpoint = text.partition("@")
    ip, _, port = endpoint.rpartition(":")
    return ObserverIdentity(int(rank), Endpoint(str(ipaddress.IPv4Address(ip)), int(port)))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum doctor",
        description="Check a worker's way to its switch, on the host where it runs or is to run: each line passes, or "
        "fails with what to do. With --controller check a controller's switches and jobs instead, from anywhere. A "
        "running job is not disturbed. Ends with 1 if a line failed.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MEMBERSHIP",
        help="membership file of the job, or a URL: hopsum://, file://, udp://",
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
        metavar="SECONDS",
        help="time that a slot may wait for the same ranks before it counts as stuck (default 1; for the jobs of "
        "a controller: until every member was heard)",
    )
    add_operator_arguments(parser)
    parser.add_argument("--job", metavar="NAME", help="examine only this job of the controller")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 0 if nothing failed."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.timeout <= 0 or (options.stuck_after is not None and options.stuck_after < 0):
        parser.error("--timeout is more than 0 seconds, --stuck-after 0 or more")
    if options.target is not None and options.controller is not None:
        parser.error("give either MEMBERSHIP or --controller")
    try:
        if options.target is None:
            if not options.controller and "controller" not in read_context(os.environ):
                parser.error("give MEMBERSHIP or --controller, or set HOPSUM_CONTROLLER")
            return _examine_controller(complete(options))
        rank = resolve({"rank": options.rank}).rank
    except (ConfigError, ContextError) as error:
        print(f"hopsum doctor: {error}", file=sys.stderr)
        return 1
    settle_s = 1.0 if options.stuck_after is None else options.stuck_after
    patience = Patience(answer_s=options.timeout, refusal_s=options.timeout / 2, settle_s=settle_s)
    if options.target.startswith("hopsum://"):
        return _examine_url(options, patience)
    return _print(examine(options.target, rank, observer=options.observer, patience=patience), options)


def _examine_url(options: argparse.Namespace, patience: Patience) -> int:
    try:
        from hopsum_cli.doctor.job_url import url_report
    except ModuleNotFoundError as error:
        print(f"hopsum doctor: hopsum:// needs {error.name}; pip install hopsum", file=sys.stderr)
        return 1
    config = resolve({"url": options.target, "rank": options.rank})
    return _print(url_report(config, patience, options.stuck_after), options)


def _examine_controller(options: argparse.Namespace) -> int:
    try:
        from hopsum_cli.doctor.controller import controller_report
    except ModuleNotFoundError as error:
        print(f"hopsum doctor: --controller needs {error.name}; pip install hopsum", file=sys.stderr)
        return 1
    return _print(controller_report(options), options)


def _print(report: DiagnosisReport, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        print_report(report, Console())
    return 0 if report.good else 1
