# SPDX-License-Identifier: Apache-2.0
"""An engine whose workers are replaced: what is decided ends well, the rest with WorkersReplacedError, no vector is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hopsum.agent.allreduce_engine import CLOSE, Ended
from hopsum.agent.allreduce_results import CommunicatorClosedError
from hopsum.agent.phase_order import END_GROUP, ResumeCommand
from hopsum.agent.progress import ShardWatch
from hopsum.agent.task import Task
from hopsum.codec import ErrorFeedback, NonFiniteError
from hopsum.errors import GenerationEndedError, RankLeftError, WorkersReplacedError
from hopsum.transport.shard import ShardContinuation
from hopsum_wire.generations import Resume
from hopsum_wire.membership import MembershipError

from ...support.clock import FakeClock
from ...support.processes import await_that
from .stage_transport import WAIT_S, Stage, StageTransport

X = np.linspace(-1, 1, 600, dtype=np.float32)
PEERS = {0: ("127.0.0.1", 1)}
SAME = Resume(0, None, 0, None, (), ())


def new(start: int, generation: int = 71, allreduces: int = 0) -> Resume:
    return Resume(0, start, generation, allreduces, (1,), ())


def resume_command(start: int, allreduces: int, generation: int = 71) -> ResumeCommand:
    error = WorkersReplacedError("the promised one was not submitted", (1,))
    return ResumeCommand({1: generation}, generation, (start,), allreduces, error)


class Stand(Stage):
    def change(self, resume: Resume, generation: int = 71) -> int:
        sealed, begun = self.engine.seal()
        assert sealed.generation == 70
        self.engine.resume(generation, [ShardContinuation(PEERS, resume, None, bytes(32))])
        return begun

    def do(self, *handles: int) -> None:
        """Let exchanges end, once they are in the stream."""
        for handle in handles:
            self.transport.wait_for_phases(handle + 1)
            self.transport.do(handle)


@contextmanager
def opened(codec: str = "fixed", backend: str = "numpy") -> Iterator[Stand]:
    stand = Stand(codec, backend)
    try:
        yield stand
    finally:
        stand.stop()


def mean(task: Task) -> np.ndarray:
    return task.future.result(WAIT_S).mean


def replaced(task: Task) -> bool:
    return isinstance(task.future.exception(WAIT_S), WorkersReplacedError)


def test_what_is_submitted_while_sealed_waits_for_the_next_generation() -> None:
    with opened() as stand:
        first = stand.submit(X, None, 0)
        stand.do(0)
        stand.transport.wait_for_phases(2)
        sealed, begun = stand.engine.seal()
        assert (sealed.submitted_to, begun) == (2, 1)
        second = stand.submit(X, None, 1)
        stand.transport.do(1)
        await_that(lambda: second in stand.engine._order.tasks)
        with stand.transport.changed:
            late = stand.transport.changed.wait_for(lambda: len(stand.transport.stream) > 2, 0.2)
        assert not late, "nothing behind what was reported"
        stand.engine.resume(71, [ShardContinuation(PEERS, SAME, None, bytes(32))])
        stand.do(2, 3)
        np.testing.assert_allclose(mean(first), X, atol=1e-4)
        np.testing.assert_allclose(mean(second), X, atol=1e-4)
        assert not stand.failures


def test_void_exchanges_end_their_all_reduces_and_nothing_else() -> None:
    """Ranges of 0 and 1 are before the newcomers; those of 0 were decided, so its codes come too late."""
    with opened() as stand:
        feedback = [ErrorFeedback(X.size) for _ in range(4)]
        tasks = [stand.submit(X, feedback[number], number, more=number == 0) for number in range(2)]
        stand.transport.wait_for_phases(2)
        assert stand.change(new(2)) == 2
        stand.transport.void(1)
        stand.transport.do(0)
        assert all(replaced(task) for task in tasks)
        late = stand.submit(X, feedback[2], 2)
        assert replaced(late), "until the program continues"
        for each in feedback[:3]:
            np.testing.assert_allclose(each.residual, X, rtol=0, atol=2.0**-22)
        stand.engine.driver.put(resume_command(2, 2))
        again = stand.submit(X, feedback[3], 2)
        stand.do(2, 3)
        np.testing.assert_allclose(mean(again), X, atol=1e-4)
        assert stand.transport.calls[-1] == ("resume_at", 71, 2)
        assert not stand.failures


def test_what_was_decided_ends_well_and_later_ones_wait_for_it() -> None:
    """The program has continued while an older one is still fetched: nothing overtakes it in the stream."""
    with opened() as stand:
        feedback = ErrorFeedback(X.size)
        older = stand.submit(X, feedback, 0)
        stand.transport.wait_for_phases(1)
        stand.change(new(2))
        stand.engine.driver.put(resume_command(2, 1))
        newer = stand.submit(X, feedback, 1)
        stand.transport.do(0)
        stand.transport.wait_for_phases(2)  # its codes have their place before the newcomers
        stand.transport.wait(lambda: stand.transport.calls[-1] == ("resume_at", 71, 2))
        stand.transport.do(1)
        np.testing.assert_allclose(mean(older), X, atol=1e-4)
        stand.do(2, 3)
        np.testing.assert_allclose(mean(newer), X, atol=1e-3)


@pytest.mark.parametrize(("ends", "start"), [("decided before", 2), ("decided after", 1), ("void after", 1)])
def test_a_promise_that_is_not_kept_ends_when_the_program_continues(ends: str, start: int) -> None:
    """Also where the promised exchange ends later."""
    with opened() as stand:
        feedback = ErrorFeedback(X.size)
        alone = stand.submit(X, feedback, 0, more=True)
        stand.transport.wait_for_phases(1)
        stand.change(new(start))
        if ends == "decided before":
            stand.transport.do(0)
        stand.engine.driver.put(resume_command(start, 1))
        with pytest.raises(WorkersReplacedError, match="promised one"):
            alone.future.result(WAIT_S)
        np.testing.assert_allclose(feedback.residual, X, rtol=0, atol=2.0**-22)
        if ends != "decided before":
            stand.transport.do(0) if ends == "decided after" else stand.transport.void(0)
        after = stand.submit(X, None, 1)
        stand.do(1, 2)
        np.testing.assert_allclose(mean(after), X, atol=1e-4)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("previews", [False, True])
def test_newcomers_begin_directly_behind_the_ranges(
    skips: bool, previews: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the ranges say is the same on all ranks, also where codes were refused before the ranges were here."""
    pytest.importorskip("numba")
    monkeypatch.setattr(StageTransport, "has_loop", previews)
    with opened("thc", "numba") as stand:
        feedback = ErrorFeedback(X.size)
        task = stand.submit(X + np.float32(np.inf if skips else 0), feedback, 0, more=True)
        stand.transport.wait_for_phases(1)
        stand.change(new(1))
        stand.engine.driver.put(END_GROUP)
        await_that(lambda: task.future.done() or task.fully_submitted == previews)
        stand.transport.do(0)
        if skips:
            with pytest.raises(NonFiniteError):
                task.future.result(WAIT_S)
        else:
            assert replaced(task)
        np.testing.assert_allclose(feedback.residual, X * (not skips), rtol=0, atol=2.0**-22)
        stand.engine.driver.put(resume_command(1, 1))
        after = stand.submit(X, None, 1)
        stand.do(1, 2)
        assert mean(after).size
        assert not stand.failures


@pytest.mark.parametrize("previews", [False, True])
def test_a_refused_follower_is_not_sent_again(previews: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers begin directly behind the ranges of the first vector of a group."""
    pytest.importorskip("numba")
    monkeypatch.setattr(StageTransport, "has_loop", previews)
    with opened("thc", "numba") as stand:
        feedback = [ErrorFeedback(X.size) for _ in range(2)]
        first = stand.submit(X, feedback[0], 0, more=True)
        stand.transport.wait_for_phases(1)
        stand.change(new(1))
        assert replaced(stand.submit(X, feedback[1], 1))
        stand.transport.do(0)
        assert replaced(first)
        for each in feedback:
            np.testing.assert_allclose(each.residual, X, rtol=0, atol=2.0**-22)
        assert not stand.failures


@pytest.mark.parametrize("previews", [False, True])
def test_zeros_that_another_rank_does_not_send_fail_nothing(previews: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks skipped the last all-reduce of their programs, and a rank has closed since."""
    pytest.importorskip("numba")
    monkeypatch.setattr(StageTransport, "has_loop", previews)
    with opened("thc", "numba") as stand:
        task = stand.submit(X * np.float32(np.nan), None, 0)
        stand.do(0)
        with pytest.raises(NonFiniteError):
            task.future.result(WAIT_S)
        stand.transport.wait_for_phases(2)
        stand.transport.void(1, RankLeftError("rank 1 has closed", (1,)))
        await_that(lambda: not stand.engine._in_flight.handles and not stand.engine._order.tasks)
        assert not stand.failures
        assert not stand.engine._record.sent_at


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("void", [False, True])
def test_codes_that_end_before_their_ranges(skips: bool, void: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quorum, or where newcomers begin: what the ranges say is the same on all ranks."""
    pytest.importorskip("numba")
    monkeypatch.setattr(StageTransport, "has_loop", True)
    with opened("thc", "numba") as stand:
        task = stand.submit(X * np.float32(np.nan if skips else 1), None, 0)
        stand.transport.wait_for_phases(2)
        stand.transport.void(1) if void else stand.transport.do(1)
        await_that(lambda: len(stand.engine._in_flight.handles) == 1)
        assert not task.future.done()
        stand.transport.do(0)
        if skips:
            with pytest.raises(NonFiniteError):
                task.future.result(WAIT_S)
        else:
            assert replaced(task) if void else mean(task).size
        assert not stand.failures


def test_numbers_continue_at_the_agreed_one() -> None:
    with opened() as stand:
        stand.transport.limit = 0
        assert replaced(stand.submit(X, None, 0))
        stand.engine.driver.put(resume_command(5, 9))
        stand.transport.wait(lambda: stand.transport.calls[-1:] == [("resume_at", 71, 5)])
        _, begun = stand.engine.seal()
        assert begun == 9


def test_an_engine_that_ends_while_sealed_ends_everything() -> None:
    with opened() as stand:
        feedback = ErrorFeedback(X.size)
        sent, kept = stand.submit(X, feedback, 0), stand.submit(X, None, 1)
        stand.transport.wait_for_phases(1)
        stand.engine.seal()
        stand.engine.driver.put(Ended(MembershipError("ranks 1 have not joined")))
        for task in (sent, kept):
            with pytest.raises(MembershipError, match="ranks 1 have not joined"):
                task.future.result(WAIT_S)
        np.testing.assert_allclose(feedback.residual, X, rtol=0, atol=2.0**-22)


@pytest.mark.parametrize("failed", [False, True])
def test_what_waits_behind_a_resume_command_ends_with_the_engine(failed: bool) -> None:
    with opened() as stand:
        stand.submit(X, None, 0)
        stand.transport.wait_for_phases(1)
        stand.change(new(2))
        stand.engine.driver.put(resume_command(2, 1))
        behind = stand.submit(X, None, 1)
        stand.engine.driver.put(resume_command(3, 2, generation=72))
        further = stand.submit(X, None, 2)
        stand.engine.driver.put(Ended(GenerationEndedError("given up")) if failed else CLOSE)
        for task in (behind, further):
            with pytest.raises(GenerationEndedError if failed else CommunicatorClosedError):
                task.future.result(WAIT_S)


def test_silence_lasts_until_something_comes() -> None:
    clock, transport = FakeClock(), StageTransport()
    silence, counts = ShardWatch(transport, clock=clock), transport.counts
    clock.now_s += 5
    assert not silence.check(), "nothing was sent twice: a wait for a slow rank is not in the dark"
    counts.worker.retransmits += 1
    assert silence.check()
    counts.link.datagrams_received += 1
    assert not silence.check()
    counts.worker.retransmits += 1
    clock.now_s += 0.9
    assert not silence.check()
    clock.now_s += 0.2
    assert silence.check()


def test_silence_is_told() -> None:
    with opened() as stand:
        stand.submit(X, None, 0)
        stand.transport.wait_for_phases(1)
        stand.transport.counts.worker.retransmits += 1
        stand.transport.wait(lambda: stand.silences > 0)
