# SPDX-License-Identifier: Apache-2.0
"""Ranks that are threads: the sums of a switch, and what becomes of ranks that fail, leave or differ."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.agent import AllReduceResult, Communicator, CommunicatorClosedError, HostVector, MismatchError
from hopsum.codec import CodecError, CollectivePhase, ErrorFeedback, NonFiniteError, make_codec
from hopsum.errors import AllReduceTimeoutError, GenerationEndedError, RankLeftError
from hopsum.meeting import MeetingError
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

from ...support.processes import await_that
from .ranks import CODECS, run_ranks, vectors


def join(name: str, rank: int, workers: int = 2, **settings: Any) -> Communicator:
    settings = {"codec": "fixed", "backend": "numpy", "deadline_s": 20.0, **settings}
    return hopsum.connect(f"memory://{name}?workers={workers}", rank=rank, **settings)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("workers", [1, 3])
def test_sums_are_those_of_a_switch(codec: str, workers: int) -> None:
    name, options = CODECS[codec]
    xs = [vectors(workers, elements, codec, seed) for seed, elements in enumerate((1, 3000, 2048))]

    def work(job: Communicator) -> list[AllReduceResult]:
        return [future.result(60) for future in [job.submit(x[job.rank]) for x in xs]]

    found = run_ranks(f"memory://sums?workers={workers}", work, workers, codec=name, codec_options=options, seed=77)
    reference = make_codec(name, workers=workers, backend="numpy", **options)
    for step, x in enumerate(xs):
        expected = simulate_allreduce(reference, x, seed=77, step=step)
        assert expected is not None
        for results in found:
            assert results[step].mean.tobytes() == expected[0].tobytes()
            assert set(results[step].contributors.tolist()) == {(1 << workers) - 1}
            assert results[step].traffic.bytes_sent > 0


def test_other_lengths_are_an_error_on_all_ranks_and_the_next_can_follow() -> None:
    def work(job: Communicator) -> tuple[str, list[float]]:
        feedback = ErrorFeedback(3 + job.rank)
        with pytest.raises(MismatchError) as refused:
            job.allreduce(np.ones(3 + job.rank, np.float32), feedback=feedback)
        assert not feedback.residual.any()
        return str(refused.value), job.allreduce(np.full(2, job.rank, np.float32)).mean.tolist()

    found = run_ranks("memory://lengths?workers=2", work, 2, codec="fixed")
    assert found[0] == found[1]
    message, mean = found[0]
    assert "rank 0 has all-reduce 0 of 3 elements" in message
    assert "rank 1 has all-reduce 0 of 4 elements" in message
    assert mean == [0.5, 0.5]


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_nan_on_one_rank_is_known_to_all(on_nonfinite: Any) -> None:
    def work(job: Communicator) -> tuple[str, list[float], int]:
        x = np.array([1, np.nan if job.rank else 2], np.float32)
        try:
            result = job.allreduce(x, on_nonfinite=on_nonfinite)
            assert result.skipped
            told = str(result.mean.tolist())
        except NonFiniteError as error:
            told = f"{error.count} {error}"
        return told, job.allreduce(np.ones(2, np.float32)).mean.tolist(), job.statistics.skipped

    found = run_ranks("memory://nan?workers=2", work, 2, codec="fixed")
    assert [each[1:] for each in found] == [([1, 1], 1)] * 2
    if on_nonfinite == "skip":
        assert [each[0] for each in found] == ["[nan, nan]"] * 2
    else:
        assert found[0][0].startswith("0 another rank's vector is not finite")
        assert found[1][0].startswith("1 rank 1: 1 of 2 elements are NaN")


def test_a_rank_that_fails_alone_fails_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with join("alone", 0) as first, join("alone", 1) as second:

        def fail(*_: Any, **__: Any) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(second.codec, "start", fail)
        feedback = ErrorFeedback(2)
        waits = first.submit(np.ones(2, np.float32), feedback=feedback)
        fails = second.submit(np.ones(2, np.float32))
        assert isinstance(fails.exception(60), MemoryError)
        assert isinstance(waits.exception(60), RankLeftError)
        assert "rank 1 failed: no room" in str(waits.exception())
        assert feedback.residual.tolist() == [1, 1], "what was not delivered is back"
        for job in (first, second):
            with pytest.raises(GenerationEndedError, match="Connect all ranks again"):
                job.submit(np.ones(2, np.float32))


def test_what_is_queued_behind_a_failure_ends_too() -> None:
    with join("behind", 0, deadline_s=0.2) as job, join("behind", 1):
        feedback = [ErrorFeedback(2) for _ in range(3)]
        xs = np.array([[1, 2], [3, 4], [5, np.nan]], np.float32)
        futures = [job.submit(x, feedback=kept) for x, kept in zip(xs, feedback, strict=True)]
        assert isinstance(futures[0].exception(60), AllReduceTimeoutError)
        assert isinstance(futures[1].exception(60), GenerationEndedError)
        assert isinstance(futures[2].exception(60), GenerationEndedError)
        assert [kept.residual.tolist() for kept in feedback] == [[1, 2], [3, 4], [0, 0]], "NaN is dropped"


def test_a_feedback_that_fails_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    with join("feedback", 0, deadline_s=0.2) as job, join("feedback", 1):
        feedback = ErrorFeedback(2)
        monkeypatch.setattr(feedback, "rollback", fail)
        futures = [job.submit(np.ones(2, np.float32), feedback=each) for each in (feedback, None)]
        errors = [future.exception(60) for future in futures]
    assert [type(each) for each in errors] == [AllReduceTimeoutError, GenerationEndedError]
    assert getattr(errors[0], "__notes__", "") == [
        "its error feedback did not take the vector back: MemoryError('no room')"
    ]


def test_missing_ranks_are_named() -> None:
    with join("missing", 2, workers=3, deadline_s=0.05), join("missing", 0, workers=3, deadline_s=0.05) as job:
        with pytest.raises(AllReduceTimeoutError) as refused:
            job.allreduce(np.ones(2, np.float32))
        assert refused.value.missing_ranks == (1, 2)
        assert "ranks [1, 2] of 3 brought nothing, [2] of them joined" in str(refused.value)


def test_close_ends_what_is_in_progress_and_who_joins_then_starts_afresh() -> None:
    first, second = join("close", 0), join("close", 1)
    waits, queued = (first.submit(np.ones(2, np.float32)) for _ in range(2))
    first.close()
    first.close()
    assert isinstance(waits.exception(60), CommunicatorClosedError)
    assert isinstance(queued.exception(60), CommunicatorClosedError)
    with pytest.raises(CommunicatorClosedError):
        first.submit(np.ones(2, np.float32))
    with pytest.raises(RankLeftError, match="rank 0 has left"):
        second.allreduce(np.ones(2, np.float32))
    with join("close", 0) as again, join("close", 1) as too:
        futures = [job.submit(np.ones(2, np.float32)) for job in (again, too)]
        assert [future.result(60).mean.tolist() for future in futures] == [[1, 1]] * 2
    second.close()


def test_places_and_settings_have_to_fit() -> None:
    with join("fit", 0):
        with pytest.raises(MeetingError, match="rank 0 of memory://fit is taken"):
            join("fit", 0)
        with pytest.raises(MeetingError, match="has ranks 0 to 1"):
            join("fit", 2)
        join("fit", 1).close()


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    (
        {"codec": "uhc"},
        r"memory://differ: rank 0 has codec fixed\(\); rank 1 has codec uhc\(\): all ranks need",
    ),
    ({"seed": 9}, "rank 0 has seed 0; rank 1 has seed 9"),
    ({"on_nonfinite": "skip"}, "rank 0 has on_nonfinite raise; rank 1 has on_nonfinite skip"),
]


@pytest.mark.parametrize(("differing", "words"), DIFFERENT)
def test_settings_that_differ_are_one_error_on_all_ranks(differing: dict[str, Any], words: str) -> None:
    """Also on the rank that waits already, and on the one that comes last; then all can connect again."""
    with join("differ", 0, workers=3, deadline_s=600.0) as first:
        waits = first.submit(np.ones(2, np.float32))
        with pytest.raises(MeetingError, match=words):
            join("differ", 1, workers=3, **differing)
        assert isinstance(waits.exception(600), MeetingError)
        with pytest.raises(MeetingError, match=words):
            join("differ", 2, workers=3)
        with join("differ", 1, workers=3), join("differ", 2, workers=3):
            pass


def test_one_that_differs_harms_no_ranks_that_are_complete() -> None:
    with join("whole", 0) as first, join("whole", 1) as second:
        with pytest.raises(MeetingError, match="seed 9"):
            join("whole", 1, seed=9)
        with pytest.raises(MeetingError, match=r"ranks 0, 1 have workers 2; rank 2 has workers 3"):
            join("whole", 2, workers=3)
        futures = [job.submit(np.ones(2, np.float32)) for job in (first, second)]
        assert [future.result(20).mean.tolist() for future in futures] == [[1, 1]] * 2


def test_futures_cannot_be_cancelled_and_callbacks_cannot_block() -> None:
    with join("callbacks", 0, workers=1) as job:
        gate: Future[None] = Future()
        blocked: Future[Any] = Future()

        def block(_: Future[AllReduceResult]) -> None:
            gate.result(60)
            try:
                job.allreduce(np.ones(2, np.float32))
            except RuntimeError as error:
                blocked.set_result(str(error))

        first = job.submit(np.ones(2, np.float32))
        first.add_done_callback(block)
        queued = job.submit(np.ones(2, np.float32))
        assert not queued.cancel()
        gate.set_result(None)
        assert "would wait for itself: use submit" in blocked.result(60)
        wait([queued], 20)
        assert queued.result().mean.tolist() == [1, 1]
        closed: Future[None] = Future()
        job.submit(np.ones(2, np.float32)).add_done_callback(lambda _: closed.set_result(job.close()))
        closed.result(60)


def test_a_blocking_call_in_an_open_group_is_refused() -> None:
    with join("grouped", 0, 1) as comm:
        with comm.group(), pytest.raises(RuntimeError, match="would wait for the group's end: use async_op=True"):
            hopsum.allreduce(np.ones(8, np.float32), comm)
        assert hopsum.allreduce(np.ones(8, np.float32), comm)[0] == pytest.approx(1, abs=0.1)


def test_submit_refuses_what_is_no_vector() -> None:
    with join("refuses", 0, workers=1) as job:
        for x in (np.ones(2), np.ones((1, 2), np.float32), np.ones(0, np.float32)):
            with pytest.raises(CodecError, match="contiguous float32"):
                job.submit(x)
        with pytest.raises(CodecError, match="vector of 2 elements with an error feedback of 3"):
            job.submit(np.ones(2, np.float32), feedback=ErrorFeedback(3))
        with pytest.raises(CodecError, match="brings its own feedback and place of the mean"):
            job.submit(HostVector(np.ones(4, np.float32)), feedback=ErrorFeedback(4))
        with pytest.raises(CodecError, match="on_nonfinite"):
            job.submit(np.ones(2, np.float32), on_nonfinite="zero")  # type: ignore[arg-type]
        assert job.statistics.allreduces == 0


def test_a_sum_that_fails_breaks_the_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise CodecError("no such op")

    monkeypatch.setattr("hopsum.serial.memory.simulate_phase", refuse)
    with join("broken", 0) as first, join("broken", 1) as second:
        futures = [job.submit(np.ones(2, np.float32)) for job in (first, second)]
        kinds = sorted(type(future.exception(60)).__name__ for future in futures)
    assert kinds == ["CodecError", "RankLeftError"]


def test_the_last_vector_does_not_stay_until_the_next_one() -> None:
    with join("last", 0, 1) as job:
        x = np.ones(5, np.float32)
        alive = weakref.ref(x)
        job.submit(x).result()
        del x
        await_that(lambda: alive() is None, "the end of the vector")


def test_threads_end() -> None:
    join("ends", 0, workers=1).close()
    assert not [each.name for each in threading.enumerate() if "memory://ends" in each.name]


def test_exchanges_are_copied() -> None:
    """A codec may work in the arrays it is handed: each rank has its own."""
    seen: list[Any] = []

    def work(job: Communicator) -> None:
        summed = job._sum(CollectivePhase(make_codec("fixed", workers=2).op, np.zeros((1, 1024), np.uint8), 256))  # type: ignore[attr-defined]
        seen.append(summed)

    run_ranks("memory://copies?workers=2", work, 2, codec="fixed")
    assert not np.shares_memory(seen[0].results, seen[1].results)
    assert not np.shares_memory(seen[0].contributors, seen[1].contributors)
