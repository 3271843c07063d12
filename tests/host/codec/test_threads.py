# SPDX-License-Identifier: Apache-2.0
"""Several threads make the same bytes, and every job runs once."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import BlockKeys, CodeTable, Form
from hopsum.codec.backends.threads import MIN_THREAD_BYTES, run_parallel
from hopsum.codec.lookup_table import optimal_table
from hopsum.codec.simulate import simulate_switch

from .conftest import NAMES
from .vectors import layered


@pytest.mark.parametrize("codec_name", list(NAMES))
@pytest.mark.parametrize("threads", [2, 3])
def test_bytes_do_not_depend_on_threads(codec_name: str, threads: int) -> None:
    name, options = NAMES[codec_name]
    x = layered(MIN_THREAD_BYTES // 4 * 3 + 777)
    made = []
    for count in (1, threads):
        codec = make_codec(name, workers=2, backend="numba", threads=count, **options)
        feedback = ErrorFeedback(x.size)
        reduction = codec.start(x, ReductionContext(1, 2, 0), feedback)
        while (phase := reduction.phase) is not None:
            made.append(phase.payloads.tobytes())
            reduction.on_results(*simulate_switch(phase.op, [phase.payloads], codec.lookup))
        assert reduction.mean is not None
        made += [reduction.mean.tobytes(), feedback.residual.tobytes()]
    assert made[: len(made) // 2] == made[len(made) // 2 :]


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("turns", [[0, 25], [0, 50], [25, 25], [16, 32], [25, 57]])
def test_a_compiled_kernel_takes_what_no_thread_has_taken(turns: list[int], own: int) -> None:
    """50 blocks in two runs: from the first that is free, first of the own run, then of the other."""
    compiled = pytest.importorskip("hopsum.codec.backends.range_kernels")
    x = layered(50 * 1024)
    whole = load_kernels("numpy").root_mean_square(x, 1024)
    out = np.full(50, -1, np.float32)
    shared = np.array(turns, np.int64)
    compiled.root_mean_square(x, 1024, shared, own, out)
    free = [turns[0] <= block < 25 or turns[1] <= block < 50 for block in range(50)]
    assert np.where(free, whole, np.float32(-1)).tolist() == out.tolist()
    assert (shared >= (25, 50)).all()


def test_threads_in_one_compiled_kernel_share_its_blocks() -> None:
    """Each of 4 threads has a turn: together they do all blocks, and no block twice: subtraction would show it."""
    compiled = pytest.importorskip("hopsum.codec.backends.thc_kernels")
    kernels = load_kernels("numpy")
    steps, form = CodeTable.from_values(optimal_table(21, 1e-3)), Form()
    payloads = np.random.default_rng(3).integers(0, 256, (400, 512), dtype=np.uint8)
    factors = np.ones(400, np.float32)
    expected, out = np.zeros((400, 1024), np.float32), np.zeros((400, 1024), np.float32)
    kernels.thc_dequantize(payloads, factors, steps, form, BlockKeys(5, 6, 0), expected, subtract=True)
    turns = np.arange(0, 400, 100)
    meeting = threading.Barrier(4, timeout=60)

    def job(own: int) -> None:
        meeting.wait()
        compiled.dequantize8(payloads, factors, *steps, form.group_codes, np.uint64(5), True, turns, own, out)

    run_parallel([partial(job, own) for own in range(4)], 4)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("jobs", "threads"), [(1, 4), (5, 1), (5, 2), (100, 3)])
def test_every_job_runs_once(jobs: int, threads: int) -> None:
    done: list[int] = []
    run_parallel([partial(done.append, index) for index in range(jobs)], threads)
    assert sorted(done) == list(range(jobs))


def test_jobs_run_at_the_same_time_and_may_nest() -> None:
    meeting = threading.Barrier(3, timeout=60)
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


def test_an_exception_of_a_helper_comes_out() -> None:
    caller = threading.get_ident()
    meeting = threading.Barrier(2, timeout=60)

    def job() -> None:
        meeting.wait()
        if threading.get_ident() != caller:
            raise IndexError("of a helper")

    with pytest.raises(IndexError, match="of a helper"):
        run_parallel([job] * 2, 2)
    done: list[int] = []
    run_parallel([partial(done.append, index) for index in range(4)], 2)
    assert sorted(done) == list(range(4))


def test_a_call_does_not_wait_for_helpers_that_are_busy() -> None:
    inside, leave = threading.Barrier(3, timeout=60), threading.Event()
    done: list[int] = []

    def hold() -> None:
        inside.wait()
        assert leave.wait(60)

    holding = threading.Thread(target=run_parallel, args=([hold] * 2, 2))
    holding.start()
    inside.wait()  # the only helper is held
    run_parallel([partial(done.append, index) for index in range(4)], 2)
    leave.set()
    holding.join(60)
    assert done == list(range(4))
    assert not holding.is_alive()


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
