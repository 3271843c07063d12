# SPDX-License-Identifier: Apache-2.0
"""Leaders and members of two hosts, each rank a thread, over an in-process job of two workers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hopsum
from hopsum.agent import Communicator, CommunicatorClosedError, MismatchError
from hopsum.codec import ErrorFeedback, NonFiniteError, make_codec
from hopsum.errors import AllReduceTimeoutError, GenerationEndedError, HopsumError, RankLeftError
from hopsum.local_group.group_leader import LocalGroupLeader
from hopsum.local_group.group_member import LocalGroupMember
from hopsum.local_group.host_ranks import LocalGroup
from hopsum.local_group.member_messages import Connection

from ..api.ranks import sum_without_some

HOSTS = ((0, 2), (1, 3, 4))
"""Two hosts of different sizes, whose ranks do not follow each other."""
RANKS = sum(map(len, HOSTS))
WAIT_S = 60.0
_numbers = count()


def connect_pair() -> tuple[Connection, Connection]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Connection(one), Connection(other)


@contextmanager
def all_ranks(
    hosts: tuple[tuple[int, ...], ...] = HOSTS, deadline_s: float = WAIT_S, **settings: Any
) -> Iterator[dict[int, Communicator]]:
    """Open every rank's communicator."""
    url, opened = f"memory://local{next(_numbers)}?workers={len(hosts)}", {}
    told = {"codec": "thc", "backend": "numpy", "deadline_s": WAIT_S, **settings}
    with ExitStack() as kept:
        for host, ranks in enumerate(hosts):
            job = hopsum.connect(url, rank=host, **told)
            pairs = {rank: connect_pair() for rank in ranks[1:]}
            ends = {rank: pair[0] for rank, pair in pairs.items()}
            leader = LocalGroupLeader(job, LocalGroup(hosts, ranks[0]), ends, deadline_s=deadline_s)
            opened[ranks[0]] = kept.enter_context(leader)
            for rank, (_, end) in pairs.items():
                group = LocalGroup(hosts, rank)
                member = LocalGroupMember(job.codec, group, end, deadline_s=deadline_s, is_newcomer=False)
                opened[rank] = kept.enter_context(member)
        yield opened


def on_all(opened: dict[int, Communicator], act: Callable[[int, Communicator], Any]) -> dict[int, Any]:
    """Let all ranks act at the same time; return what they return, or fail with."""

    def guarded(rank: int) -> Any:
        try:
            return act(rank, opened[rank])
        except HopsumError as error:
            return error

    with ThreadPoolExecutor(len(opened)) as pool:
        return dict(zip(opened, pool.map(guarded, opened), strict=True))


def vector(rank: int, elements: int, step: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([rank, elements, step]).standard_normal(elements, np.float32)


def true_mean(elements: int, step: int = 0, ranks: int = RANKS) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.mean([vector(rank, elements, step).astype(float) for rank in range(ranks)], axis=0)
    return mean


def test_all_ranks_have_the_same_mean_of_all_ranks() -> None:
    sizes = (3000, 5000, 100, 3000)

    def act(rank: int, comm: Communicator) -> list[NDArray[np.float32]]:
        assert (comm.rank, comm.workers) == (rank, RANKS)
        with comm.group():
            futures = [comm.submit(vector(rank, size, step)) for step, size in enumerate(sizes)]
        grouped = [future.result(WAIT_S).mean for future in futures]
        again = vector(rank, 5000)
        result = comm.allreduce(again, out=again)
        assert result.mean is again
        return [*grouped, again]

    with all_ranks(codec="fixed") as opened:
        found = on_all(opened, act)
        statistics = {rank: comm.statistics for rank, comm in opened.items()}
    for number, (size, step) in enumerate([*zip(sizes, range(4), strict=True), (5000, 0)]):
        means = [found[rank][number] for rank in range(RANKS)]
        assert all(mean.tobytes() == means[0].tobytes() for mean in means)
        # `fixed` rounds each host's sum in a range of at most 3 * 6 to 2^-23 of that range or finer
        np.testing.assert_allclose(means[0], true_mean(size, step), atol=1e-4)
    for rank, counted in statistics.items():
        host = next(ranks for ranks in HOSTS if rank in ranks)
        assert (counted.allreduces, counted.elements, counted.local_ranks) == (5, sum(sizes) + 5000, len(host))
        assert bool(counted.traffic.bytes_sent) is (rank == host[0]), "only leaders speak to the switch"


@pytest.mark.parametrize(("rank", "step"), [(1, "_on_readable"), (3, "_begin_all")])
def test_what_fails_in_a_ranks_thread_ends_its_group(rank: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no memory")

    with all_ranks() as opened:
        monkeypatch.setattr(opened[rank], step, fail)
        found = on_all({each: opened[each] for each in HOSTS[1]}, lambda rank, comm: comm.allreduce(vector(rank, 100)))
    assert all(isinstance(each, HopsumError) for each in found.values())
    # A rank that begins after the group has ended has the reason in the middle.
    assert " cannot hand its vector over: OSError: no memory" in str(found[rank])


def test_books_balance_also_where_members_bring_residuals() -> None:
    elements, steps = 2500, 4
    brought = {rank: vector(100 + rank, elements) for rank in range(RANKS)}

    def act(rank: int, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        feedback, paid = ErrorFeedback(elements), np.zeros(elements)
        feedback.residual[:] = brought[rank]
        for step in range(steps):
            paid += comm.allreduce(vector(rank, elements, step), feedback=feedback).mean
        return paid, feedback.residual

    with all_ranks(codec="thc:result_bits=8") as opened:
        found = on_all(opened, act)
    owed = sum(true_mean(elements, step) for step in range(steps)) + np.mean(list(brought.values()), axis=0)
    left = np.mean([residual for _, residual in found.values()], axis=0)
    np.testing.assert_allclose(found[0][0] + left, owed, atol=1e-4)
    assert np.abs(left).max() > 0.01, "there is no residual: the test proves nothing"
    for host in HOSTS:
        assert found[host[0]][1].any()
        assert not any(found[rank][1].any() for rank in host[1:])


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_a_nan_of_one_member_concerns_all_and_the_next_follows(on_nonfinite: Any) -> None:
    def act(rank: int, comm: Communicator) -> tuple[Any, NDArray[np.float32]]:
        feedback = ErrorFeedback(2000)
        feedback.residual[:] = rank
        x = vector(rank, 2000)
        if rank == 4:
            x[7] = np.nan
        before = feedback.residual.copy()
        try:
            outcome: Any = comm.allreduce(x, feedback=feedback, tensors=[("w", 2000)], on_nonfinite=on_nonfinite)
        except NonFiniteError as error:
            outcome = error
        assert feedback.residual.tobytes() == before.tobytes()
        return outcome, comm.allreduce(vector(rank, 2000), feedback=feedback).mean

    with all_ranks() as opened:
        found = on_all(opened, act)
    for rank in range(RANKS):
        outcome, mean = found[rank]
        assert mean.tobytes() == found[0][1].tobytes()
        if on_nonfinite == "skip":
            assert outcome.skipped
            assert np.isnan(outcome.mean).all()
        elif rank == 4:
            assert "rank 4: 1 of 2000 elements are NaN or infinite" in str(outcome)
            assert "w: 1 of 2000" in str(outcome)
        else:
            assert f"another rank's vector is not finite, or out of range; rank {rank}'s is" in str(outcome)


def test_contributors_that_differ_from_chunk_to_chunk_are_told_to_members(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = 40_000
    monkeypatch.setattr("hopsum.codec.simulate.simulate_switch", sum_without_some)
    with all_ranks(codec="fixed") as opened:
        found = on_all(opened, lambda rank, comm: comm.allreduce(vector(rank, elements)))
    assert set(found[0].contributors.tolist()) == {0b01, 0b10, 0b11}
    for rank in range(RANKS):
        assert found[rank].contributors.tolist() == found[0].contributors.tolist()
        assert found[rank].mean.tobytes() == found[0].mean.tobytes()
    sums = [np.sum([vector(rank, elements) for rank in ranks], axis=0, dtype=float) for ranks in HOSTS]
    inside = [(found[0].contributors >> np.uint64(host) & np.uint64(1)).repeat(256)[:elements] for host in range(2)]
    # A host that is missing counts as if its sum were that of the other one.
    expected = (inside[0] * sums[0] + inside[1] * sums[1]) / (inside[0] + inside[1]) * len(HOSTS) / RANKS
    np.testing.assert_allclose(found[0].mean, expected, atol=1e-4)


def test_ranks_of_a_host_at_different_all_reduces() -> None:
    with all_ranks() as opened:
        found = on_all(opened, lambda rank, comm: comm.allreduce(vector(rank, 900 if rank == 3 else 1000)))
    for rank in (1, 3, 4):
        assert isinstance(found[rank], MismatchError)
        assert "not at the same all-reduce: rank 1 has all-reduce 0 of 1000 elements" in str(found[rank])
        assert "rank 3 has all-reduce 0 of 900 elements" in str(found[rank])
    for rank in (0, 2):
        assert isinstance(found[rank], HopsumError), "the other host must not wait"


def test_a_member_that_leaves_takes_its_host_out_of_the_job() -> None:
    others_wait = threading.Barrier(RANKS)

    def act(rank: int, comm: Communicator) -> Any:
        if rank == 3:
            others_wait.wait(WAIT_S)
            with pytest.raises(OSError, match="disk"), comm:
                raise OSError("the disk is full")
            return None
        waiting = comm.submit(vector(rank, 1000))
        others_wait.wait(WAIT_S)
        return waiting.result(WAIT_S)

    with all_ranks() as opened:
        found = on_all(opened, act)
        with pytest.raises(GenerationEndedError, match="waits for the vector of rank 3"):
            opened[1].allreduce(vector(1, 1000))
    for rank in (1, 4):
        assert isinstance(found[rank], RankLeftError)
        assert found[rank].ranks == (3,)
        assert "rank 3 of its host, which has left (OSError: the disk is full)" in str(found[rank])
    for rank in (0, 2):
        assert isinstance(found[rank], HopsumError)


def test_a_leader_that_leaves_takes_its_members_along() -> None:
    hosts, residuals = ((0,), (1, 2)), ErrorFeedback(1000)
    with all_ranks(hosts) as opened:
        waiting = opened[2].submit(vector(2, 1000), feedback=residuals)
        opened[1].close()
        assert isinstance(waiting.exception(WAIT_S), CommunicatorClosedError)
        with pytest.raises(GenerationEndedError, match="rank 2, whose host's leader is rank 1, takes no more"):
            opened[2].submit(vector(2, 1000))
    np.testing.assert_array_equal(residuals.residual, vector(2, 1000))


def test_a_connection_that_ends_is_a_leader_that_has_died() -> None:
    mine, its = connect_pair()
    codec = make_codec("fixed", workers=2, backend="numpy")
    group = LocalGroup(((0, 1), (2, 3)), 3)
    with LocalGroupMember(codec, group, mine, deadline_s=WAIT_S, is_newcomer=False) as member:
        waiting = member.submit(vector(3, 10))
        its.close()
        error = waiting.exception(WAIT_S)
    assert isinstance(error, RankLeftError)
    assert error.ranks == (2,)
    assert "rank 2, which takes part in the job for this host, has ended" in str(error)


def test_a_rank_that_does_not_come_is_named_at_the_deadline() -> None:
    with all_ranks(((0, 1),), deadline_s=0.3) as opened:
        with pytest.raises(AllReduceTimeoutError, match=r"rank 0 has waited 0.3 s for the vectors of rank 1 ") as late:
            opened[0].allreduce(vector(0, 10))
        assert late.value.missing_ranks == (1,)
    with (
        all_ranks(((0, 1),), deadline_s=0.3) as opened,
        pytest.raises(AllReduceTimeoutError, match="rank 0, or another rank of this host, does not run it"),
    ):
        opened[1].allreduce(vector(1, 10))


def test_an_error_of_the_job_says_which_ranks_its_workers_are() -> None:
    with all_ranks(((0, 1), (2, 3)), deadline_s=WAIT_S) as opened:
        waiting = {rank: opened[rank].submit(vector(rank, 1000)) for rank in (0, 1)}
        opened[2].close()
        errors = {rank: future.exception(WAIT_S) for rank, future in waiting.items()}
    assert type(errors[0]) is type(errors[1])
    assert isinstance(errors[0], HopsumError)
    assert str(errors[0]) == str(errors[1])
    assert "with local_group a worker of the job is a host" in str(errors[0])


class NewcomerJob(Communicator):
    """A job that continues, whose state is some bytes."""

    def __init__(self) -> None:
        super().__init__("job", rank=0, codec=make_codec("fixed", workers=1, backend="numpy"), thread="job")
        self._end, self.comes, self.fails = threading.Event(), threading.Event(), False
        self.comes.set()
        self._thread.start()

    is_newcomer = True  # type: ignore[assignment]
    statistics = None  # type: ignore[assignment]

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = 0) -> bytes:
        assert self.comes.wait(WAIT_S)
        if self.fails:
            raise HopsumError("nothing more came")
        return b"state" * 100_000

    def _serve(self) -> None:
        self._end.wait()

    def _stop(self) -> None:
        self._end.set()

    def _queue_task(self, task: Any) -> None: ...
    def _queue_end_of_group(self) -> None: ...
    def _why_over(self) -> None: ...


def test_members_of_a_newcomer_have_its_state() -> None:
    mine, its = connect_pair()
    group, job = LocalGroup(((0, 1),), 0), NewcomerJob()
    with (
        LocalGroupLeader(job, group, {1: mine}, deadline_s=WAIT_S) as leader,
        LocalGroupMember(job.codec, LocalGroup(((0, 1),), 1), its, deadline_s=WAIT_S, is_newcomer=True) as member,
    ):
        assert leader.is_newcomer
        assert leader.fetch_state() == member.fetch_state(WAIT_S) == b"state" * 100_000
        with pytest.raises(HopsumError, match="a state of 500000 bytes, and bytes_max is 10"):
            member.fetch_state(WAIT_S, bytes_max=10)


def test_a_member_waits_for_as_long_as_its_leader_fetches_and_has_its_error() -> None:
    mine, its = connect_pair()
    group, job = LocalGroup(((0, 1),), 0), NewcomerJob()
    with (
        LocalGroupLeader(job, group, {1: mine}, deadline_s=WAIT_S) as leader,
        LocalGroupMember(job.codec, LocalGroup(((0, 1),), 1), its, deadline_s=WAIT_S, is_newcomer=True) as member,
        ThreadPoolExecutor(2) as pool,
    ):
        job.comes.clear()
        for fails in (True, False):
            job.fails = fails
            first = pool.submit(leader.fetch_state)
            assert member._is_fetching.wait(WAIT_S)
            second = pool.submit(member.fetch_state, 0.05)
            with pytest.raises(TimeoutError):
                second.result(0.2)  # no longer than its own wait
            job.comes.set()
            if fails:
                for each in (first, second):
                    with pytest.raises(HopsumError, match="nothing more came"):
                        each.result(WAIT_S)
            else:
                assert first.result(WAIT_S) == second.result(WAIT_S) == b"state" * 100_000
            job.comes.clear()
