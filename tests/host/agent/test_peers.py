# SPDX-License-Identifier: Apache-2.0
"""Agents with side channels: what the switch no longer has comes from a peer, and is treated like any other result."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.agent import Agent, CommunicatorClosedError
from hopsum.codec import CODECS, ErrorFeedback, ReductionContext, job_tables, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum.errors import RankLeftError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import Timing
from hopsum.transport.side_proof import GenerationKey, make_hello
from hopsum_topologies.free_port import free_port
from hopsum_wire import Op
from hopsum_wire.generations import Resume
from hopsum_wire.membership import MembershipError

from ...support.server import LOCALHOST
from .cluster import EAGER, GENERATION, Cluster

WAIT_S = 90
WORKERS = 3
ELEMENTS = 60_000  # of codec fixed: 235 chunks, some 30 rounds of each of the 8 slots


def with_side_channels(cluster: Cluster) -> Cluster:
    """Give every worker of a cluster a TCP port that is free now."""
    workers = tuple(replace(seat, side_port=free_port()) for seat in cluster.membership.workers)
    cluster.membership = replace(cluster.membership, workers=workers, side_key=bytes(range(32)))
    return cluster


def close_together(agents: list[Agent]) -> None:
    """Close agents as ranks do: each serves the others until they need nothing more."""
    with ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(Agent.close, agents))


def vectors(step: int) -> list[NDArray[np.float32]]:
    return [np.random.default_rng((step, rank)).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(WORKERS)]


def late(cluster: Cluster, timing: Timing = EAGER) -> tuple[list[Agent], list[NDArray[np.float32]]]:
    """Let ranks 0 and 1 sum without rank 2, which then begins; return all agents, and the means of the two."""
    agents = [cluster.agent(rank, "fixed", timing) for rank in (0, 1)]
    futures = [agent.submit(x) for agent, x in zip(agents, vectors(0), strict=False)]
    means = [future.result(WAIT_S).mean for future in futures]
    return [*agents, cluster.agent(2, "fixed", timing)], means


def test_a_worker_that_comes_late_gets_all_of_it_from_its_peers(stack: ExitStack) -> None:
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    agents, means = late(cluster)
    feedback = ErrorFeedback(ELEMENTS)
    result = agents[2].submit(vectors(0)[2], feedback=feedback).result(WAIT_S)
    assert {mean.tobytes() for mean in means} == {result.mean.tobytes()}
    assert (result.contributors == 0b011).all()
    np.testing.assert_array_equal(feedback.residual, vectors(0)[2])
    assert agents[2].statistics.fetches >= agents[2].statistics.repaired > 100
    close_together(agents)


def test_ranks_that_run_more_all_reduces_than_another_hear_that_it_has_left(stack: ExitStack) -> None:
    """Rank 2 has fewer batches, and closes. The others fail long before their deadline, and say who is missing."""
    cluster = with_side_channels(Cluster(stack, WORKERS))
    agents = [cluster.agent(rank, "fixed", replace(EAGER, deadline_s=2 * WAIT_S)) for rank in range(WORKERS)]
    for future in [agent.submit(x) for agent, x in zip(agents, vectors(0), strict=True)]:
        future.result(WAIT_S)
    pending = [agent.submit(x) for agent, x in zip(agents[:2], vectors(1), strict=False)]
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(agents[2].close)
        for rank, future in enumerate(pending):
            with pytest.raises(RankLeftError, match=f"rank {rank} waits for rank 2, which has finished") as caught:
                future.result(WAIT_S)
            assert caught.value.ranks == (2,)
        close_together(agents[:2])
        closing.result(WAIT_S)


def test_a_side_channel_that_is_taken_is_named(stack: ExitStack) -> None:
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    taken = cluster.membership.worker(1).side_port
    stack.enter_context(socket.create_server((LOCALHOST, taken)))
    with pytest.raises(OSError, match=rf"no side channel of rank 1 of job 'test' at TCP 127.0.0.1:{taken}: .*in use"):
        cluster.agent(1, "fixed")


def test_a_socket_that_listens_already_is_used(stack: ExitStack) -> None:
    cluster = Cluster(stack, WORKERS, quorum=2)
    listening = [socket.create_server((LOCALHOST, 0)) for _ in range(WORKERS)]
    seats = zip(cluster.membership.workers, listening, strict=True)
    workers = tuple(replace(seat, side_port=each.getsockname()[1], side_ip=LOCALHOST) for seat, each in seats)
    membership = replace(cluster.membership, workers=workers, side_key=bytes(32))
    agents = [
        stack.enter_context(Agent(membership, rank, codec="fixed", timing=EAGER, link=cluster.links[rank], side=side))
        for rank, side in enumerate(listening)
    ]
    futures = [agent.submit(x) for agent, x in zip(agents, vectors(0), strict=True)]
    assert len({future.result(WAIT_S).mean.tobytes() for future in futures}) == 1
    close_together(agents)
    assert all(each.fileno() == -1 for each in listening)


def newcomer(stack: ExitStack) -> Agent:
    """Return the agent of a rank that is new in a job that continues; nobody else is there."""
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    cluster.membership = replace(cluster.membership, resume=Resume(0, 0, GENERATION, 3, (2,), ()))
    return cluster.agent(2, "fixed")


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (lambda agent: agent.end(MembershipError("the job was deleted")), MembershipError, "the job was deleted"),
        (Agent.close, CommunicatorClosedError, "agent of rank 2 is closed"),
    ],
)
def test_who_waits_for_a_state_hears_that_its_agent_has_ended(
    stack: ExitStack, end: Callable[[Agent], None], error: type[Exception], message: str
) -> None:
    agent = newcomer(stack)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.fetch_state, 10 * WAIT_S)
        while not agent._transport.shards[0]._states._fetch:  # type: ignore[attr-defined]  # it asks
            assert not waiting.done()
        end(agent)
        with pytest.raises(error, match=message):
            waiting.result(WAIT_S)
    with pytest.raises(error, match=message):
        agent.fetch_state(10 * WAIT_S)


def test_a_worker_that_sent_nothing_has_nobody_wait_for_it(stack: ExitStack) -> None:
    """Nobody is there to be served, and it has nothing: it does not linger for an hour."""
    agent = with_side_channels(Cluster(stack, WORKERS, quorum=2)).agent(0, "fixed")
    agent._transport.shards[0]._linger_s = 3600.0  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(agent.close).result(WAIT_S)


@pytest.mark.parametrize("name", sorted({*CODECS} - {"two-shot"}))
def test_two_allreduces_are_kept_whatever_exchanges_and_size_they_have(stack: ExitStack, name: str) -> None:
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    codec = make_codec(name, workers=WORKERS, backend="numpy")
    cluster.membership = replace(cluster.membership, tables=job_tables(codec))
    repair = cluster.agent(0, codec)._transport.shards[0].worker.repair
    reduction, phases = codec.start(vectors(0)[0], ReductionContext(0, 0, 0)), 0
    while (phase := reduction.phase) is not None:
        payloads = [phase.payloads] * WORKERS
        reduction.on_results(*simulate_switch(phase.op, payloads, codec.lookup, None))
        phases += 1
    assert repair.policy.unproved_least == 2 * (phases + 1)  # the first one is in two parts


def test_side_channels_without_a_key_are_refused(stack: ExitStack) -> None:
    """An older hopsum wrote such a file: nobody could tell a peer from a stranger."""
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    cluster.membership = replace(cluster.membership, side_key=None)
    with pytest.raises(MembershipError, match="has side channels and no side_key"):
        cluster.agent(0, "fixed")


def test_a_forged_message_is_counted_and_harms_nothing(stack: ExitStack) -> None:
    """Somebody who knows all but the key says FOUND in a peer's name: sums are right, and the statistics say so."""
    cluster = with_side_channels(Cluster(stack, WORKERS, quorum=2))
    agents = cluster.agents("fixed")
    sides = cluster.membership.side_channels
    assert sides is not None
    found = PeerMessage(PeerKind.FOUND, 1, GENERATION, 0, 1, Op.ADD32, 0b11, b"\xff" * 1024).pack()
    framed = len(found).to_bytes(4, "big") + found
    hello = make_hello(1, 0, GenerationKey(GENERATION, bytes(32)))
    for said in (framed, hello + framed + bytes(16)):
        with socket.create_connection(sides[0], timeout=WAIT_S) as intruder, suppress(OSError):
            intruder.sendall(said)
            while intruder.recv(100):
                pass
    futures = [agent.submit(x) for agent, x in zip(agents, vectors(0), strict=True)]
    assert len({future.result(WAIT_S).mean.tobytes() for future in futures}) == 1
    assert agents[0].statistics.peers_refused == {"hello": 1, "forged": 1}
    close_together(agents)
