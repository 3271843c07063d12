# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench controlplane` measures what it says, and tells when something is left over."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import Any

import pytest

from hopsum_evaluation.bench import controlplane
from hopsum_evaluation.bench.controlplane_run import Leaks, SwitchUnderTest

pytestmark = pytest.mark.system
SMALL = ["--jobs=3", "--workers=2", "--iterations=1", "--runs=1"]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert controlplane.main([*SMALL, *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"machine", "versions", "commit", "seed", "runs", "protobuf_in"} <= set(report)
    return report


def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(capsys)
    for target in controlplane.TARGETS:
        there = target == "native" or shutil.which("simple_switch_grpc") is not None
        for figure in controlplane.FIGURES:
            key = f"{target}.{figure}"
            if there:
                assert 0 < report[f"{key}_min"] <= report[key] <= report[f"{key}_max"]
            else:
                assert report[key] is None
        leaks = [report[f"{target}.{leak}"] for leak in ("leaked_entries", "leaked_slots", "generations_used_twice")]
        assert leaks == ([0, 0, 0] if there else [None, None, None])
    assert (report["jobs"], report["workers"], report["times"], report["slots_per_job"]) == (3, 2, 1, 682)


def test_what_is_left_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        target = SwitchUnderTest("native", stack, jobs=3, workers=2, seed=1)
        target.cycle()
        assert not target.leaks
        end = target._end
        monkeypatch.setattr(target, "_end", lambda jobs: end(jobs[1:]))
        target.cycle()
    # Of one job: a lookup, 2 rewrites, 2 workers, a group, and the entry in jobs.
    assert target.leaks == Leaks(entries=7, slots=682)
    assert target.leaks


@pytest.mark.parametrize("wrong", ["--jobs=65", "--workers=0", "--iterations=0", "--runs=0", "--only=tofino"])
def test_wrong_arguments(wrong: str) -> None:
    with pytest.raises(SystemExit) as error:
        controlplane.main([wrong])
    assert error.value.code == 2
