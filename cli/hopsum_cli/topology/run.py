# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology run`: a network from its start to its end, in this order::

    network -> forwarding and losses -> all reach all -> jobs -> COMMAND on every worker -> what links carried

and taken down in the reverse order, whatever happens on the way. After SIGKILL the kernel ends the switches and
workers, and the cleanup process removes the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from hopsum.codec import job_tables, make_codec
from hopsum_base.owned_folder import OwnedFolder
from hopsum_cli.topology.drawing import link_words
from hopsum_cli.topology.own_program import run_program
from hopsum_cli.topology.worker_commands import commands_for, print_events
from hopsum_controlplane import ControlPlaneError
from hopsum_topologies.commands import run_in_namespaces
from hopsum_topologies.description import JobPlan, Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_job import LocalJob
from hopsum_topologies.mininet_network import MininetNetwork, start_network
from hopsum_topologies.network_control import NetworkControl
from hopsum_topologies.running_network import (
    LinkTraffic,
    RunningNetwork,
    read_traffic,
    read_traffic_since,
    require_all_reachable,
)

REACH_S: Final = 20.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Request(NamedTuple):
    """A run of a network. `command` runs on every worker, and is empty for none. `slots` are those of each job.

    `aggregate_at` is the switch that sums jobs whose workers are at several switches, None for a tree. `output` is a
    JSON file for the counts of links, None for no file.

    `program` is the user's own, JSON and P4Info, and `control` the command that writes its entries. `cli` asks for
    Mininet's prompt.
    """

    topology: Topology
    target: str
    command: tuple[str, ...]
    codec: str
    slots: int
    aggregate_at: str | None
    output: Path | None
    program: tuple[Path, Path] | None = None
    control: tuple[str, ...] = ()
    cli: bool = False


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let the first of SIGNALS raise SystemExit in the main thread, which must be the caller, during the block.

    So all context managers take down what they made. Prints the signal's name to stderr, ignores later ones, and
    restores the handlers at the end. The exit status is that of shells: 128 and the signal's number.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        # Later signals are ignored: an exception inside the end of one context manager would skip that of others.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        # Not by print: the signal may have come inside a print of this thread, whose buffer takes no second writer.
        os.write(sys.stderr.fileno(), f"hopsum topology: {signal.Signals(number).name}: taken down\n".encode())
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(request: Request) -> int:
    """Bring a network up, make its jobs, run the command on each worker, and take all down. Needs root.

    Prints the workers' output, and the counts of links to stderr. Returns the worst exit status of the workers, or 1
    with a printed reason when a step fails. SIGINT, SIGTERM and SIGHUP raise SystemExit after all is taken down. Runs
    in the main thread only.
    """
    try:
        with exit_on_signal():
            return _run(request)
    except (TopologyError, ControlPlaneError) as error:
        print(f"hopsum topology: {error}", file=sys.stderr)
        return 1


def _run(request: Request) -> int:
    topology = request.topology
    if request.aggregate_at is not None and request.aggregate_at not in topology.switches:
        raise TopologyError(
            f"--aggregate-at {request.aggregate_at}: switches of {topology.name!r} are {', '.join(topology.switches)}"
        )
    lossy = [str(link) for link in topology.links if link.loss]
    if request.program is not None and lossy:
        raise TopologyError(
            f"topology {topology.name!r}: links {', '.join(lossy)} lose frames by hopsum's own program, and "
            "another one runs here; describe them without loss"
        )
    if request.command and not topology.jobs and request.program is None:
        raise TopologyError(f"topology {topology.name!r} has no jobs: nobody runs {request.command[0]!r}")
    with ExitStack() as stack:
        folder = stack.enter_context(OwnedFolder("topology"))
        network: RunningNetwork = stack.enter_context(start_network(topology, request.target, folder))
        # gRPC's threads stay in the namespace in which they start, and bmv2 listens on the loopback of the home.
        stack.enter_context(network.home.inside())
        if request.program is not None:
            before = read_traffic(network)
            status = run_program(network, request.program, request.control, request.command, folder)
            _prompt(request, network, {})
            _report(request, read_traffic_since(network, before), 0, status)
            return status
        control = stack.enter_context(NetworkControl(network))
        before = read_traffic(network)
        # Forwarding is known to work before a job is made, on every path that a worker may take.
        require_all_reachable(network, REACH_S)
        _say(f"{topology.name} runs ({request.target}): every host reaches every other and every switch")
        # Jobs are made only on a network that works: a lost frame would look like a fault of the job.
        placed = _install(request, control)
        memberships = _write_memberships(topology, placed, folder)
        status = 0
        if request.command:
            # From here on, so that the echo requests of require_all_reachable are not counted.
            before = read_traffic(network)
            commands = commands_for(topology, request.command, memberships, request.codec)
            with closing(run_in_namespaces(commands, network.hosts)) as events:
                status = print_events(events)
        _prompt(request, network, memberships)
        # Read before the switches' counters: a frame on its way then counts as lost, never as invented.
        links = read_traffic_since(network, before)
        _report(request, links, control.read_simulated_losses(), status)
        return status


def _prompt(request: Request, network: RunningNetwork, memberships: Mapping[str, Path]) -> None:
    """Give Mininet's prompt, if it was asked for, and say how a host takes part in its job."""
    if not request.cli:
        return
    assert isinstance(network, MininetNetwork)
    for job in request.topology.jobs:
        for rank, host in enumerate(job.workers):
            if host in memberships:
                _say(f"{host}: HOPSUM_URL=file://{memberships[host]} HOPSUM_RANK={rank} HOPSUM_CODEC={request.codec}")
    network.prompt()


def _install(request: Request, control: NetworkControl) -> dict[str, LocalJob]:
    """Make the jobs that can be made, and return them by name."""
    made: dict[str, LocalJob] = {}
    for job in request.topology.jobs:
        # The tables are the same for every backend, and numpy compiles nothing.
        tables = job_tables(make_codec(request.codec, workers=len(job.workers), backend="numpy"))
        placed = control.create_job(job, request.slots, tables, flat=request.aggregate_at)
        if placed is None:
            _say(_no_spine(request.topology, job))
            continue
        made[job.name] = placed
        _say(f"job {job.name}: {len(job.workers)} workers, summed {placed.where}, {request.slots} slots")
    return made


def _write_memberships(topology: Topology, placed: Mapping[str, LocalJob], folder: Path) -> dict[str, Path]:
    """Write the membership of every host whose job was made. Return the files by host."""
    return {
        host: placed[job.name].write(folder / f"job-{host}.json", rank)
        for job in topology.jobs
        if job.name in placed
        for rank, host in enumerate(job.workers)
    }


def _no_spine(topology: Topology, job: JobPlan) -> str:
    switches = " and ".join(topology.switches_of(job))
    return (
        f"job {job.name} is not installed and HOPSUM_URL not set: its workers are at {switches}, and no other switch "
        f"is next to all of them, to complete partial sums; "
        f"--aggregate-at {topology.switches[-1]} sums all at that one switch"
    )


def _report(request: Request, carried: Mapping[Link, LinkTraffic], lost: int, status: int) -> None:
    table = Table(box=None, header_style="")
    table.add_column("link")
    for heading in ("→ frames", "→ bytes", "← frames", "← bytes"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for link, counts in carried.items():
        table.add_row(str(link), *(f"{count:,}" for count in counts), ", ".join(link_words(link)))
    Console(stderr=True, highlight=False).print(table)
    if any(link.loss for link in carried):
        _say(f"{lost} frames were lost on purpose since the start")
    if request.output is not None:
        links = [{"link": str(link), **counts._asdict()} for link, counts in carried.items()]
        written = {"status": status, "lost": lost, "links": links}
        try:
            request.output.write_text(json.dumps(written, indent=2) + "\n")
        except OSError as error:
            raise TopologyError(f"the counts cannot be written: {error}") from error


def _say(text: str) -> None:
    print(f"hopsum topology: {text}", file=sys.stderr, flush=True)
