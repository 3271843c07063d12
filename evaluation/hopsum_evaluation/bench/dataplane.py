# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench dataplane`: LOOKUP_ADD8 codes per second of the switches, and what bounds them.

The embedded switch also runs LOOKUP_ADD_LOOKUP4, 3 and 2, which look finished sums up again, in turn with LOOKUP_ADD8.

pipeline: the embedded engine by itself, frames handed over in memory. sockets: the embedded switch over UDP on
loopback, the workers on one core and the switch on another, and the same datagrams without a switch. bmv2:
simple_switch_grpc over veth pairs. start: the switch process until it is ready, and its memory. Workers and switches
share this machine's cores. Codes are counted as they arrive from the workers. Every sum that comes back is compared
with numpy's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hopsum.codec import best_table
from hopsum_base.owned_folder import OwnedFolder
from hopsum_base.units import seconds, whole
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.artifacts import compiled_program
from hopsum_evaluation.bench.engine_load import EngineRun, engine_runs
from hopsum_evaluation.bench.made_datagrams import CODES, WrongResultError, table_of_codes
from hopsum_evaluation.bench.socket_load import LoadError, SocketRun, echo_run, load_on
from hopsum_evaluation.bench.timing import Rate, machine, memory, source_commit, versions
from hopsum_evaluation.command_options import figure_table
from hopsum_switch.backend import Backend
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE
from hopsum_topologies.bmv2_process import bmv2_unavailable, bmv2_versions
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.local_cluster import LocalCluster
from hopsum_topologies.netns import Namespace
from hopsum_wire import MAX_SLOTS, Op
from hopsum_wire.payload import SHAPES

SLOTS = 248
"""Four trains of RESULTs, of which 62 fit one send."""
RUNS_TO_QUOTE = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench dataplane", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        metavar="PART",
        help=f"part to measure, of {', '.join(PARTS)}; may be repeated (default: all)",
    )
    parser.add_argument(
        "--workers", type=whole(1, 16), default=4, help="number of workers, 1 to 16 (default %(default)s)"
    )
    parser.add_argument(
        "--slots", type=whole(1, MAX_SLOTS), default=SLOTS,
        help=f"slots of the socket part, up to {MAX_SLOTS} (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--runs",
        type=whole(1),
        default=RUNS_TO_QUOTE,
        help="runs of each subject; a figure to quote needs five (default %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, help="length of one run of one subject (default %(default)s)"
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure, and print tables or JSON. Return 0. A failure prints a message and exits with 1."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    table = best_table(options.workers).values
    setting = DataplaneSetting(options.only or PARTS, options.workers, options.slots, options.seed, table)
    start = time.perf_counter()
    try:
        findings = run(setting, options.runs, options.seconds)
    except FAILURES as error:
        parser.exit(1, f"hopsum bench dataplane: {error}\n")
    report = describe(findings, setting, options.runs, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(setting: DataplaneSetting, runs: int, seconds: float) -> Findings:
    """Measure all subjects in turn, once to warm up and `runs` times. Show the progress on stderr.

    `seconds` is the length of one run of one subject. Raises the errors of FAILURES.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # It draws between runs only: a thread that refreshes would take time from what is measured.
    console = Console(stderr=True)
    with ExitStack() as stack, Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        progress.refresh()
        subjects = Subjects(stack, setting)
        samples: dict[str, list[float]] = {name: [] for name in subjects.actions}
        progress.update(task, total=(runs + 1) * len(samples))
        for number in range(runs + 1):
            for name, action in subjects.actions.items():
                progress.update(task, description=name)
                progress.refresh()
                samples[name].append(action(seconds))
                progress.advance(task)
            # The first run warms up: caches, sockets, and code that is compiled when it is first called.
            if number == 0:
                for name in samples:
                    samples[name].clear()
                for socket_run in subjects.sockets.values():
                    socket_run.reset_totals()
        memory = {}
        if subjects.startup is not None:
            progress.update(task, description=f"memory with {MEMORY_SLOTS} slots")
            progress.refresh()
            memory = subjects.startup.measure_memory(setting.workers, setting.table, setting.seed, seconds)
        rates = {name: Rate(median(found), min(found), max(found)) for name, found in samples.items()}
        effort = {name: engine.effort() for name, engine in subjects.engines.items()}
        busy = {name: socket_run.processor_figures() for name, socket_run in subjects.sockets.items()}
        return Findings(rates, effort, busy, memory, samples)


AGAIN = {f"lookup{shape.code_bits}": Op(op) for op, shape in SHAPES.items() if shape.down_codes}
"""The operations that look sums up again, by what the names of their subjects end with."""
_CODES_KEYS = {
    "native": "native.pipeline_codes_per_s",
    **{f"native_{name}": f"native.{name}_pipeline_codes_per_s" for name in AGAIN},
    "interpreter": "interpreter.pipeline_codes_per_s",
    "socket": "native.socket_codes_per_s",
    "socket_lookup4": "native.lookup4_socket_codes_per_s",
    "socket_python": "native.socket_python_codes_per_s",
    "loopback": "loopback_codes_per_s",
    "bmv2": "bmv2.codes_per_s",
}
_PACKETS_KEYS = {
    "socket": "native.packets_per_s",
    "socket_lookup4": "native.lookup4_packets_per_s",
    "socket_python": "native.python_packets_per_s",
    "loopback": "loopback_packets_per_s",
    "bmv2": "bmv2.packets_per_s",
}
_SECONDS_KEYS = {"cold_start": "native.cold_start_s", "warm_start": "native.warm_start_s"}
_MEMORY_KEYS = tuple(f"native.{name}_bytes{how}" for name in ("rss", "peak") for how in ("", "_cold"))
_LABELS = {
    "native": "native engine",
    **{f"native_{name}": f"native, {op.name}" for name, op in AGAIN.items()},
    "interpreter": "interpreter",
    "socket": "native switch, UDP",
    "socket_lookup4": "UDP, LOOKUP_ADD_LOOKUP4",
    "socket_python": "native switch, UDP in Python",
    "loopback": "UDP without a switch",
    "bmv2": "bmv2, veth",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """Figures of all subjects, by subject.

    rates: UPDATEs per second; of memcpy codes per second, of starts seconds.
    effort: nanoseconds an engine takes for a frame, and nanoseconds of a copy of its bytes.
    busy: shares of a core that switch and workers used, and their work for an UPDATE.
    memory: bytes of the switch process, by key of the JSON.
    samples: rates of each run, from which `rates` are made.
    """

    rates: Mapping[str, Rate]
    effort: Mapping[str, Mapping[str, float]]
    busy: Mapping[str, Mapping[str, float]]
    memory: Mapping[str, int]
    samples: Mapping[str, Sequence[float]]


def describe(findings: Findings, setting: DataplaneSetting, runs: int, seconds: float) -> dict[str, Any]:
    """Return the object of --json, with flat dotted keys. A figure that was not measured is None.

    `seconds` is the time that the whole benchmark took.
    """
    rates, report = findings.rates, dict[str, Any]()
    for name, key in _CODES_KEYS.items():
        report |= _key(rates.get(name), key, CODES)
    for name, key in _PACKETS_KEYS.items():
        report |= _key(rates.get(name), key, 1)
    for name, key in _SECONDS_KEYS.items():
        rate = rates.get(name)
        report |= {key: None} if rate is None else rate.as_json(key, digits=3)
    return {
        **report,
        "native.compiled_port_gain": _gain(findings.samples, "socket", "socket_python"),
        # The time of an UPDATE and its share of RESULTs, over that of LOOKUP_ADD8.
        **{f"native.{name}_pipeline_time": _gain(findings.samples, "native", f"native_{name}") for name in AGAIN},
        "native.lookup4_socket_time": _gain(findings.samples, "socket", "socket_lookup4"),
        **{key: findings.memory.get(key) for key in _MEMORY_KEYS},
        **rates["memcpy"].as_json("memcpy_codes_per_s"),
        "bound": bounds(findings),
        "lanes": CODES,
        "workers": setting.workers,
        "slots": {
            "pipeline": PIPELINE_SLOTS, "sockets": setting.slots, "bmv2": BMV2_SLOTS, "memory": MEMORY_SLOTS,
        },
        "runs": runs,
        "seed": setting.seed,
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": {
            **versions("hopsum", "numpy", "llvmlite"),
            **(bmv2_versions() if "bmv2" in rates else {}),
        },
        # Figures of different programs are not to be compared.
        "programs": {"hopsum": hashlib.sha256(compiled_program()[0].read_bytes()).hexdigest()},
        "commit": source_commit(),
    }  # fmt: skip


def bounds(findings: Findings) -> dict[str, dict[str, Any]]:
    """Return, by subject, the figures that explain the limit of its rate, and `text`, a sentence made of them.

    Subjects that are neither engines nor sockets are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, effort in findings.effort.items():
        ns = 1e9 / findings.rates[name].median
        text = (
            f"{ns:,.0f} ns an update and its share of replies, {effort['least_ns_per_packet']:,.0f} in the fastest"
            f" call; to copy both once takes {effort['copy_ns_per_packet']:.0f}"
        )
        found[name] = {"ns_per_packet": round(ns, 1), **effort, "text": text}
    for name, busy in findings.busy.items():
        switch, load = (busy[f"{side}_user"] + busy[f"{side}_system"] for side in ("switch", "load"))
        text = (
            f"switch {switch:.0%} of a core ({busy['switch_system']:.0%} in the kernel),"
            f" {busy['switch_ns_per_packet']:,.0f} ns an update and its share of replies;"
            f" workers {load:.0%} ({busy['load_system']:.0%}), {busy['load_ns_per_packet']:,.0f} ns"
        )
        if name == "socket" and "loopback" in findings.rates:
            share = findings.rates[name].median / findings.rates["loopback"].median
            text += f"; {share:.0%} of what the same datagrams reach without a switch"
        found[name] = {**busy, "text": text}
    return found


def show(report: dict[str, Any], console: Console) -> None:
    """Print the object of --json as tables."""
    title = f"LOOKUP_ADD8, {report['workers']} workers; median (min-max of {report['runs']})"
    table = figure_table(title, "M codes/s", "k updates/s")
    for name, label in _LABELS.items():
        key, packets = _CODES_KEYS[name], _PACKETS_KEYS.get(name)
        if report[key] is not None:
            digits = 0 if report[key] > 1e8 else 1 if report[key] > 1e6 else 3
            updates = _range(report, packets, 1e3, 0 if report[packets] > 1e5 else 1) if packets else ""
            table.add_row(label, _range(report, key, 1e6, digits), updates)
    table.add_row("memcpy", _range(report, "memcpy_codes_per_s", 1e6, 0), "")
    console.print(table)
    for name, bound in report["bound"].items():
        console.print(f"{_LABELS[name]}: {bound['text']}")
    if report["native.cold_start_s"] is not None:
        _show_start(report, console)
    where, of = report["machine"], ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, {where['system']}")
    console.print(f"{of}; seed {report['seed']}, commit {report['commit']}")


def _show_start(report: dict[str, Any], console: Console) -> None:
    title = f"native switch process, {report['slots']['memory']} slots"
    table = figure_table(title, "until ready, s", "resident, MB", "at most, MB")
    for label, key, how in (("warm", "native.warm_start_s", ""), ("cold", "native.cold_start_s", "_cold")):
        sizes = (f"{report[f'native.{name}_bytes{how}'] / 1e6:.0f}" for name in ("rss", "peak"))
        table.add_row(label, _range(report, key, 1, 2), *sizes)
    console.print(table)


def _key(rate: Rate | None, key: str, factor: int) -> dict[str, Any]:
    if rate is None:
        return {key: None}
    return Rate(rate.median * factor, rate.low * factor, rate.high * factor).as_json(key)


def _gain(samples: Mapping[str, Sequence[float]], name: str, over: str) -> float | None:
    """Divide the rates of two subjects run by run, and take the median.

    Neighbouring runs meet the same load of the machine: their ratio varies less than the ratio of medians.
    """
    if over not in samples:
        return None
    return round(median(one / other for one, other in zip(samples[name], samples[over], strict=True)), 3)


def _range(report: dict[str, Any], key: str, unit: float, digits: int) -> str:
    middle, low, high = (f"{report[name] / unit:,.{digits}f}" for name in (key, f"{key}_min", f"{key}_max"))
    return f"{middle} ({low}-{high})"


PARTS = ("pipeline", "sockets", "bmv2", "start")
PIPELINE_SLOTS = 64
BMV2_SLOTS = 32
COPY_BYTES = 1 << 26
"""Bytes of the copy that memcpy is measured with: more than any cache."""

Action = Callable[[float], float]
"""Works for about so many seconds. Returns UPDATEs per second; of memcpy codes per second, of a start its seconds."""


@dataclass(frozen=True, slots=True)
class DataplaneSetting:
    """Parts and job of the benchmark.

    parts: of PARTS.
    workers: 1 to 16.
    slots: of the job in the socket part.
    table: lookup table of the job, 16 values.
    """

    parts: Collection[str]
    workers: int
    slots: int
    seed: int
    table: tuple[int, ...]


class Subjects:
    """Switches, jobs and loads, all started at the same time, that take turns.

    part        subjects
    (always)    memcpy                          packed codes, copied
    pipeline    native, interpreter             engines, frames in memory
                native_lookup4, _lookup3, ...   the same with operations that look sums up again
    sockets     socket, socket_python,          the switch process over UDP, with compiled ports, with ports in Python;
                socket_lookup4,                 with LOOKUP_ADD_LOOKUP4;
                loopback                        the same datagrams without a switch
    bmv2        bmv2                            simple_switch_grpc over veth pairs, where it is installed
    start       cold_start, warm_start          the switch process, in seconds

    `actions` has the function that measures each subject, by name. `engines` and `sockets` are the subjects that have
    figures for `bounds`. The end of the stack ends everything. Raises ControlPlaneError, TopologyError, OSError.
    """

    def __init__(self, stack: ExitStack, setting: DataplaneSetting) -> None:
        self.actions: dict[str, Action] = {"memcpy": measure_copy}
        self.engines: dict[str, EngineRun] = {}
        self.sockets: dict[str, SocketRun] = {}
        self.startup: Startup | None = None
        self._stack = stack
        self._setting = setting
        self._home: Namespace | None = None
        if "bmv2" in setting.parts and bmv2_unavailable() is None:
            # First: gRPC's threads, of which a process has one set, then live where both bmv2 and the rest can be.
            self._home = stack.enter_context(Namespace())
            stack.enter_context(self._home.inside())
        open_part = {
            "pipeline": self._open_pipeline,
            "sockets": self._open_sockets,
            "bmv2": self._open_bmv2,
            "start": self._open_start,
        }
        for part in PARTS:
            if part in setting.parts:
                open_part[part]()

    def _open_pipeline(self) -> None:
        chosen = self._setting
        plain = {Op.LOOKUP_ADD8: chosen.table}
        again = {op: table_of_codes(op, chosen.workers) for op in AGAIN.values()}
        names = {op: f"native_{name}" for name, op in AGAIN.items()}
        for name, backend, tables in (
            ("native", Backend.NATIVE, plain | again),
            ("interpreter", Backend.INTERPRETER, plain),
        ):
            runs = engine_runs(backend, chosen.workers, PIPELINE_SLOTS, tables, chosen.seed)
            for op, run in self._stack.enter_context(runs).items():
                subject = names.get(op, name)
                self.engines[subject] = run
                self.actions[subject] = run.run

    def _open_sockets(self) -> None:
        chosen = self._setting
        again = Op.LOOKUP_ADD_LOOKUP4
        for name, compiled, op, table in (
            ("socket", "1", Op.LOOKUP_ADD8, chosen.table),
            ("socket_lookup4", "1", again, table_of_codes(again, chosen.workers)),
            ("socket_python", "0", Op.LOOKUP_ADD8, chosen.table),
        ):
            environment = {**os.environ, COMPILED_VARIABLE: compiled}
            cluster = LocalCluster(chosen.workers, extra=NATIVE, environment=environment)
            self._stack.enter_context(cluster)
            load = self._stack.enter_context(load_on(cluster, table, chosen.slots, chosen.seed, op=op))
            self._add_socket(name, SocketRun(load, cluster.switch.pid, pinned=True))
        echo = self._stack.enter_context(echo_run(chosen.workers, chosen.table, chosen.slots, chosen.seed))
        self._add_socket("loopback", echo)

    def _open_bmv2(self) -> None:
        if self._home is not None:
            cluster = LocalCluster(self._setting.workers, target="bmv2", home=self._home)
            self._stack.enter_context(cluster)
            load = self._stack.enter_context(
                load_on(cluster, self._setting.table, BMV2_SLOTS, self._setting.seed, resend_s=1.0)
            )
            self._add_socket("bmv2", SocketRun(load, cluster.switch.pid, pinned=False))

    def _open_start(self) -> None:
        self.startup = startup = self._stack.enter_context(Startup())
        self.actions["cold_start"] = lambda _: startup.start_cold()
        self.actions["warm_start"] = lambda _: startup.start_warm()

    def _add_socket(self, name: str, run: SocketRun) -> None:
        self.sockets[name] = run
        self.actions[name] = run.run


def measure_copy(_: float) -> float:
    """Measure one copy of packed codes, two in a byte. Return codes per second. The argument, seconds, is ignored."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    # Not timed: the kernel gives the target its pages now.
    np.copyto(target, source)
    start = time.perf_counter()
    np.copyto(target, source)
    return 2 * COPY_BYTES / (time.perf_counter() - start)


MEMORY_SLOTS = 1024
"""Slots of the job after which the memory of the switch is read."""
NATIVE = ("--backend", "native")
RESEND_S = 2.0
"""Time until UPDATEs are sent again there: a switch that just compiled answers late, and repetitions are no memory."""
_START_S = 120.0
_STOP_S = 10.0


class StartError(Exception):
    """The switch did not come up. The message has its output on stderr."""


FAILURES = (ControlPlaneError, TopologyError, LoadError, StartError, WrongResultError, OSError)
"""The errors of `run` where this machine cannot do it, or a switch is wrong."""


class Startup:
    """Starts of the switch process from the command to its line `ready`, each with a cache of compiled programs.

    Cold: an empty cache, so that the program is compiled. Warm: the program is in the cache.
    """

    def __init__(self) -> None:
        self._folder = OwnedFolder("bench")

    def start_cold(self) -> float:
        """Start a switch process with an empty cache, and end it: `measure_start`. Return the seconds until ready."""
        with self._empty_cache() as environment:
            return measure_start(environment)

    def start_warm(self) -> float:
        """Start a switch process with one cache for all calls, and end it. Return the seconds until ready.

        The first call finds the cache empty. Raises StartError.
        """
        return measure_start(self._environment("warm"))

    def measure_memory(self, workers: int, table: tuple[int, ...], seed: int, seconds: float) -> dict[str, int]:
        """Measure resident bytes, now and peak, of two switches that it starts, with a full and an empty cache.

        Each switch has `workers` ports and carries load over all slots for `seconds`. Returns bytes by metric.
        """
        found: dict[str, int] = {}
        warm = self._resident(self._environment("warm"), workers, table, seed, seconds)
        with self._empty_cache() as environment:
            cold = self._resident(environment, workers, table, seed, seconds)
        for name in ("rss", "peak"):
            found |= {f"native.{name}_bytes": warm[name], f"native.{name}_bytes_cold": cold[name]}
        return found

    def __enter__(self) -> Startup:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def _environment(self, name: str) -> dict[str, str]:
        cache = Path(self._folder.name) / name
        cache.mkdir(exist_ok=True)
        return {**os.environ, "XDG_CACHE_HOME": str(cache)}

    @contextmanager
    def _empty_cache(self) -> Iterator[dict[str, str]]:
        with TemporaryDirectory(dir=self._folder.name) as cache:
            yield {**os.environ, "XDG_CACHE_HOME": cache}

    def _resident(
        self, environment: dict[str, str], workers: int, table: tuple[int, ...], seed: int, seconds: float
    ) -> dict[str, int]:
        with (
            LocalCluster(workers, extra=NATIVE, environment=environment) as cluster,
            load_on(cluster, table, MEMORY_SLOTS, seed, resend_s=RESEND_S) as load,
        ):
            load.run(seconds)
            return memory(cluster.switch.pid)


def measure_start(environment: dict[str, str]) -> float:
    """Start a switch process, wait for its line `ready`, and end it. Return the seconds until `ready`.

    `environment` is the whole environment of the process. Raises StartError.
    """
    json, p4info = compiled_program()
    command = [sys.executable, "-m", "hopsum_cli.main", "switch", "--program", str(json), "--p4info", str(p4info)]
    command += ["--grpc", "127.0.0.1:0", "--udp", "1=127.0.0.1:0", "--die-with-parent", str(os.getpid()), *NATIVE]
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            heard = select.select([process.stdout], [], [], _START_S)[0]
            line = process.stdout.readline() if heard else b""
            took_s = time.perf_counter() - started
        finally:
            process.terminate()
            try:
                _, complaint = process.communicate(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                _, complaint = process.communicate()
    if not line.startswith(b"ready"):
        said = complaint.decode(errors="replace").strip() or "it said nothing"
        raise StartError(f"the switch was not ready after {took_s:.1f} s: {said}")
    return took_s
