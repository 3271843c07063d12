# SPDX-License-Identifier: Apache-2.0
"""Throughput of codec thc on tensors, as one JSON object: `python -m hopsum_evaluation.torch.bench`.

On CUDA each phase is timed with events over 256 M elements or more, far beyond any cache, once to warm up and then in
turn with the others. Figures are medians. They are compared with a copy of as many bytes on the same device,
half of them read and half written. On the CPU it measures plain torch operations on a small vector, with the clock.

`kernel` phases launch on checked arguments. `codec` phases are the methods a program calls: they include ranges to
scales, counts of contributors, the checks, and waiting for the device. Before anything is timed, payloads and mean of
a sample are compared with the twin's, or on the CPU with numpy's.

Results have random content: what they are is no matter of time.

`all_reduces` are whole all-reduces with error feedback but for the network, as the communicator's thread makes them: by
the host's clock, with codes and results crossing the bus.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from hopsum.codec import make_codec
from hopsum.codec.backends.kernels import THC_BLOCK
from hopsum.codec.interface import CodecError, ReductionContext
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum.codec.vector_reduction import SharedRanges
from hopsum.torch.codec.torch_kernels import DeviceContributors, TorchKernels
from hopsum.torch.codec.torch_thc import TorchThc
from hopsum.torch.device_reduction import DeviceFeedback, DeviceReduction
from hopsum.torch.streams import Staging, streams_of
from hopsum_base.units import whole
from hopsum_evaluation.bench.timing import versions
from hopsum_wire import MAX_WORKERS
from hopsum_wire.payload import SHAPES

CUDA_ELEMENTS: Final = 1 << 28
CPU_ELEMENTS: Final = 1 << 19
MIN_RUNS: Final = 5
SAMPLE_BLOCKS: Final = 512
ALL_REDUCE_ELEMENTS: Final = (1 << 16, 1 << 20, 1 << 25)
"""A small vector, a gradient bucket of 4 MiB, and one of 128 MiB."""


@dataclass(frozen=True, slots=True)
class TimedPhase:
    """A phase of the codec that is timed, as a function without arguments."""

    name: str
    bytes_per_element: float
    """Bytes through device memory: each input read once, each output written once."""
    action: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The vectors and results that all phases work on, those of one rank."""

    codec: TorchThc
    context: ReductionContext
    x: torch.Tensor
    own: torch.Tensor
    shared: torch.Tensor
    payloads: torch.Tensor
    results: torch.Tensor
    """Results with random content, of all workers."""
    contributors: DeviceContributors

    @classmethod
    def make(cls, codec: TorchThc, elements: int, seed: int) -> Inputs:
        """Draw a vector of N(0, 1) on the codec's device and encode it. Draw results of random content."""
        # Drawn on the device: 1 GiB would cross the bus otherwise.
        generator = torch.Generator(codec.device).manual_seed(seed)
        x = torch.randn(elements, generator=generator, device=codec.device)
        context = ReductionContext(seed, 1, 0)
        own = codec.ranges(x)
        payloads = encode(codec, x, own, own, context)
        # Every byte is a result's if codes are results. Whole sums have a largest lane.
        most = 255 if codec.form.requantized else codec.workers * codec.table.granularity
        shape = (len(own), SHAPES[codec.op].down_bytes)
        results = torch.randint(0, most + 1, shape, dtype=torch.uint8, generator=generator, device=codec.device)
        everybody = np.full(len(own), (1 << codec.workers) - 1, np.uint64)
        packed = torch.from_numpy(codec.pack_contributors(everybody)).to(codec.device)
        return cls(codec, context, x, own, own.clone(), payloads, results, codec.contributors(packed, len(own)))

    @property
    def factors(self) -> torch.Tensor:
        """The factors of sums of all workers, float32[blocks]."""
        return self.codec.factors(self.shared, self.contributors.counts)


def encode(
    codec: TorchThc, x: torch.Tensor, own: torch.Tensor, shared: torch.Tensor, context: ReductionContext
) -> torch.Tensor:
    """Return the payloads of a whole vector, from its own ranges and those that the ranks share."""
    payloads = torch.empty((len(own), SHAPES[codec.op].up_bytes), dtype=torch.uint8, device=codec.device)
    codec.encode_blocks(x, *codec.scales(own, shared), context, 0, payloads)
    return payloads


def decode(inputs: Inputs) -> torch.Tensor:
    """Return the mean of the whole vector, decoded from the results. Raises CodecError for impossible sums."""
    codec, mean = inputs.codec, torch.empty_like(inputs.x)
    given = (inputs.results, inputs.contributors, inputs.factors, inputs.context, 0, mean)
    if codec.decode_blocks(*given).item():
        codec.refuse_sums(inputs.results, inputs.contributors.counts)
    return mean


def subtract(
    codec: TorchThc, payloads: torch.Tensor, shared: torch.Tensor, context: ReductionContext, pending: torch.Tensor
) -> None:
    """Subtract from a whole vector, `pending`, in place, the share of its payloads in a sum."""
    alone = torch.ones(len(shared), dtype=torch.int32, device=codec.device)
    codec.subtract_blocks(payloads, codec.factors(shared, alone), context, pending)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: measure, and print one JSON object. Return 0, or 1 if the sample differs from its reference.

    arguments: None for those of the process.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    elements = options.elements or (CUDA_ELEMENTS if options.device.startswith("cuda") else CPU_ELEMENTS)
    if elements % THC_BLOCK:
        parser.error(f"--elements {elements}: whole blocks of {THC_BLOCK}")
    try:
        host = make_codec(options.codec, workers=options.workers, backend="numpy")
        if not isinstance(host, Thc):
            parser.error(f"--codec {options.codec}: thc, with options")
        codec = TorchThc(host, device=options.device, backend=options.codec_backend)
    except CodecError as error:
        parser.error(str(error))
    inputs = Inputs.make(codec, elements, options.seed)
    # On the CPU the tensors' own operations are measured: numpy's codec judges them.
    difference = compare_with_numpy(inputs, host) if codec.device.type == "cpu" else compare_sample(inputs)
    if difference:
        print(difference, file=sys.stderr)
        return 1
    report = {"codec": options.codec} | describe(inputs, options.runs) | {"phases": measure(inputs, options.runs)}
    report["all_reduces"] = time_all_reduces(inputs, options.runs)
    print(json.dumps(report))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    parser = argparse.ArgumentParser(prog="python -m hopsum_evaluation.torch.bench", description=__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="default: cuda where there is one, else cpu")
    parser.add_argument("--codec", default="thc", help="codec, as in thc:bits=2 (default %(default)s)")
    parser.add_argument(
        "--codec-backend", default="auto", help="back end of the codec: auto, torch or triton (default %(default)s)"
    )
    parser.add_argument("--elements", type=whole(1), help=f"default {CUDA_ELEMENTS} on cuda, {CPU_ELEMENTS} on the CPU")
    parser.add_argument("--workers", type=whole(1, MAX_WORKERS), default=8, help="of the job (default %(default)s)")
    parser.add_argument("--runs", type=whole(MIN_RUNS), default=9, help=f"at least {MIN_RUNS} (default %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")
    return parser


def compare_sample(inputs: Inputs) -> str:
    """Compare the first and last blocks with torch's own operations. Return a difference in words, or ""."""
    codec, blocks, mean = inputs.codec, len(inputs.own), decode(inputs)
    twin, half = copy(codec), min(SAMPLE_BLOCKS // 2, blocks)
    twin.kernels = TorchKernels()
    # First and last blocks: an index that overflows 32 bits shows at the end of 2^28 elements.
    for first in (0, blocks - half):
        rows, elements = slice(first, first + half), slice(first * THC_BLOCK, (first + half) * THC_BLOCK)
        payloads, right = torch.empty_like(inputs.payloads[rows]), torch.empty_like(inputs.x[elements])
        scales = twin.scales(inputs.own[rows], inputs.shared[rows])
        twin.encode_blocks(inputs.x[elements], *scales, inputs.context, first, payloads)
        given = (inputs.results[rows], inputs.contributors.part(rows), inputs.factors[rows])
        twin.decode_blocks(*given, inputs.context, first, right)
        if not torch.equal(payloads, inputs.payloads[rows]):
            return f"payloads of blocks {first} to {first + half} differ from the twin's: nothing was measured"
        if not torch.equal(right, mean[elements]):
            return f"means of blocks {first} to {first + half} differ from the twin's: nothing was measured"
    return ""


def compare_with_numpy(inputs: Inputs, host: Thc) -> str:
    """Compare the first blocks with numpy's codec, for inputs on the CPU that are encoded already.

    Decodes all results of `inputs` by torch. Returns "", or one sentence without the place if payloads or means differ.
    """
    blocks, mean = min(SAMPLE_BLOCKS, len(inputs.own)), decode(inputs)
    elements, rows = blocks * THC_BLOCK, slice(0, blocks)
    x, own = inputs.x[:elements].numpy(), inputs.own[rows].numpy()
    shared = SharedRanges(inputs.shared[rows].numpy())
    payloads = host.encode(x, own.view(np.uint32), shared, inputs.context)
    bitmaps = np.full(blocks, (1 << host.workers) - 1, np.uint64)
    right = host.decode(inputs.results[rows].numpy(), bitmaps, shared, elements, inputs.context)
    same = np.array_equal(payloads, inputs.payloads[rows].numpy()) and np.array_equal(right, mean[:elements].numpy())
    return "" if same else "the sample differs from numpy's: nothing was measured"


def phases(inputs: Inputs) -> list[TimedPhase]:
    """Return the phases to time. "kernel subtract" subtracts the same codes at each call, which changes no time."""
    codec, context, x = inputs.codec, inputs.context, inputs.x
    rows, residual = x.view(-1, THC_BLOCK), torch.zeros_like(x).view(-1, THC_BLOCK)
    pending, out = x.clone(), torch.empty_like(rows)
    kernels, shared, payloads = codec.kernels, inputs.shared, torch.empty_like(inputs.payloads)
    scaled, factors = codec.scales(inputs.own, shared), inputs.factors
    feedback = DeviceFeedback(x.numel(), codec.device)
    up, down = (each / THC_BLOCK for each in (SHAPES[codec.op].up_bytes, SHAPES[codec.op].down_bytes))

    def with_feedback() -> None:
        own = feedback.compensate(codec, x)
        sent = encode(codec, feedback.pending, own, own, context)
        subtract(codec, sent, own, context, feedback.pending)
        feedback.commit()

    # Without a rest of a block these are one launch each.
    decoded = (inputs.results, inputs.contributors, factors, context, 0, out.view(-1))
    return [
        TimedPhase("kernel ranges", 4, lambda: kernels.root_mean_square(rows)),
        TimedPhase("kernel encode", 4 + up, lambda: codec.encode_blocks(x, *scaled, context, 0, payloads)),
        TimedPhase("kernel decode", down + 4, lambda: codec.decode_blocks(*decoded)),
        TimedPhase("kernel compensate", 12, lambda: kernels.compensate(rows, residual, out)),
        TimedPhase("kernel subtract", up + 8, lambda: codec.subtract_blocks(payloads, factors, context, pending)),
        TimedPhase("codec ranges + encode", 8 + up, lambda: encode(codec, x, codec.ranges(x), shared, context)),
        TimedPhase("codec decode", down + 4, lambda: decode(inputs)),
        TimedPhase("codec with error feedback", 12 + 4 + up + up + 8, with_feedback),
    ]


def measure(inputs: Inputs, runs: int) -> dict[str, dict[str, float]]:
    """Time phases and copies of as many bytes in turn. Return, by phase, rates and its share of the copy's rate."""
    listed = phases(inputs)
    elements, device = inputs.x.numel(), inputs.codec.device
    sizes = sorted({phase.bytes_per_element for phase in listed})
    # Half of the bytes are read, half are written: a copy moves each byte twice.
    most = int(elements * sizes[-1] / 2)
    source, target = (torch.ones(most, dtype=torch.uint8, device=device) for _ in range(2))

    def copy(size: float) -> Callable[[], object]:
        count = int(elements * size / 2)
        return lambda: target[:count].copy_(source[:count])

    actions = {phase.name: phase.action for phase in listed} | {f"copy {size:g}": copy(size) for size in sizes}
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    # In turn: clocks and temperature drift alike for phases and copies. The first turn compiles kernels.
    for run in range(runs + 1):
        for name, action in actions.items():
            took = _seconds(action, device)
            if run:
                seconds[name].append(took)
    report = {}
    for phase in listed:
        took, copied = median(seconds[phase.name]), median(seconds[f"copy {phase.bytes_per_element:g}"])
        report[phase.name] = {
            "elements_per_s": elements / took,
            "elements_per_s_min": elements / max(seconds[phase.name]),
            "elements_per_s_max": elements / min(seconds[phase.name]),
            "bytes_per_s": elements * phase.bytes_per_element / took,
            "copy_bytes_per_s": elements * phase.bytes_per_element / copied,
            "share_of_copy": copied / took,
        }
    return report


def time_all_reduces(inputs: Inputs, runs: int) -> list[dict[str, float]]:
    """Time all-reduces of a worker without a network. Return a row for each of ALL_REDUCE_ELEMENTS.

    Results of the switch are simulated between the timed parts. Sizes are cut to that of the inputs.
    """
    found = []
    for elements in sorted({min(each, inputs.x.numel()) for each in ALL_REDUCE_ELEMENTS}):
        staging, x = Staging(streams_of(inputs.codec.device)), inputs.x[:elements]
        feedback, out = DeviceFeedback(elements, inputs.codec.device), torch.empty_like(x)
        times = [_all_reduce_seconds(inputs.codec, staging, x, feedback, out, step) for step in range(runs + 1)][1:]
        bus = (staging.bytes_to_host + staging.bytes_to_device) / (runs + 1)
        took = median(times)
        found.append(
            {
                "elements": elements,
                "s": took,
                "s_min": min(times),
                "s_max": max(times),
                "elements_per_s": elements / took,
                "bus_bytes_per_s": bus / took,
            }
        )
    return found


def _all_reduce_seconds(
    codec: TorchThc, staging: Staging, x: torch.Tensor, feedback: DeviceFeedback, out: torch.Tensor, step: int
) -> float:
    start = time.perf_counter()
    reduction = DeviceReduction(codec, staging, x, ReductionContext(1, step, 0), feedback, out=out)
    seconds = time.perf_counter() - start
    while reduction.phase is not None:
        results, contributors = simulate_switch(reduction.phase.op, [reduction.phase.payloads], codec.lookup)
        start = time.perf_counter()
        reduction.on_results(results, contributors)
        seconds += time.perf_counter() - start
    return seconds


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        action()
        return time.perf_counter() - start
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    action()
    end.record()
    # Launches return at once: without waiting, the clock would time the queue.
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def describe(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Make the head of the report: device, backend, sizes and versions."""
    codec = inputs.codec
    cuda = codec.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(codec.device) if cuda else f"cpu, {torch.get_num_threads()} threads",
        "backend": codec.backend,
        "elements": inputs.x.numel(),
        "workers": codec.workers,
        "granularity": codec.table.granularity,
        "runs": runs,
        "versions": versions("torch", "triton", "numpy"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
