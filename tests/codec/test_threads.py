# SPDX-License-Identifier: Apache-2.0
"""Several threads make the same bytes, and every job runs once."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

from hopsum.codec import CodecError, Context, ErrorFeedback, make_codec
from hopsum.codec.backends.threads import MIN_THREAD_BYTES, run_parallel
from hopsum.codec.simulate import simulate_switch

from .conftest import NAMES
from .vectors import layered


@pytest.mark.parametrize("codec_name", list(NAMES))
@pytest.mark.parametrize("threads", [2, 3])
def test_bytes_do_not_depend_on_threads(codec_name: str, threads: int, backend: str) -> None:
    name, options = NAMES[codec_name]
    x = layered(MIN_THREAD_BYTES // 4 * 3 + 777)
    made = []
    for count in (1, threads):
        codec = make_codec(name, workers=2, backend=backend, threads=count, **options)
        feedback = ErrorFeedback(x.size)
        reduction = codec.start(x, Context(1, 2, 0), feedback)
        while (exchange := reduction.exchange) is not None:
            made.append(exchange.payloads.tobytes())
            reduction.take(*simulate_switch(exchange.op, [exchange.payloads], codec.lookup))
        assert reduction.mean is not None
        made += [reduction.mean.tobytes(), feedback.residual.tobytes()]
    assert made[: len(made) // 2] == made[len(made) // 2 :]


def test_kernels_really_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads' worth of blocks arrive in the backend from several threads, each block once."""
    codec = make_codec("thc", workers=2, backend="numpy", threads=2)
    seen: list[tuple[int, int, int]] = []
    plain = codec._kernels._kernels.root_mean_square  # type: ignore[attr-defined]
    started = threading.Barrier(2, timeout=10)

    def slow(x: np.ndarray) -> np.ndarray:
        if len(seen) < 2:
            seen.append((0, 0, 0))
            started.wait()
        seen.append((threading.get_ident(), len(x), x.ctypes.data))
        return np.asarray(plain(x))

    monkeypatch.setattr(codec._kernels._kernels, "root_mean_square", slow)  # type: ignore[attr-defined]
    x = layered(MIN_THREAD_BYTES // 4 * 4)
    codec.ranges(x)  # type: ignore[attr-defined]
    calls = seen[2:]
    assert len({ident for ident, _, _ in calls}) == 2
    assert sum(blocks for _, blocks, _ in calls) == x.size // 1024
    assert len({place for _, _, place in calls}) == len(calls) == 4


@pytest.mark.parametrize(("jobs", "threads"), [(1, 4), (5, 1), (5, 2), (100, 3)])
def test_every_job_runs_once(jobs: int, threads: int) -> None:
    done: list[int] = []
    run_parallel([partial(done.append, index) for index in range(jobs)], threads)
    assert sorted(done) == list(range(jobs))


def test_jobs_run_at_the_same_time_and_may_nest() -> None:
    meeting = threading.Barrier(3, timeout=10)
    done: list[int] = []

    def job() -> None:
        meeting.wait()
        run_parallel([partial(done.append, index) for index in range(4)], 3)

    run_parallel([job] * 3, 3)
    assert sorted(done) == sorted([*range(4)] * 3)


@pytest.mark.parametrize("bad", [0, 1, 5])
def test_an_exception_comes_out_after_all_have_ended(bad: int) -> None:
    running = threading.Semaphore(0)

    def job(index: int) -> None:
        if index == bad:
            raise IndexError(f"job {index}")
        running.release()

    with pytest.raises(IndexError, match=f"job {bad}"):
        run_parallel([partial(job, index) for index in range(6)], 2)
    run_parallel([running.release] * 4, 2)


def test_a_forked_process_makes_its_own_threads() -> None:
    code = (
        "import os; from hopsum.codec.backends.threads import run_parallel; done = [];"
        "jobs = [lambda: done.append(1)] * 8; run_parallel(jobs, 2); pid = os.fork();"
        "run_parallel(jobs, 2) if pid == 0 else None;"
        "os._exit(len(done) != 16) if pid == 0 else None;"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_no_threads_are_refused() -> None:
    with pytest.raises(CodecError, match="0 threads: at least 1"):
        make_codec("thc", workers=2, threads=0)
