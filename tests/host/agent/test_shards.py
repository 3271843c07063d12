# SPDX-License-Identifier: Apache-2.0
"""Agents of a job over several shards: each switch sums its share of every vector, with a protocol of its own."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.agent import Agent
from hopsum.codec import CodecError, ErrorFeedback, job_tables, make_codec
from hopsum.errors import AllReduceTimeoutError, WorkersReplacedError
from hopsum.protocol.worker import Timing
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane.cluster.decision import Report, decide
from hopsum_oracle.aggregator import JobConfig
from hopsum_wire import Op
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership, MembershipError, format_membership, parse_membership

from ...support.processes import await_that
from ...support.server import LOCALHOST
from .cluster import ASKING, EAGER, GENERATION, Cluster
from .test_peers import WORKERS, close_together, with_side_channels

WAIT_S = 90
ELEMENTS = 60_000
NEXT = GENERATION + 1


def vectors(step: int) -> list[NDArray[np.float32]]:
    return [np.random.default_rng((step, rank)).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(WORKERS)]


def clusters(
    stack: ExitStack, shards: int, *, peers: bool = False, quorum: int = 0, codec: str = "fixed"
) -> list[Cluster]:
    tables = job_tables(make_codec(codec, workers=WORKERS, backend="numpy"))
    made = [Cluster(stack, WORKERS, quorum=quorum, seed=shard, tables=tables) for shard in range(shards)]
    return [with_side_channels(each) for each in made] if peers else made


def membership_of(made: list[Cluster]) -> JobMembership:
    first, *further = [each.membership for each in made]
    membership = replace(first, further_shards=tuple(further))
    assert parse_membership(format_membership(membership)) == membership
    return membership


def agents_of(stack: ExitStack, made: list[Cluster], codec: str = "fixed", timing: Timing = EAGER) -> list[Agent]:
    membership = membership_of(made)
    return [
        stack.enter_context(
            Agent(membership, rank, codec=codec, timing=timing, link=[each.links[rank] for each in made])
        )
        for rank in range(WORKERS)
    ]


def summed(agents: list[Agent], steps: int) -> tuple[list[bytes], list[bytes]]:
    """Return the mean of each step, the same on all ranks, and each rank's residual after the last one."""
    feedback = [ErrorFeedback(ELEMENTS) for _ in agents]
    means = []
    for step in range(steps):
        futures = [agent.submit(x, feedback=own) for agent, x, own in zip(agents, vectors(step), feedback, strict=True)]
        (mean,) = {future.result(WAIT_S).mean.tobytes() for future in futures}
        means.append(mean)
    return means, [own.residual.tobytes() for own in feedback]


FORMS = ("thc:result_bits=8", "thc:bits=3", "thc:bits=2")


@pytest.mark.parametrize("codec", ["thc", "fixed", "lossless", *FORMS])
def test_shards_sum_what_one_switch_sums(stack: ExitStack, codec: str) -> None:
    alone = summed(agents_of(stack, clusters(stack, 1, codec=codec), codec), 2)
    for shards in (2, 3):
        assert summed(agents_of(stack, clusters(stack, shards, codec=codec), codec), 2) == alone


def test_shards_with_differing_tables_are_refused_before_anything_is_sent(stack: ExitStack) -> None:
    """By the reader of the membership, and by an agent that was handed one: a shard's sums would be misread."""
    codec, name, other = "thc:bits=2", "table2", (-3, -1, 1, 3, 60, 64, 68)
    made = clusters(stack, 2, codec=codec)
    first = made[0].membership
    second = replace(made[1].membership, tables={name: other})
    differing, told = replace(first, further_shards=(second,)), re.escape(str({name: other}))
    with pytest.raises(MembershipError, match=f"has tables {told} at shard 1 and .* at shard 0"):
        parse_membership(format_membership(differing))
    links = [each.links[0] for each in made]
    with pytest.raises(CodecError, match=f"its {name} at shard 1 is {re.escape(str(other))}, the codec's"):
        Agent(differing, 0, codec=codec, link=links)
    assert not any(link.headers for link in links)


def test_a_shard_without_the_operation_is_told_before_anything_is_sent(stack: ExitStack) -> None:
    codec, op = "thc:bits=2", Op.LOOKUP_ADD_LOOKUP2
    made = clusters(stack, 2, codec=codec)
    made[1].membership = replace(made[1].membership, ops=frozenset(Op) - {op})
    host, port = made[1].switch.address
    with pytest.raises(CodecError, match=rf"sums by {op.name}, and switch {host}:{port} of job 'test' only by"):
        Agent(membership_of(made), 0, codec=codec, link=[each.links[0] for each in made])
    assert not any(each.links[0].headers for each in made)


def test_shards_over_sockets_with_the_compiled_loop(stack: ExitStack) -> None:
    alone = summed(agents_of(stack, clusters(stack, 1)), 3)
    made = clusters(stack, 3)
    membership = membership_of(made)
    agents = []
    for rank in range(WORKERS):
        links = [UdpLink((LOCALHOST, 0), each.switch.address) for each in made]
        for each, link in zip(made, links, strict=True):
            (job,) = each.aggregator.jobs.values()
            workers = [replace(old, udp_port=link.local[1]) if old.rank == rank else old for old in job.workers]
            each.aggregator.remove_job(GENERATION)
            each.aggregator.add_job(replace(job, workers=tuple(workers)))
        agents.append(stack.enter_context(Agent(membership, rank, codec="fixed", timing=EAGER, link=links)))
    assert summed(agents, 3) == alone


def test_who_was_in_each_chunk_is_accounted_for_by_shard(stack: ExitStack) -> None:
    """Shard 0 sums with a quorum of two, shard 1 waits for all three."""
    made = clusters(stack, 2, peers=True, quorum=2)
    made[1] = with_side_channels(Cluster(stack, WORKERS))
    made[1].membership = replace(made[1].membership, quorum=2)  # as the job's; the switch waits for all
    membership = membership_of(made)

    def agent(rank: int) -> Agent:
        links = [each.links[rank] for each in made]
        return stack.enter_context(Agent(membership, rank, codec="fixed", timing=EAGER, link=links))

    agents = [agent(0), agent(1)]
    xs, feedback = vectors(0), [ErrorFeedback(ELEMENTS) for _ in range(WORKERS)]
    futures = [each.submit(x, feedback=own) for each, x, own in zip(agents, xs, feedback, strict=False)]
    agents.append(agent(2))
    futures.append(agents[2].submit(xs[2], feedback=feedback[2]))
    results = [future.result(WAIT_S) for future in futures]
    assert len({result.mean.tobytes() for result in results}) == 1
    contributors = results[0].contributors
    assert all((result.contributors == contributors).all() for result in results)
    assert (contributors[1::2] == 0b111).all()
    assert set(contributors[::2].tolist()) <= {0b011, 0b101, 0b110, 0b111}
    delivered = sum(x.astype(np.float64) - own.residual for x, own in zip(xs, feedback, strict=True))
    inside = np.repeat([bin(int(who)).count("1") for who in contributors], 256)[:ELEMENTS]
    np.testing.assert_allclose(delivered, results[0].mean.astype(np.float64) * inside, atol=1e-3)
    close_together(agents)


def test_a_shard_that_does_not_answer_is_named(stack: ExitStack) -> None:
    made = clusters(stack, 2)
    made[1].switch.stop()
    agents = agents_of(stack, made, timing=ASKING)
    host, port = made[1].switch.address
    for future in [agent.submit(x[:600]) for agent, x in zip(agents, vectors(0), strict=True)]:
        with pytest.raises(AllReduceTimeoutError, match=f"{host}:{port}"):
            future.result(WAIT_S)


def test_shards_have_one_thread_for_their_peers(stack: ExitStack) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("hopsum-peers-") for thread in threading.enumerate())

    before = threads()
    agents = agents_of(stack, clusters(stack, 3, peers=True))
    assert threads() == before + WORKERS
    summed(agents, 2)
    close_together(agents)
    assert threads() == before


def test_links_of_another_number_than_shards_are_refused(stack: ExitStack) -> None:
    made = clusters(stack, 2)
    with pytest.raises(MembershipError, match="1 links for job 'test' of 2 shards"):
        Agent(membership_of(made), 0, codec="fixed", link=made[0].links[0])


# ---- generations ----------------------------------------------------------------------------------------


def silence(cluster: Cluster) -> JobConfig:
    """Take the job off a switch; return it."""
    (job,) = cluster.aggregator.jobs.values()
    cluster.aggregator.remove_job(job.generation)
    return job


def await_share(cluster: Cluster) -> None:
    """Wait until the switch has summed something for rank 0."""
    await_that(lambda: cluster.links[0].statistics.datagrams_received)


def enter_next_generation(made: list[Cluster], agents: list[Agent], job: JobConfig, gone: set[int]) -> Resume:
    """Bring all agents but the gone into the next generation, as a controller decides; return its decision."""
    reports = {}
    for rank, agent in enumerate(agents):
        if rank not in gone:
            sealed, begun = agent.seal()
            reports[rank] = replace(Report.from_sealed(sealed), allreduces_begun=begun)
    resume = decide(reports, gone, slots=agents[0].membership.window, generation=NEXT, before=None)
    assert resume is not None
    assert len(resume.further_shards) == len(made) - 1
    for each in made:
        own = silence(each) if each.aggregator.jobs else job
        each.aggregator.add_job(replace(own, generation=NEXT))
        each.membership = replace(each.membership, generation=NEXT)
    resumes = [replace(resume, further_shards=()), *resume.further_shards]
    for each, own_resume in zip(made, resumes, strict=True):
        each.membership = replace(each.membership, resume=own_resume)
    membership = membership_of(made)
    for rank, agent in enumerate(agents):
        if rank not in gone:
            agent.enter(membership)
    return resume


def half_summed(stack: ExitStack) -> tuple[list[Cluster], JobConfig, list[Agent], list[ErrorFeedback], list[Any]]:
    """Let two shards begin to sum; shard 1 answers nobody, and shard 0 has its share of all workers."""
    made = clusters(stack, 2, peers=True)
    job = silence(made[1])
    agents = agents_of(stack, made)
    feedback = [ErrorFeedback(ELEMENTS) for _ in range(WORKERS)]
    futures = [agent.submit(x, feedback=own) for agent, x, own in zip(agents, vectors(0), feedback, strict=True)]
    await_share(made[0])
    return made, job, agents, feedback, futures


def test_a_shard_that_lost_its_switch_continues_in_the_next_generation(stack: ExitStack) -> None:
    """Shard 0 has summed its share when shard 1 answers for the first time: nothing is summed twice or lost."""
    made, job, agents, feedback, futures = half_summed(stack)
    resume = enter_next_generation(made, agents, job, gone=set())
    assert resume.start is None
    assert resume.further_shards[0].decided == ()
    means = {future.result(WAIT_S).mean.tobytes() for future in futures}
    alone = summed(agents_of(stack, clusters(stack, 1)), 1)
    assert (list(means), [own.residual.tobytes() for own in feedback]) == alone
    close_together(agents)


def test_what_lacks_a_lost_worker_at_one_shard_is_void_on_all_ranks(stack: ExitStack) -> None:
    """Rank 2 is gone. Shard 0 had its part, shard 1 had not: the vector goes back whole."""
    made, job, agents, feedback, futures = half_summed(stack)
    enter_next_generation(made, agents, job, gone={2})
    for rank in (0, 1):
        with pytest.raises(WorkersReplacedError):
            futures[rank].result(WAIT_S)
        np.testing.assert_array_equal(feedback[rank].residual, vectors(0)[rank])
    agents[2].end(WorkersReplacedError("gone", (2,)))
    for rank in (0, 1):
        agents[rank].resume()
    close_together(agents)
