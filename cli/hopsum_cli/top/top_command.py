# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum top`, and its loop."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hopsum.errors import HopsumError
from hopsum.rpc.channel import ControllerUnreachableError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_base.units import seconds
from hopsum_cli.context import add_operator_arguments
from hopsum_cli.operator import operator_client, take_snapshot
from hopsum_cli.top.screen import screen
from hopsum_wire.watch.rates import document
from hopsum_wire.watch.snapshots import ControllerSnapshot, matches_words, rates_are_known

_AGAIN_S = 0.25
"""The time between the snapshots of --once that wait for heartbeats."""
_LONGEST_S = 30.0
RATE_WINDOW_S: Final = 15.0
"""The time over which rates are taken."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum top",
        description="Show a controller's switches and jobs, rates, and the ranks for which a job waits. Agents' counts "
        "come from their heartbeats: a rate is - before there are two of each rank.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="show only jobs with each of these words in their name, state or status, such as running or failed",
    )
    add_operator_arguments(parser)
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between two snapshots (default %(default)s)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print two snapshots at least --interval apart, with a heartbeat of each rank in between, and exit",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Draw the screen anew, or print a JSON line, at each interval until it is interrupted. With --once print it once.

    Return 0, or 1 with a printed reason, when the controller refuses. A screen waits for a controller that does not
    answer, --once and --json do not.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        with operator_client(options) as client:
            if options.once:
                _once(client, options)
            else:
                _watch(client, options)
    except HopsumError as error:
        print(f"hopsum top: {error}", file=sys.stderr)
        return 1
    return 0


def _once(client: JobsClient, options: argparse.Namespace) -> None:
    before = take_snapshot(client)
    time.sleep(options.interval)
    # Rates need two heartbeats of each rank. Their interval is the controller's, and may exceed --interval.
    while not rates_are_known(before, after := take_snapshot(client)) and after.at_s - before.at_s < _LONGEST_S:
        time.sleep(_AGAIN_S)
    shown, left_out = _asked_for(document(before, after), options.words)
    if options.json:
        print(json.dumps(shown))
    else:
        console = Console()
        console.print(screen(shown, console.width, left_out=left_out))


def _watch(client: JobsClient, options: argparse.Namespace) -> None:
    if options.json:
        for shown, _ in _documents(client, options):
            print(json.dumps(shown), flush=True)
        return
    with Live(auto_refresh=False, screen=True) as live:
        while True:
            try:
                for shown, left_out in _documents(client, options):
                    live.update(screen(shown, live.console.width, left_out=left_out), refresh=True)
            except ControllerUnreachableError as error:
                # A controller that is started again comes back by itself.
                live.update(Text(str(error), style="red"), refresh=True)
                time.sleep(options.interval)


def _documents(client: JobsClient, options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], int]]:
    snapshots = deque([take_snapshot(client)])
    while True:
        time.sleep(options.interval)
        snapshots.append(take_snapshot(client))
        # A window in place of two snapshots: a rate over one interval would jump with each heartbeat.
        _forget(snapshots, RATE_WINDOW_S)
        yield _asked_for(document(snapshots[0], snapshots[-1]), options.words)


def _asked_for(shown: dict[str, Any], words: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return a document with the jobs only that have these words, and how many others it had."""
    jobs = [job for job in shown["jobs"] if matches_words(job, words)]
    return {**shown, "jobs": jobs}, len(shown["jobs"]) - len(jobs)


def _forget(snapshots: deque[ControllerSnapshot], window_s: float) -> None:
    """Drop what is older than the window, but for the last snapshot before it."""
    while len(snapshots) > 2 and snapshots[-1].at_s - snapshots[1].at_s >= window_s:
        snapshots.popleft()
