# SPDX-License-Identifier: Apache-2.0
"""The sections by name, in the order of the page. What one needs is imported when it runs or is shown."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from hopsum_evaluation.report.claims import Claim
from hopsum_evaluation.report.settings import Result, Settings, Tell
from hopsum_evaluation.report.shown import Shown


class Experiment(Protocol):
    """The module of a section."""

    CLAIMS: Sequence[Claim]

    def run(self, settings: Settings, tell: Tell) -> Result:
        """Do the experiment. Raises NotRunError."""
        ...

    def show(self, result: Result) -> Shown:
        """Return what the page says, from what `run` returned, and nothing else."""
        ...


class ReportSection(NamedTuple):
    """A part of the page."""

    title: str
    module: str

    def load(self) -> Experiment:
        """Import its module, for its claims and for `show`."""
        return cast(Experiment, import_module(self.module))


_HERE: Final = "hopsum_evaluation.report"
SECTIONS: Final[dict[str, ReportSection]] = {
    "error": ReportSection("Error of the mean, bits and workers", f"{_HERE}.error"),
    "accuracy": ReportSection("Time to accuracy on shaped links", f"{_HERE}.accuracy"),
    "loss": ReportSection("THC: lost packets, stragglers, bits and workers", f"{_HERE}.loss"),
    "lossless": ReportSection("LHC: throughput against density, and what peels", f"{_HERE}.lossless"),
    "estimation": ReportSection("Suresh et al.: mean estimation, k-means, PCA", f"{_HERE}.estimation"),
    "delay": ReportSection("Rate by delay", f"{_HERE}.delay"),
    "growth": ReportSection("Growth: elements, workers, jobs, and the plan", f"{_HERE}.growth"),
    "dataplane": ReportSection("Data plane: native code, bmv2, lane by lane", f"{_HERE}.dataplane"),
}
