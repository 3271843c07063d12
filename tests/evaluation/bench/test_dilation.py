# SPDX-License-Identifier: Apache-2.0
"""Time dilation: shares of a processor in control groups of both versions, dilated settings, and the words for them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsum.agent import TIMING
from hopsum_evaluation.bench.dilation import ProcessorQuotas, add_dilate_option, dilated_rate, dilated_timing
from hopsum_evaluation.bench.timing import processors_of
from hopsum_evaluation.training.accuracy_plan import TrainingRun
from hopsum_topologies.errors import TopologyError


def cgroups(tmp_path: Path, version: int) -> Path:
    """Make a folder like a cgroup file system's, and return the list of mounts that has it."""
    home = tmp_path / "cpu"
    home.mkdir()
    mounts = tmp_path / "mounts"
    line = f"cgroup {home} cgroup rw,relatime,cpu,cpuacct 0 0"
    if version == 2:
        (home / "cgroup.controllers").write_text("cpuset cpu io\n")
        line = f"cgroup2 {home} cgroup2 rw,relatime 0 0"
    mounts.write_text(f"proc /proc proc rw 0 0\ncgroup /nowhere cgroup rw,cpuset 0 0\n{line}\n")
    return mounts


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("factor", "quota_us", "period_us"), [(2.5, 2000, 5000), (10.0, 1000, 10000)])
def test_every_program_has_its_share_of_a_processor(
    version: int, factor: float, quota_us: int, period_us: int, tmp_path: Path
) -> None:
    with ProcessorQuotas(factor, cgroups(tmp_path, version)) as quotas:
        quotas.assign([[11, 12], [13]])
        for number, last in enumerate(("12", "13")):
            group = tmp_path / "cpu" / f"hopsum-{os.getpid()}-{number}"
            # The kernel takes one id a write, so a file keeps the last one.
            found = {path.name: path.read_text() for path in group.iterdir()}
            assert found.pop("cgroup.procs") == last
            if version == 2:
                assert found == {"cpu.max": f"{quota_us} {period_us}"}
            else:
                assert found == {"cpu.cfs_quota_us": str(quota_us), "cpu.cfs_period_us": str(period_us)}
    assert version == 1 or (tmp_path / "cpu/cgroup.subtree_control").read_text() == "+cpu"


def test_groups_of_owners_that_are_gone_are_removed(tmp_path: Path) -> None:
    mounts = cgroups(tmp_path, 1)
    gone, other = tmp_path / "cpu/hopsum-4194305-0", tmp_path / "cpu/hopsum-mine"
    gone.mkdir()
    other.mkdir()
    ProcessorQuotas(2.0, mounts).close()
    assert (gone.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("controllers", [None, "io memory\n"])
def test_without_a_writable_control_group_it_is_refused_by_name(controllers: str | None, tmp_path: Path) -> None:
    mounts = cgroups(tmp_path, 2)
    (tmp_path / "cpu/cgroup.controllers").write_text(controllers or "cpu\n")
    if controllers is None:
        (tmp_path / "cpu/cgroup.subtree_control").mkdir()
    with pytest.raises(TopologyError, match=r"--dilate: no control group .* be root, .*docker run --privileged"):
        ProcessorQuotas(2.0, mounts)


def test_the_kernel_keeps_a_program_to_its_share() -> None:
    try:
        quotas = ProcessorQuotas(4.0)
    except TopologyError as error:
        pytest.skip(str(error))
    spin = "import time\ninput()\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    with quotas, subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as program:
        quotas.assign([[program.pid]])
        assert program.stdin is not None
        start = time.perf_counter()
        program.stdin.write(b"\n")
        program.stdin.close()
        assert program.wait() == 0
        # Two periods may be begun and not paid for at the start and at the end.
        assert time.perf_counter() - start >= 0.2 * 4 * 0.8
    assert not list(quotas._home.glob(f"hopsum-{os.getpid()}-*"))


def test_rates_timers_and_times() -> None:
    assert [dilated_rate(rate, 2.5) for rate in ("200mbit", "1gbit", None)] == ["80000000bit", "400000000bit", None]
    assert dilated_rate("1gbit", 1) == "1gbit"
    slow = dilated_timing(2.0)
    assert (slow.retransmit_s, slow.deadline_s, slow.backoff) == (0.2, 600.0, TIMING.backoff)
    assert slow.flush_after_s is None
    assert dilated_timing(1.0) == TIMING
    run = TrainingRun([(4, 5.0, 0.5)], 1.0, 0.5, None, 0.25, 1000.0)
    assert run.undilated(2.5) == TrainingRun([(4, 2.0, 0.5)], 0.4, 0.2, None, 0.25, 1000.0)


@pytest.mark.parametrize("text", ["0.5", "x", "51", "nan"])
def test_factors_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_dilate_option(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--dilate", text])
    assert f"{text!r}: a factor of 1 to 50" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((4, 1, 16), "16 processors for 4 workers and 1 switch and everything else"),
        ((4, 1, 9), "oversubscribed: 4 workers and 1 switch share 9 processors"),
        ((2, 2, 2), "oversubscribed: 2 workers and 2 switches share 2 processors"),
        ((4, 1, 2, 2.5), "dilated 2.5 times: one processor for each of 4 workers and 1 switch, out of 2"),
        (
            (4, 4, 2, 2.5),
            "oversubscribed: dilated 2.5 times: one processor for each of 4 workers and 4 switches, out of 2, w",
        ),
    ],
)
def test_processors_are_said_and_their_lack_comes_first(given: tuple[int, int, int], words: str) -> None:
    assert processors_of(*given).startswith(words)
