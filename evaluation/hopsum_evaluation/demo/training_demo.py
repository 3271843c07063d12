# SPDX-License-Identifier: Apache-2.0
"""`hopsum demo`: a training through the switch, then the same in fp32; the run, its checks and its tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hopsum.codec import job_tables, make_codec
from hopsum.codec.arguments import check_codec, switch_codec_argument
from hopsum.codec.range_codec import RangeCodec
from hopsum.transport.worker_loop import compiled_kernel
from hopsum_base.owned_folder import OwnedFolder
from hopsum_base.units import format_rate, rate_bits_per_s, real, whole
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.bench.timing import machine, processors_of
from hopsum_evaluation.command_options import add_link_options, check_link_options
from hopsum_evaluation.demo.counted_testbed import (
    ARRIVED,
    DemoCounts,
    demo_network,
    make_job,
    read_counts,
    read_until_stable,
)
from hopsum_evaluation.demo.demo_worker import DemoPlan, DemoResult, work
from hopsum_evaluation.demo.digits_network import MissingDataError, load_images
from hopsum_topologies.description import Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import InterfaceCounters, LocalCluster
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

BATCH = 32
DEADLINE_S = 60.0
MAX_WORKERS = 16
STEPS = 100
WORKERS = 4
RATE_BITS_PER_S = 200e6
LEAST_RATE_BITS_PER_S = 1e6
PARAMETERS = 1_000_000
FEW_PARAMETERS = 38_300
"""Of networks whose frames pass bmv2 or scapy, which take a thousandth of what the embedded switch's sockets take."""
MAX_LOSS = 0.3


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum demo",
        description="Train a convolutional network under torch DDP, gradients summed by a switch; then the same "
        "training under plain fp32 all-reduce, and compare. Workers have links of --rate where this machine can make "
        "network namespaces, and share loopback otherwise.",
    )
    parser.add_argument(
        "--target",
        choices=("native", "bmv2", "mininet"),
        default="native",
        help="switch: embedded (native), bmv2, or bmv2 in Mininet (default %(default)s)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="network of `hopsum topology list`, or a description, FILE.json, in namespaces or Mininet, in place of "
        "one switch; two_rack is a tree",
    )
    parser.add_argument(
        "--workers",
        type=whole(1, MAX_WORKERS),
        help=f"number of workers, 1 to {MAX_WORKERS} (default {WORKERS}, or as many as the file of --topology has)",
    )
    parser.add_argument("--steps", type=whole(1), default=STEPS, help="number of training steps (default %(default)s)")
    parser.add_argument(
        "--rate", type=_rate, metavar="RATE",
        help="rate of the workers' links to one embedded switch (default 200mbit)",
    )  # fmt: skip
    parser.add_argument(
        "--parameters", type=whole(1), metavar="N",
        help=f"about so many parameters (default {PARAMETERS}; {FEW_PARAMETERS} for bmv2, scapy and topologies)",
    )  # fmt: skip
    parser.add_argument(
        "--codec", type=switch_codec_argument, default="thc",
        help="codec of the workers: thc:bits=2 (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--data", choices=("digits", "fashion"), default="digits", help="data set (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=whole(0), default=1, help="seed of the data, the model and the rotations (default %(default)s)"
    )
    parser.add_argument("--quorum", type=whole(1), help="workers that complete a sum (default: all of them)")
    parser.add_argument(
        "--loss",
        type=real(0, MAX_LOSS),
        default=0.0,
        help="share of frames, 0 to 0.3, that the switch drops in each direction (default 0)",
    )
    parser.add_argument(
        "--no-peer-repair", action="store_true", help="no repair between workers of what the switch no longer has"
    )
    add_link_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def _rate(text: str) -> float:
    if (rate := rate_bits_per_s(text)) >= LEAST_RATE_BITS_PER_S:
        return rate
    raise argparse.ArgumentTypeError(
        f"{text!r}: at least {format_rate(LEAST_RATE_BITS_PER_S)}, or a sum takes too long"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the demo, and print tables or JSON. Return 0 if every check holds, else 1, also where it cannot run.

    Without root the process may be replaced by the same command as root of a user namespace.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        network = _network(options)
    except TopologyError as error:
        print(f"hopsum demo: {error}", file=sys.stderr)
        return 1
    _check(parser, options)
    check_codec(parser, options.codec, options.workers)
    console = Console(stderr=options.json)
    report = DemoReport(
        options.target, options.codec, options.workers, options.steps, options.data, options.seed,
        quorum=options.quorum, loss=options.loss, peers=not options.no_peer_repair,
    )  # fmt: skip
    one_native = options.target == "native" and network is None and options.link == "udp"
    if options.rate is not None and not one_native:
        parser.error("--rate: links of one embedded switch only: not with --topology, --target or --link")
    start = time.perf_counter()
    try:
        load_images(options.data)
        if network is not None:
            report.topology = network.name
            report.loss = max(link.loss for link in network.links)
        if one_native and os.geteuid() != 0:
            _become_root_of_namespaces()
        with OwnedFolder("demo") as folder:
            plan = make_plan(report, folder)
            plan = replace(plan, link=options.link, pcap=options.pcap, show=options.show)
            if one_native:
                plan = replace(plan, parameters=PARAMETERS, rate_bits_per_s=options.rate or RATE_BITS_PER_S)
            if options.parameters is not None:
                plan = replace(plan, parameters=options.parameters)
            run(plan, report, console, network)
    except (ControlPlaneError, TopologyError, WorkerDiedError, MissingDataError) as error:
        print(f"hopsum demo: {error}", file=sys.stderr)
        return 1
    report.seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        report.print(console)
    return 0 if report.good else 1


def _become_root_of_namespaces() -> None:
    """Begin this command again as root of a user namespace, where the kernel lets this user make one."""
    # `ip netns` writes below /run. A network namespace of ours, since nobody may return to the machine's from another.
    inside = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'
    command = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", inside, "sh")
    with suppress(OSError):
        if subprocess.run((*command, "true"), capture_output=True, check=False).returncode == 0:
            os.execvp(command[0], (*command, *sys.orig_argv))


def _network(options: argparse.Namespace) -> Topology | None:
    """Find the network of --topology, and set the number of workers. Raises TopologyError."""
    if options.topology is None:
        options.workers = WORKERS if options.workers is None else options.workers
        return None
    if options.workers is None and not options.topology.endswith(".json"):
        options.workers = WORKERS
    network = demo_network(options.topology, options.workers)
    options.workers = len(network.jobs[0].workers)
    return network


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a message when numbers are out of range or options exclude each other."""
    if not 1 <= options.workers <= MAX_WORKERS:
        parser.error(f"--workers {options.workers}: 1 to {MAX_WORKERS}")
    if options.steps < 20:
        parser.error(f"--steps {options.steps}: at least 20, since the first ten and the last ten are compared")
    options.quorum = options.workers if options.quorum is None else options.quorum
    if options.quorum > options.workers:
        parser.error(f"--quorum {options.quorum}: 1 to {options.workers}, the workers")
    if options.topology is not None and (options.loss or options.quorum < options.workers):
        parser.error("--topology: its links say what is lost, and all workers complete a sum: no --loss, no --quorum")
    if options.target == "mininet" and options.topology is None:
        parser.error("--target mininet: say which network, --topology NAME")
    check_link_options(parser, options)


def make_plan(report: DemoReport, folder: Path, deadline_s: float = DEADLINE_S) -> DemoPlan:
    """Return the plan of the run that `report` describes, with UDP links of no rate and FEW_PARAMETERS parameters.

    deadline_s: the deadline of each phase of an all-reduce.
    """
    same = (report.workers, report.steps, BATCH, report.codec, report.data, report.seed)
    how = (FEW_PARAMETERS, report.quorum, report.loss, report.peers)
    return DemoPlan(*same, *how, deadline_s=deadline_s, folder=folder)


def run(plan: DemoPlan, report: DemoReport, console: Console, network: Topology | None = None) -> None:
    """Start the switch, or those of a network, make the job, train twice, fill the report. Show progress on `console`.

    Where links cannot have the plan's rate, the workers share loopback, and the report has the reason. Raises
    ControlPlaneError, TopologyError or WorkerDiedError.
    """
    console.print(f"preparing codec {plan.codec} (compiled once, then cached) ...")
    # Here, before several processes would compile its kernels, and the workers' loop, at once.
    codec = make_codec(plan.codec, workers=plan.workers)
    if plan.link == "udp":
        compiled_kernel()
    report.chunk_elements = codec.block_elements if isinstance(codec, RangeCodec) else None
    what = "switch" if network is None else f"switches of {network.name}"
    console.print(f"starting the {report.target} {what} and {plan.workers} workers ...")
    with ExitStack() as stack:
        if network is None:
            cluster = _start_cluster(stack, plan, report)
            report.where = cluster.switch.where
            plan = replace(plan, rate_bits_per_s=report.rate_bits_per_s)
        else:
            cluster = stack.enter_context(LocalCluster(network=network, target=report.target))
            # The links have their own losses.
            plan = replace(plan, loss=0.0)
            driver, where = (report.target, "namespaces") if report.target != "mininet" else ("bmv2", "Mininet")
            report.where = f"{network.name}: {len(network.switches)} {driver} switches in {where}"
        with WorkerPool(cluster.seats, work, plan) as pool:
            job = make_job(cluster, plan, pool.gather("bound"), job_tables(codec))
            before = read_counts(cluster, job)
            for rank, pipe in enumerate(pool.pipes):
                pipe.send(str(job.write(plan.folder / f"membership-{rank}.json", rank)))
            with _progress(console) as progress:
                trained = gather_with_progress(pool, progress, plan, plan.codec, "trained")
                fill_report(report, [message[0] for message in trained])
                report.counts = read_until_stable(lambda: read_counts(cluster, job)).since(before)
                pool.send(True)
                if nmse := pool.gather("nmse")[0][0]:
                    report.nmse_mean, report.nmse_theory = nmse.measured, nmse.theory
                report.accuracy_fp32, report.step_s_fp32 = gather_with_progress(
                    pool, progress, plan, "fp32", "baseline"
                )[0]
        job.close()


def _start_cluster(stack: ExitStack, plan: DemoPlan, report: DemoReport) -> LocalCluster:
    """Start one switch, with a link of the plan's rate for every worker where this machine can make links.

    Else the report says why not.
    """
    if plan.rate_bits_per_s is not None:
        with ExitStack() as made:
            try:
                cluster = made.enter_context(LocalCluster(plan.workers, placement="fabric"))
                assert cluster.star is not None
                cluster.star.shape(f"{plan.rate_bits_per_s:.0f}bit")
            except TopologyError as error:
                report.not_shaped = str(error)
            else:
                report.rate_bits_per_s = plan.rate_bits_per_s
                stack.push(made.pop_all())
                return cluster
    return stack.enter_context(LocalCluster(plan.workers, target=report.target))


def gather_with_progress(
    pool: WorkerPool, progress: Progress, plan: DemoPlan, phase: str, last: str
) -> list[tuple[Any, ...]]:
    """Show the steps of one training until every worker has sent its `last` message. Return those by rank.

    The bar's clock begins with the first step: until then workers import torch, and meet. Raises WorkerDiedError when a
    worker ends or sends another message.
    """
    task = progress.add_task(phase, start=False, total=plan.steps * plan.workers, loss="starting")
    found: dict[int, tuple[Any, ...]] = {}
    while len(found) < plan.workers:
        rank, (kind, *rest) = pool.receive()
        if kind == last:
            found[rank] = tuple(rest)
        elif kind == "step" and rest[0] == phase:
            progress.start_task(task)
            progress.update(task, advance=1, loss=f"loss {rest[2]:.3f}")
        # A fast worker may have finished while others still train.
        elif not (kind == "finished" and rank in found):
            raise WorkerDiedError(f"worker {rank} sent {kind!r} during {phase}")
    return [found[rank] for rank in range(plan.workers)]


def fill_report(report: DemoReport, trained: Sequence[DemoResult]) -> None:
    """Fill the report with the workers' figures of the training through the switch, by rank."""
    report.loss_first = sum(each.loss_first for each in trained) / len(trained)
    report.loss_last = sum(each.loss_last for each in trained) / len(trained)
    report.accuracy = trained[0].accuracy
    report.step_s = trained[0].step_s
    report.parameters = trained[0].parameters
    report.replicas_equal = len({each.digest for each in trained}) == 1
    report.fetches = sum(each.statistics.fetches for each in trained)
    report.repaired = sum(each.statistics.repaired for each in trained)
    traffic = [each.statistics.traffic for each in trained]
    report.retransmits = sum(each.retransmits for each in traffic)
    report.probes = sum(each.probes for each in traffic)
    report.updates = sum(each.datagrams_sent - each.retransmits - each.probes for each in traffic)
    report.agents = InterfaceCounters(
        sum(each.datagrams_sent for each in traffic),
        sum(each.interface_bytes_sent for each in traffic),
        sum(each.datagrams_received for each in traffic),
        sum(each.interface_bytes_received for each in traffic),
    )


def _progress(console: Console) -> Progress:
    label, unit, loss = (TextColumn(text) for text in ("{task.description:8}", "steps", "{task.fields[loss]}"))
    return Progress(label, BarColumn(), MofNCompleteColumn(), unit, loss, TimeElapsedColumn(), console=console)


NMSE_TOLERANCE = 0.2
"""The most that the measured error may differ from theory."""

_AS_THEY_ARE = (
    "target", "codec", "workers", "steps", "data", "seed", "quorum", "loss", "peers", "topology", "rate_bits_per_s",
    "parameters", "replicas_equal", "counters_agree", "all_through_switch", "bytes_fp32_allreduce", "retransmits",
    "fetches", "repaired", "nmse_mean", "nmse_theory",
)  # fmt: skip
"""Attributes of the report that --json has under their own names."""
_ROUNDED = ("loss_first", "loss_last", "accuracy", "accuracy_fp32", "step_s", "step_s_fp32")


@dataclass(slots=True)
class DemoReport:
    """The report of a demo: settings, figures and checks. Bytes are of all workers, at the interface, with headers."""

    target: str
    codec: str
    workers: int
    steps: int
    data: str
    seed: int
    quorum: int = 0
    """Workers that complete a sum, all of them by default."""
    loss: float = 0.0
    """The share of frames that is lost, at every switch port in both directions."""
    peers: bool = True
    topology: str | None = None
    """The name of a topology of the catalogue. None: one switch."""
    rate_bits_per_s: float | None = None
    """The rate of every worker's link. None: not shaped."""
    not_shaped: str = ""
    """The reason why links were to have a rate and have none."""
    where: str = ""
    loss_first: float = 0.0
    loss_last: float = 0.0
    accuracy: float = 0.0
    accuracy_fp32: float = 0.0
    step_s: float = 0.0
    """Mean of the steps after the first, on one worker."""
    step_s_fp32: float = 0.0
    replicas_equal: bool = False
    parameters: int = 0
    chunk_elements: int | None = None
    """Gradients in one packet of the codec, where that is fixed."""
    counts: DemoCounts = field(default_factory=lambda: DemoCounts(InterfaceCounters(0, 0, 0, 0), {}, {}, 0, {}))
    """Counts of the switches' interfaces and programs."""
    agents: InterfaceCounters = field(default_factory=lambda: InterfaceCounters(0, 0, 0, 0))
    """The counts of the agents themselves."""
    retransmits: int = 0
    probes: int = 0
    updates: int = 0
    """First transmissions of all agents."""
    fetches: int = 0
    """Results that workers asked each other for."""
    repaired: int = 0
    """The results among them that came."""
    nmse_mean: float | None = None
    nmse_theory: float | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.quorum = self.quorum or self.workers

    @property
    def interfaces(self) -> InterfaceCounters:
        """Frames and bytes at the interfaces of the workers' links."""
        return self.counts.interfaces

    @property
    def counters_agree(self) -> bool:
        """True if no place counted more than the place before it on the way, and no chunk was added twice.

        A full queue on the way may lose a frame. Where all workers complete a sum, no more is lost than is sent again.
        """
        counts, whole = self.counts, self.quorum == self.workers
        up, bytes_up, down, bytes_down = self.agents - self.interfaces
        lost_up = (up, self.interfaces.packets_up - counts.arrived)
        lost_down = (counts.replies - self.interfaces.packets_down, -down)
        again = self.retransmits + counts.events["probed"]
        # A result that came from a peer may have been lost once more than it was asked for.
        sent_again = sum(lost_up) <= again and sum(lost_down) <= again + self.repaired
        return (
            min(*lost_up, *lost_down, bytes_up, -bytes_down) >= 0
            # Bytes are missing where frames are.
            and (up > 0, down < 0) == (bytes_up > 0, bytes_down < 0)
            and (sent_again or not whole)
            and self._added_once(whole)
            and counts.events["fault"] == 0
        )

    def _added_once(self, whole: bool) -> bool:
        added, completed = self.counts.events["added"], self.counts.events["completed"]
        if whole:
            return added == self.updates == completed * self.workers
        return completed * self.quorum <= added <= min(self.updates, completed * self.workers)

    @property
    def all_through_switch(self) -> bool:
        """True if the switch added as many chunks as the gradients have, and one chunk of ranges for each step."""
        chunks = (-(-self.parameters // self.chunk_elements) if self.chunk_elements else 1) + 1
        return self.counts.events["added"] >= self.quorum * self.steps * chunks

    @property
    def nmse_fits(self) -> bool:
        """True if the measured error of the mean is near theory, or no theory is known."""
        if self.nmse_theory is None or self.nmse_mean is None:
            return True
        return abs(self.nmse_mean / self.nmse_theory - 1) <= NMSE_TOLERANCE

    @property
    def good(self) -> bool:
        """True if every check holds."""
        counted = self.counters_agree and self.all_through_switch
        return self.replicas_equal and counted and self.nmse_fits and self.loss_last < self.loss_first

    @property
    def bytes_fp32_allreduce(self) -> int:
        """Payload that a ring all-reduce in fp32 sends for the same gradients, all workers together."""
        return self.steps * 2 * (self.workers - 1) * 4 * self.parameters

    def as_json(self) -> dict[str, Any]:
        """Return the object of --json."""
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            **{name: round(getattr(self, name), 4) for name in _ROUNDED},
            "bytes_up": self.interfaces.bytes_up,
            "bytes_down": self.interfaces.bytes_down,
            "packets": self.interfaces.packets_up + self.interfaces.packets_down,
            "uplinks": self.counts.uplinks,
            "switch_events": self.counts.events,
            "switch_drops": self.counts.drops,
            "seconds": round(self.seconds, 2),
        }

    def print(self, console: Console) -> None:
        """Print the report as tables, with the verdict below."""
        console.print(self._training())
        if self.not_shaped:
            console.print(
                f"The gain is not shown: the workers share loopback, since links of a rate cannot be made here "
                f"({self.not_shaped}).",
                highlight=False,
            )
        console.print(self._counters())
        verdict = "[bold green]all checks hold" if self.good else "[bold red]something is wrong: see NO above"
        console.print(f"{verdict}[/]  ({self.where}; {self.seconds:.0f} s)")

    def _training(self) -> Table:
        links = "" if self.rate_bits_per_s is None else f", links of {format_rate(self.rate_bits_per_s)}"
        links = ", loopback" if self.not_shaped else links
        title = f"{self.workers} workers, {self.steps} steps, {self.parameters:,} parameters, {self.data}{links}"
        table = _table(title, "", f"{self.codec} through the switch", "fp32 all-reduce")
        caption = "bytes: of a worker, with headers; fp32: payload of a ring, computed"
        # On loopback fp32 is limited by no link, and a speed-up would say nothing about any network.
        if self.rate_bits_per_s is not None:
            caption += f"\n{processors_of(self.workers, 1, machine()['cores'])}"
            table.add_row("ms/step", f"{1e3 * self.step_s:.0f}", f"{1e3 * self.step_s_fp32:.0f}")
            table.add_row("times as fast", f"{self.step_s_fp32 / self.step_s:.2f}", "1")
        table.add_row("accuracy on the test images", f"{self.accuracy:.2%}", f"{self.accuracy_fp32:.2%}")
        worker_steps = self.workers * self.steps
        ring = f"{self.bytes_fp32_allreduce / worker_steps:,.0f}"
        table.add_row("bytes sent in a step", f"{self.interfaces.bytes_up / worker_steps:,.0f}", ring)
        table.add_row("bytes received in a step", f"{self.interfaces.bytes_down / worker_steps:,.0f}", ring)
        table.add_row("loss, first and last ten", f"{self.loss_first:.3f} -> {self.loss_last:.3f}", "")
        table.add_row("equal parameters (SHA-256)", _yes(self.replicas_equal), "")
        table.caption = caption
        if self.nmse_mean is not None:
            theory = "" if self.nmse_theory is None else f", theory {self.nmse_theory:.4g}"
            wrong = "" if self.nmse_fits else f": {_yes(False)}"
            table.add_row("error of the mean (NMSE)", f"{self.nmse_mean:.4g}{theory}{wrong}", "0")
        return table

    def _counters(self) -> Table:
        table = _table("counters", "", "workers", "interfaces", "program")
        counts = self.counts
        repeated = sum(counts.events[name] for name in ARRIVED) - counts.events["added"]
        up, down = "packets up", "packets down"
        table.add_row(up, f"{self.agents.packets_up:,}", f"{self.interfaces.packets_up:,}", f"{counts.arrived:,}")
        table.add_row(down, f"{self.agents.packets_down:,}", f"{self.interfaces.packets_down:,}", f"{counts.replies:,}")
        for link, packets in counts.uplinks.items():
            table.add_row(f"packets up {link}", "", f"{packets:,}", "")
        table.add_row("bytes up", f"{self.agents.bytes_up:,}", f"{self.interfaces.bytes_up:,}", "")
        table.add_row("bytes down", f"{self.agents.bytes_down:,}", f"{self.interfaces.bytes_down:,}", "")
        table.add_row("contributions added", f"{self.updates:,}", "", f"{counts.events['added']:,}")
        table.add_row("repeated, answered, stale", f"{self.retransmits + self.probes:,}", "", f"{repeated:,}")
        if self.quorum < self.workers:
            table.add_row("results asked of peers, and got", f"{self.fetches:,}, {self.repaired:,}", "", "")
        table.add_row("dropped", "", "", f"{sum(counts.drops.values()):,}")
        table.add_row("all agree", "", "", _yes(self.counters_agree))
        table.add_row("all gradients through the switch", "", "", _yes(self.all_through_switch))
        return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    return table


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "[red]NO[/]"
