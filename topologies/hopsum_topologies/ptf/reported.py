# SPDX-License-Identifier: Apache-2.0
"""A ptf test that tells the runner how it ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ptf import testutils
from ptf.base_tests import BaseTest

from hopsum_topologies.ptf.case_results import Outcome, Result, append_result


class ReportedTest(BaseTest):  # type: ignore[misc]
    """The base class of tests that report their outcome, a line each, in a file for the runner."""

    def run(self, result: Any = None) -> None:
        """Run as unittest does, with a `result` of unittest's, and call `report` with the outcome of this test."""
        kinds: tuple[tuple[Outcome, list[Any]], ...] = (
            ("FAILED", result.failures),
            ("ERROR", result.errors),
            ("skipped", result.skipped),
        )
        # The result object collects all tests of the run: new entries are those of this test.
        before = [len(entries) for _, entries in kinds]
        super().run(result)
        ended = Result(self.case_name(), "ok")
        for (outcome, entries), count in zip(kinds, before, strict=True):
            if len(entries) > count:
                ended = Result(self.case_name(), outcome, _reason(entries[count][1]))
                break
        self.report(ended)

    def report(self, result: Result) -> None:
        """Write the outcome to the file that the runner reads. Do nothing without a runner."""
        if path := testutils.test_param_get("results"):
            append_result(Path(path), result)

    def case_name(self) -> str:
        """Return `module.Class`, the name that ptf lists."""
        return f"{type(self).__module__}.{type(self).__name__}"


def _reason(report: str) -> str:
    """Return the line of unittest's report that names the error. The report of a skip is its reason."""
    lines = report.strip().splitlines()
    return next((line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[-1])
