# SPDX-License-Identifier: Apache-2.0
"""The arguments of `hopsum plan`, and the job that they describe."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hopsum.plan import Costs, PlanError, PlannedJob, shipped_costs
from hopsum.plan.costs import costs_from_json
from hopsum.plan.step import AGGREGATORS
from hopsum_evaluation.command_options import codec_argument
from hopsum_evaluation.plan.module import module_elements
from hopsum_evaluation.plan.units import count, rate_bits_per_s, size_bytes, time_s

PRESETS: Final = ("homomorphic-parameter-compression",)
AGAINST: Final = ("rate", "workers")
PLOT_KINDS: Final = (".png", ".svg", ".pdf")
_FLOAT_BYTES: Final = 4


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="hopsum plan",
        description="Predict the step time of a data-parallel job, method by method, and say what binds it. "
        "`hopsum plan paper` is the model of Homomorphic Parameter Compression.",
    )
    job = parser.add_argument_group("the job")
    size = job.add_mutually_exclusive_group()
    size.add_argument("--elements", type=count, metavar="N", help="number of gradients, like 25000000 or 25M")
    size.add_argument("--bytes", type=size_bytes, metavar="SIZE", help="size of the gradients in float32, like 233MB")
    size.add_argument("--module", metavar="PACKAGE:FACTORY", help="torch module that is made and counted")
    job.add_argument("--compute", type=time_s, metavar="TIME", help="time of a step without communication, like 120ms")
    job.add_argument("--workers", type=int, default=4, metavar="N", help="number of workers (default %(default)s)")
    job.add_argument(
        "--overlap", type=float, default=0.0, metavar="SHARE",
        help="share of computing that communication may overlap; DDP: the backward pass (default %(default)s)",
    )  # fmt: skip
    job.add_argument("--buckets", type=int, default=8, metavar="N", help="vectors of a step (default %(default)s)")
    job.add_argument(
        "--density", type=float, default=0.05, metavar="SHARE",
        help="share of nonzero gradients, for codec lossless (default %(default)s)",
    )  # fmt: skip
    _add_network(parser)
    _add_methods(parser)
    return parser


def _add_network(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network and machines")
    network.add_argument(
        "--rate", type=rate_bits_per_s, default=1e9, metavar="RATE", help="rate of the links (default 1gbit)"
    )
    network.add_argument(
        "--round-trip", type=time_s, default=100e-6, metavar="TIME", help="round-trip time (default 100us)"
    )
    network.add_argument(
        "--racks", type=int, default=1, metavar="N", help="racks below one more switch (default 1: no tree)"
    )
    network.add_argument(
        "--uplink-rate",
        type=rate_bits_per_s,
        metavar="RATE",
        help="rate of the uplink of a rack (default: that of the links)",
    )
    network.add_argument(
        "--cores", type=int, default=2, metavar="N", help="cores for a worker's codec and network (default 2)"
    )
    network.add_argument(
        "--shared-cores", type=int, metavar="N", help="cores of one machine that all workers and the switch share"
    )
    network.add_argument("--no-codec-overlap", action="store_true", help="codec and network take turns")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    methods = parser.add_argument_group("what is predicted, from what, and how it is shown")
    methods.add_argument(
        "--codec",
        action="append",
        type=codec_argument,
        help="codec to predict, as in thc:bits=2; may be repeated (default: all)",
    )
    methods.add_argument(
        "--aggregator", action="append", choices=AGGREGATORS,
        help="switch: adds at the rate of the links (assumed); embedded: the embedded switch, a link per worker; "
        "server: the same behind one link; may be repeated (default: all)",
    )  # fmt: skip
    methods.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="file of --calibrate with the costs of a machine (default: those of the documentation)",
    )
    methods.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="file for the costs of this machine, which are measured and used"
    )
    methods.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    methods.add_argument("--plot", type=Path, metavar="FILE", help="file for a figure, PNG or SVG by its name")
    methods.add_argument("--x-axis", choices=AGAINST, default="rate", help="x axis of the figure (default %(default)s)")
    methods.add_argument("--preset", choices=PRESETS, help="preset; `hopsum plan paper` has more options for it")
    methods.add_argument(
        "--validate", action="store_true",
        help="measure with `hopsum bench allreduce` at three rates, and compare (root)",
    )  # fmt: skip
    methods.add_argument(
        "--placement", choices=("fabric", "server", "hosts"), default="fabric",
        help="place of the switches of --validate (default %(default)s)",
    )  # fmt: skip
    methods.add_argument("--rates", default="200mbit,1gbit,unshaped", help="rates of --validate (default %(default)s)")
    methods.add_argument("--runs", type=int, default=3, help="runs of --validate and --calibrate (default %(default)s)")
    methods.add_argument("--seed", type=int, default=1, help="seed of what is measured (default %(default)s)")


def job_of(options: argparse.Namespace) -> PlannedJob:
    """Return the job that the arguments describe. Raises PlanError."""
    if options.compute is None:
        raise PlanError("--compute TIME is needed: seconds of a step of one worker without communication")
    return PlannedJob(
        elements=elements_of(options), workers=options.workers, compute_s=options.compute,
        link_bits_per_s=options.rate, overlap=options.overlap, vectors=options.buckets, density=options.density,
        round_trip_s=options.round_trip, worker_cores=options.cores, shared_cores=options.shared_cores,
        codec_overlap=not options.no_codec_overlap, racks=options.racks, trunk_bits_per_s=options.uplink_rate,
    )  # fmt: skip


def elements_of(options: argparse.Namespace) -> int:
    """Return the elements of the gradients. Raises PlanError."""
    if options.module is not None:
        return module_elements(options.module)
    if options.bytes is not None:
        return int(options.bytes) // _FLOAT_BYTES
    if options.elements is not None:
        return int(options.elements)
    raise PlanError("how large are the gradients? --elements N, --bytes SIZE or --module PACKAGE:FACTORY")


def costs_of(options: argparse.Namespace) -> Costs:
    """Return the costs to predict with. Raises PlanError."""
    path: Path | None = options.costs or options.calibrate
    if path is None:
        return shipped_costs()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"--costs {path}: {getattr(error, 'strerror', None) or error}") from error
    return costs_from_json(text, str(path))


def require_plot(path: Path | None) -> None:
    """Raise PlanError unless a figure can be written there. None stands for no figure."""
    if path is None:
        return
    if not find_spec("matplotlib"):
        raise PlanError("--plot needs matplotlib: pip install 'hopsum[plot]'")
    if path.suffix not in PLOT_KINDS:
        raise PlanError(f"--plot {path}: a name that ends in {', '.join(PLOT_KINDS)}")
    if not path.parent.is_dir():
        raise PlanError(f"--plot {path}: there is no folder {path.parent}")
