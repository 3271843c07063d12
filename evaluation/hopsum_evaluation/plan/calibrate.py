# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan --calibrate FILE`: the costs of this machine, as a JSON file that `--costs FILE` reads.

What `hopsum bench codec` measures of codecs, on one core. As root and with iproute2 also the network's, from unshaped
all-reduces of `hopsum bench allreduce`. Processor time counts, which other load on the machine disturbs less than
seconds. For gloo's rings seconds count, since not all of their processor time is charged to somebody. What cannot be
measured here keeps the shipped figure and its origin.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from hopsum.codec import make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.range_codec import RangeCodec
from hopsum.plan import Cost, Costs, PlanError, shipped_costs
from hopsum.plan.costs import CODECS
from hopsum.plan.step import TWO_SHOT_BITS
from hopsum.plan.traffic import ring_traffic, summed_traffic
from hopsum_evaluation.baselines.two_shot import BLOCK, dequantise, padded, quantise
from hopsum_evaluation.bench.codec_speed import Subject
from hopsum_evaluation.bench.lossless_rate import reduce_alone
from hopsum_evaluation.bench.timing import machine, one_core
from hopsum_evaluation.plan.forecast import codec_of
from hopsum_wire._layout import PACKED_BYTES
from hopsum_wire.payload import unpack_sums

CODEC_ELEMENTS = 1 << 21
NETWORK_ELEMENTS = 1 << 24
WORKERS = 4
_BUCKETS = 8
_SMALL_ELEMENTS = 1024
"""Elements of a vector that has one chunk: what it costs is the cost of a vector."""
_RUN_CHUNKS = 512
"""Chunks that a codec unpacks at a time."""
_SPELLED = {"thc_paired": "thc:bits=2"}
_SMALL_RUNS = 4
"""Runs of the all-reduce of small vectors for each of the other one: they are short."""
_DENSITIES = (0.01, 0.20)
_QUIET = 1.0
"""Load of this process alone."""
_NEEDED = ("hopsum_controlplane", "hopsum_switch", "grpc", "llvmlite", "p4")


def main(arguments: Sequence[str]) -> int:
    """Measure, write the file, and return 0."""
    parser = argparse.ArgumentParser(prog="hopsum plan --calibrate", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file for the costs, JSON")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement (default %(default)s)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help=f"factor of the {CODEC_ELEMENTS} and {NETWORK_ELEMENTS} elements"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.runs < 1 or not 0 < options.scale <= 1:
        raise PlanError(f"--runs {options.runs}: at least 1; --scale {options.scale:g}: up to 1")
    require_writable(options.output)
    console = Console(stderr=True)
    costs = measure_costs(options.runs, options.scale, options.seed, console)
    options.output.write_text(json.dumps(costs.as_json(), indent=2) + "\n")
    console.print(f"costs of this machine are in {options.output}", highlight=False)
    return 0


def measure_costs(runs: int, scale: float, seed: int, console: Console) -> Costs:
    """Return the costs of this machine: those shipped, with all replaced that can be measured here.

    Raises PlanError where the all-reduces fail.
    """
    costs = shipped_costs().replace(codec_costs(round(CODEC_ELEMENTS * scale), runs, seed))
    if reason := network_unavailable():
        console.print(f"chunk, vector, update, ring_fp32, ring_fp16 stay those shipped: {reason}", highlight=False)
        return costs
    if (load := machine()["load_1min"]) > _QUIET:
        console.print(f"load {load}: gloo's costs come from seconds, and will be too high", highlight=False)
    return costs.replace(network_costs(costs, round(NETWORK_ELEMENTS * scale), runs, seed, console))


def require_writable(path: Path) -> None:
    """Raise PlanError unless a file can be written there. Nothing is changed."""
    if path.is_dir() or not path.parent.is_dir():
        raise PlanError(f"--calibrate {path}: a file in an existing folder is needed")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PlanError(f"--calibrate {path}: it may not be written here")


def network_unavailable() -> str | None:
    """Return why all-reduces over namespaces cannot be measured here, or None."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: pip install 'hopsum[demo]'"
    reason: str | None = import_module("hopsum_evaluation.bench.allreduce").unavailable()
    return reason


def codec_costs(elements: int, runs: int, seed: int) -> dict[str, Cost]:
    """Return the costs of codecs on one core, and the cost of putting a mean in its place.

    Vectors are of N(0, 1), those of lossless sparse.
    """
    x = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    copy = np.empty_like(x)
    actions: dict[str, Callable[[], object]] = {"place": lambda: np.copyto(copy, x)}
    backends = set()
    for name in CODECS:
        codec = make_codec(_SPELLED.get(name, name), workers=1 if name == "lossless" else WORKERS)
        backends.add(codec.backend)
        if isinstance(codec, RangeCodec):
            subject = Subject(codec, x, seed).actions()
            actions |= {f"{way}_{name}": subject[way] for way in ("encode", "decode")}
        elif isinstance(codec, Lossless):
            actions |= _sparse_actions(codec, x, seed)
    packed = np.random.default_rng(seed).integers(0, 256, (-(-elements // 1024), PACKED_BYTES), dtype=np.uint8)
    runs_of = [packed[first : first + _RUN_CHUNKS] for first in range(0, len(packed), _RUN_CHUNKS)]
    actions["decode_packed"] = lambda: [unpack_sums(part) for part in runs_of]
    actions |= {f"two_shot_{bits}": partial(_two_shots, x, bits) for bits in TWO_SHOT_BITS}
    with one_core():
        seconds = {name: least / elements for name, least in _least_cpu_s(actions, runs).items()}
    origin = _origin(f"`hopsum plan --calibrate`, processor time on one core, {', '.join(sorted(backends))}")
    return {name: Cost(value, origin) for name, value in _as_lines(seconds).items()}


def _least_cpu_s(actions: Mapping[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Return the least processor time of each action: once to warm up, then all in turn."""
    found = dict.fromkeys(actions, float("inf"))
    for action in actions.values():
        action()
    for _ in range(runs):
        for name, action in actions.items():
            start = time.process_time()
            action()
            found[name] = min(found[name], time.process_time() - start)
    return found


def _two_shots(x: NDArray[np.float32], bits: int) -> None:
    """Do what a worker does in a two-shot all-reduce of WORKERS: with a part for each, and all parts of the mean."""
    blocks = quantise(padded(x, WORKERS), bits)
    part = len(blocks) // WORKERS
    total = np.zeros(part * BLOCK, np.float32)
    for rank in range(WORKERS):
        total += dequantise(blocks[rank * part : (rank + 1) * part], bits)
    quantise(total, bits)
    dequantise(blocks, bits)


def _sparse_actions(codec: Lossless, x: NDArray[np.float32], seed: int) -> dict[str, Callable[[], object]]:
    """Return lossless' encoding, and all of it, at two densities."""
    order = np.random.default_rng([seed, 1]).random(x.size, dtype=np.float32)
    found: dict[str, Callable[[], object]] = {}
    for place, density in enumerate(_DENSITIES):
        sparse = np.where(order < density, x, np.float32(0))
        found[f"lossless encode {place}"] = partial(reduce_alone, codec, sparse, seed, 2)
        found[f"lossless all {place}"] = partial(reduce_alone, codec, sparse, seed, 3)
    return found


def _as_lines(seconds: dict[str, float]) -> dict[str, float]:
    """Return the costs with those of lossless as a value at density 0 and a slope, from two densities each."""
    costs = {name: value for name, value in seconds.items() if not name.startswith("lossless")}
    thin, thick = ((seconds[f"lossless encode {place}"], seconds[f"lossless all {place}"]) for place in (0, 1))
    for way, low, high in (("encode", thin[0], thick[0]), ("decode", thin[1] - thin[0], thick[1] - thick[0])):
        member = max(0.0, (high - low) / (_DENSITIES[1] - _DENSITIES[0]))
        costs[f"{way}_lossless"] = max(0.0, low - member * _DENSITIES[0])
        costs[f"{way}_lossless_member"] = member
    return costs


def network_costs(costs: Costs, elements: int, runs: int, seed: int, console: Console) -> dict[str, Cost]:
    """Return what network threads, the embedded switch and gloo's ring cost, from processor times of all-reduces.

    What codec and mean need by `costs` is taken from a worker's time. The rest is its chunks' and vectors', which two
    runs tell apart: in the other one each vector is a chunk. A ring's processor time
    is not all charged to its processes (the kernel's part of TCP over veth pairs is not): its shortest run counts, with
    all cores taken for busy.
    """
    bench: Any = import_module("hopsum_evaluation.bench.allreduce")
    subjects = [name for name in bench.SUBJECTS if name != "thc-no-overlap"]
    if find_spec("torch") is None:
        subjects = [name for name in subjects if not name.startswith("gloo")]
    setting = bench.AllReduceSetting([None], WORKERS, elements, _BUCKETS, 512, runs, seed, subjects, "auto")
    small = replace(setting, elements=_BUCKETS * _SMALL_ELEMENTS, runs=_SMALL_RUNS * runs, subjects=["thc"])
    try:
        findings = {found.subject: found for found in bench.run(setting, console)}
        (thin,) = bench.run(small, console)
    except Exception as error:
        raise PlanError(f"--calibrate: the all-reduces failed: {type(error).__name__}: {error}") from error
    origin = _origin(f"`hopsum plan --calibrate`, {WORKERS} workers' unshaped all-reduces")
    traffic = summed_traffic(codec_of("thc", WORKERS), elements, _BUCKETS, 1.0)
    own_s = sum(costs.codec_s("thc", elements, 1.0)) + elements * costs["place"].seconds
    worker_s = fmean(findings["thc"].worker_cpu_s)
    few = summed_traffic(codec_of("thc", WORKERS), small.elements, _BUCKETS, 1.0)
    chunk_s, vector_s = _chunk_and_vector(
        (traffic.chunks, worker_s - own_s), (few.chunks, fmean(thin.worker_cpu_s) - own_s * small.elements / elements)
    )
    if worker_s <= own_s:
        raise PlanError(
            f"--calibrate: workers took {worker_s:.3g} s, their codec alone should take {own_s:.3g} s: measure again "
            "with less other load on the machine"
        )
    seconds = {
        "chunk": chunk_s,
        "vector": vector_s,
        "update": fmean(findings["thc"].switch_cpu_s) / (WORKERS * traffic.chunks),
    }
    for precision, element_bytes in (("fp32", 4), ("fp16", 2)):
        if found := findings.get(f"gloo-{precision}"):
            sent = ring_traffic(elements, WORKERS, element_bytes).up_bytes
            cores = len(os.sched_getaffinity(0))
            seconds[f"ring_{precision}"] = min(found.seconds) * cores / WORKERS / sent
    return {name: Cost(value, origin) for name, value in seconds.items()}


def _chunk_and_vector(thick: tuple[int, float], thin: tuple[int, float]) -> tuple[float, float]:
    """Return the seconds of a chunk and of a vector from two all-reduces of _BUCKETS, (chunks, seconds) each."""
    (many, many_s), (few, few_s) = thick, thin
    chunk_s = max(0.0, (many_s - few_s) / (many - few))
    return chunk_s, max(0.0, few_s - few * chunk_s) / _BUCKETS


def _origin(how: str) -> str:
    where = machine()
    return f"{how}: {where['processor']}, {where['cores']} cores, load {where['load_1min']}"
