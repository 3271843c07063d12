# SPDX-License-Identifier: Apache-2.0
"""Common parts of a report's sections: sizes, randomness, and the form of tables, plots and samples.

A section is a module with the tuple CLAIMS, `run(settings, tell)`, which measures and returns what JSON can hold, and
`make_view(result)`, which makes tables, plots and samples of that alone. `hopsum report --read` shows without
measuring.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import isfinite
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hopsum.codec.hashing import derive_key
from hopsum.errors import HopsumError
from hopsum_controlplane import ControlPlaneError
from hopsum_evaluation.charts import Plot
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.worker_pool import WorkerDiedError, sigint_blocked

_T = TypeVar("_T")
_END_S: Final = 20.0
"""The time in which the process of a measurement ends by itself once nobody listens."""

Result = dict[str, Any]
"""Measured figures of one section, as values that JSON can hold. `make_view` needs nothing else."""
Tell = Callable[[float, str], None]
"""A function that reports progress: the share of a section that is done, 0 to 1, and the next step in words."""


class NotRunError(Exception):
    """A section cannot run on this machine. The message has the reason and the remedy."""


class Size(StrEnum):
    """Size of all experiments. small: seconds, for tests. default: six minutes on two cores. full: hours."""

    SMALL = "small"
    DEFAULT = "default"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Settings:
    """Seed and size of a report, and the streams of random numbers that follow from the seed.

    folder: folder for the figures of a section that is not finished yet.
    dilate: True where workers and switches get a processor each by time dilation, on a machine that has fewer.
    """

    seed: int
    size: Size
    folder: Path = Path()
    dilate: bool = False

    def pick(self, small: _T, default: _T, full: _T) -> _T:
        """Return the one of the three arguments that is for this size."""
        return {Size.SMALL: small, Size.DEFAULT: default, Size.FULL: full}[self.size]

    def derive_seed(self, *names: str | int) -> int:
        """Derive a seed, below 2^63, from a name ("data", "codec", "batch" or "loss") and any further names or numbers.

        Rotations and roundings are streams of "codec": `hopsum.codec.hashing` tells them apart.
        """
        # Streams have names, not positions: a section that draws more shifts no other one's numbers.
        parts = (_number(name) for name in names)
        return derive_key(self.seed, *parts) >> 1

    def rng(self, *names: str | int) -> np.random.Generator:
        """Return numpy's generator, seeded by `derive_seed(*names)`."""
        return np.random.default_rng(self.derive_seed(*names))


def _number(name: str | int) -> int:
    if isinstance(name, int):
        return name
    # Not hash(), which Python salts anew in every process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def write_report(report: dict[str, Any], path: Path) -> None:
    """Replace a file by figures as JSON, whole or not at all. Numbers that are not finite become null.

    Raises OSError.
    """
    # In the same folder: a rename is atomic within one file system only.
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(_finite(report), indent=1) + "\n")
    # A replacement is atomic: a run that is killed leaves the last whole report.
    part.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def measure_apart(measure: Callable[..., _T], argument: Any, *calls: Callable[..., None]) -> _T:
    """Call `measure(argument, *calls)` in a process of its own and return its result. `calls` run in this process.

    gRPC's threads stay in the network namespace in which they were started, and a process has one set of them. So two
    measurements in namespaces cannot share a process. `measure`, its arguments and its result are pickled. Raises
    NotRunError with the error of that process, or when it ends early.
    """
    # spawn, not fork: this process may have gRPC's threads, whose locks a forked child would inherit.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_apart, args=(measure, argument, len(calls), theirs))
    # Else a Ctrl-C while it imports would be a traceback.
    with sigint_blocked():
        process.start()
    # Only the child holds its end now, so that its death reads as EOFError here.
    theirs.close()
    try:
        while True:
            kind, *rest = ours.recv()
            if kind == "failed":
                raise NotRunError(rest[0])
            if kind == "found":
                found: _T = rest[0]
                return found
            calls[kind](*rest)
    except EOFError:
        raise NotRunError("the process of the measurement ended early; its last words are above") from None
    finally:
        ours.close()
        process.join(_END_S)
        if process.is_alive():
            process.terminate()
            process.join()


def _run_apart(measure: Callable[..., Any], argument: Any, calls: int, pipe: Connection) -> None:
    def forward(number: int, *arguments: Any) -> None:
        pipe.send((number, *arguments))

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        pipe.send(("found", measure(argument, *(partial(forward, number) for number in range(calls)))))
    # As text: not every error can be pickled for the parent.
    except (NotRunError, ControlPlaneError, TopologyError, WorkerDiedError, HopsumError, OSError) as error:
        # The parent may have closed the pipe, as after Ctrl-C.
        with suppress(BrokenPipeError):
            pipe.send(("failed", str(error) if isinstance(error, NotRunError) else f"{type(error).__name__}: {error}"))
    except KeyboardInterrupt:
        # Ctrl-C reaches both processes. The parent says what became of the measurement.
        pass


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report: rows of text cells below `heads`. The first cell of a row names the row."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class SectionView:
    """Tables and plots of a section of the report, and the measured samples of its claims."""

    tables: Sequence[ReportTable] = ()
    plots: Sequence[Plot] = ()
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Measured figures by the name of their claim, one per seed. An empty list for a claim that was not measured."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reasons for missing or infinite samples, by claim."""
