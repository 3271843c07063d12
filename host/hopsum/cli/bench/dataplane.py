# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench dataplane`: LOOKUP_ADD8 codes per second of the switches, beside memcpy of the same run.

pipeline is the embedded engine alone, frames handed over in memory; socket is the whole embedded switch over UDP on
loopback; bmv2 is simple_switch_grpc over veth pairs. Workers and switch share this machine's cores. Codes are counted
as they arrive from the workers, and every sum that comes back is waited for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hopsum.cli.bench.load import Load, LoadError
from hopsum.cli.bench.timing import Rate, commit, machine, versions
from hopsum.cli.stage.targets import SWITCH, bmv2_stage, native_stage
from hopsum.codec import best_table
from hopsum.wire import Op, up_bytes
from hopsum.wire.datagrams import update_template
from hopsum.wire.frames import FramePath, stamp_frames
from hopsum.wire.payload import SHAPES
from hopsum_controlplane import ControlPlaneError, Job, JobSpec, WorkerEndpoint
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.slots import SlotRange
from hopsum_switch.engine import Engine
from hopsum_switch.program import load_program
from hopsum_topologies.bmv2 import bmv2_unavailable, bmv2_versions
from hopsum_topologies.errors import TopologyError

SLOTS = 32
MIN_RUNS = 5
CODES = SHAPES[Op.LOOKUP_ADD8].elements
COPY_BYTES = 1 << 26
ROUNDS = {"pipeline": 10, "socket": 40, "bmv2": 40}
"""Of all slots, in one run at scale 1."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum bench dataplane", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--workers", type=int, default=4, help="1 to 16 (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help=f"at least {MIN_RUNS} (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="times the rounds of a run (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 0."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.runs < MIN_RUNS or not 1 <= options.workers <= 16 or options.scale <= 0:
        parser.error(f"at least {MIN_RUNS} runs, 1 to 16 workers, a scale above 0")
    start = time.perf_counter()
    try:
        rates = run(options.workers, options.runs, options.scale, options.seed)
    except (ControlPlaneError, TopologyError, LoadError) as error:
        parser.exit(1, f"hopsum bench dataplane: {error}\n")
    report = describe(rates, options, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def run(workers: int, runs: int, scale: float, seed: int) -> dict[str, Rate]:
    """Return updates per second by name (memcpy: codes per second), from runs that take turns."""
    table = best_table(workers).values
    with ExitStack() as stack:
        actions: dict[str, Callable[[int], float]] = {
            "memcpy": lambda _: _copy(),
            "pipeline": _pipeline(workers, table, _rounds("pipeline", scale)),
        }
        if bmv2_unavailable() is None:  # first: its namespace is then the place of everything
            load = stack.enter_context(Load(stack.enter_context(bmv2_stage(workers)), table, SLOTS))
            actions["bmv2"] = _loaded(load, workers, _rounds("bmv2", scale))
        load = stack.enter_context(Load(stack.enter_context(native_stage(workers)), table, SLOTS))
        actions["socket"] = _loaded(load, workers, _rounds("socket", scale))
        found: dict[str, list[float]] = {name: [] for name in actions}
        for number in range(-1, runs):  # the first is to warm up
            for name, action in actions.items():
                rate = action(seed + number)
                if number >= 0:
                    found[name].append(rate)
    return {name: Rate(median(rates), min(rates), max(rates)) for name, rates in found.items()}


def _rounds(name: str, scale: float) -> int:
    return max(1, round(ROUNDS[name] * scale))


def _copy() -> float:
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    start = time.perf_counter()
    np.copyto(target, source)
    return 2 * COPY_BYTES / (time.perf_counter() - start)


def _loaded(load: Load, workers: int, rounds: int) -> Callable[[int], float]:
    def measure(seed: int) -> float:
        prepared = load.prepare(rounds, seed + (1 << 32))
        start = time.perf_counter()
        load.run(prepared)
        return rounds * SLOTS * workers / (time.perf_counter() - start)

    return measure


def _pipeline(workers: int, table: tuple[int, ...], rounds: int) -> Callable[[int], float]:
    """Return a measurement of the engine alone: frames in memory, every round complete."""
    seats = tuple(WorkerEndpoint(r, r + 1, f"02:00:00:00:01:{r:02x}", f"10.0.0.{r + 1}", 6000) for r in range(workers))
    spec = JobSpec("pipeline", seats, SLOTS, table)
    job = Job(spec, SWITCH, epoch=7, job_index=0, region=SlotRange(0, SLOTS), group=1, window=SLOTS)
    engine = _engine(job)
    first = [1]

    def measure(seed: int) -> float:
        frames = _frames(job, first[0], rounds, seed + (1 << 32))
        first[0] += rounds
        start = time.perf_counter()
        replies = sum(len(engine.process(port, frame)) for port, frame in frames)
        elapsed_s = time.perf_counter() - start
        if replies != len(frames):  # a RESULT to each worker for one UPDATE of each
            raise LoadError(f"{len(frames)} frames made {replies} replies")
        return len(frames) / elapsed_s

    return measure


def _engine(job: Job) -> Engine:
    from hopsum_controlplane.encoding import encode_update
    from hopsum_controlplane.entries import Entity, Insert
    from hopsum_controlplane.p4info import P4Info
    from hopsum_controlplane.tables import address, admit, lookup, reply
    from hopsum_switch.p4runtime.entities import write_update
    from hopsum_switch.p4runtime.pipeline import Target, verify

    json_path, p4info_path = compiled_program()
    p4info = P4Info.from_file(p4info_path)
    target = Target(verify(p4info.message, json_path.read_bytes()), Engine(load_program(json_path.read_text())))
    entities: list[Entity] = [address.switch_address(SWITCH), *lookup.lookup(job), *reply.rewrite(job)]
    for entity in (*entities, *admit.workers(job), *reply.group(job), *admit.jobs(job)):
        write_update(target, encode_update(p4info, Insert(entity)))
    return target.engine


def _frames(job: Job, first: int, rounds: int, seed: int) -> list[tuple[int, bytes]]:
    """Return (port, frame) of all workers for all slots, in the order of the stream."""
    rng = np.random.default_rng(seed)
    slots, numbers = np.tile(np.arange(SLOTS), rounds), np.repeat(np.arange(first, first + rounds), SLOTS)
    stamped = []
    for worker in job.spec.workers:
        path = FramePath(
            src_mac=mac_to_int(worker.mac),
            dst_mac=mac_to_int(SWITCH.mac),
            src_ip=ipv4_to_int(worker.ip),
            dst_ip=ipv4_to_int(SWITCH.ip),
            src_port=worker.udp_port,
        )
        template = update_template(op=Op.LOOKUP_ADD8, epoch=job.epoch, worker=worker.rank)
        payloads = rng.integers(0, 256, (len(slots), up_bytes(Op.LOOKUP_ADD8)), dtype=np.uint8)
        frames = stamp_frames(path, template, slots=slots, rounds=numbers, counts=CODES, payloads=payloads)
        stamped.append([(worker.port, frame.tobytes()) for frame in frames])
    return [frame for together in zip(*stamped, strict=True) for frame in together]


def describe(rates: dict[str, Rate], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Return what --json prints."""
    pipeline, socket, bmv2 = rates["pipeline"], rates["socket"], rates.get("bmv2")
    codes = {
        "native.pipeline_codes_per_s": _times(pipeline, CODES),
        "native.socket_codes_per_s": _times(socket, CODES),
        "native.packets_per_s": socket,
        "bmv2.codes_per_s": _times(bmv2, CODES),
        "bmv2.packets_per_s": bmv2,
        "memcpy_codes_per_s": rates["memcpy"],
    }
    report: dict[str, Any] = {}
    for key, rate in codes.items():
        report |= {key: None} if rate is None else rate.as_json(key)
    return {
        **report,
        "lanes": CODES,
        "workers": options.workers,
        "slots": SLOTS,
        "runs": options.runs,
        "seed": options.seed,
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": {**versions("hopsum", "numpy"), **({} if bmv2 is None else bmv2_versions())},
        "commit": commit(),
    }


def _times(rate: Rate | None, factor: int) -> Rate | None:
    return None if rate is None else Rate(rate.median * factor, rate.low * factor, rate.high * factor)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table."""
    title = f"LOOKUP_ADD8, {report['workers']} workers; median (min-max of {report['runs']})"
    table = Table(title=title, title_justify="left")
    for name in ("", "M codes/s", "updates/s"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    rows = {
        "engine, in memory": ("native.pipeline_codes_per_s", None),
        "native switch, UDP": ("native.socket_codes_per_s", "native.packets_per_s"),
        "bmv2, veth": ("bmv2.codes_per_s", "bmv2.packets_per_s"),
        "memcpy": ("memcpy_codes_per_s", None),
    }
    for label, (codes, packets) in rows.items():
        if report[codes] is None:
            table.add_row(label, "not installed")
            continue
        digits = 0 if codes == "memcpy_codes_per_s" else 1
        table.add_row(label, _range(report, codes, 1e6, digits), _range(report, packets, 1, 0) if packets else "")
    console.print(table)
    where = report["machine"]
    console.print(f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, workers on them too")


def _range(report: dict[str, Any], key: str, unit: float, digits: int) -> str:
    middle, low, high = (f"{report[name] / unit:,.{digits}f}" for name in (key, f"{key}_min", f"{key}_max"))
    return f"{middle} ({low}-{high})"
