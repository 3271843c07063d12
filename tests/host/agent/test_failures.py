# SPDX-License-Identifier: Apache-2.0
"""The end of an agent: by a deadline, by its codec, by close. Nobody waits for ever, and no vector is lost."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Agent, CommunicatorClosedError
from hopsum.codec import Codec, CodecError, ErrorFeedback, make_codec
from hopsum.errors import AllReduceTimeoutError, GenerationEndedError
from hopsum_wire.membership import MembershipError, format_membership

from ...support.processes import await_that
from .cluster import GENERATION, HASTY, PATIENT, Cluster
from .stage_transport import Stage

pytestmark = pytest.mark.system
WAIT_S = 60
X = np.arange(1, 1001, dtype=np.float32)


def broken_codec(phase: str) -> Codec:
    """Make a codec that fails in one phase."""
    codec = make_codec("fixed", workers=2)

    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError(f"no {phase} today")

    setattr(codec, phase, fail)
    return codec


def test_a_deadline_reaches_the_future_and_everything_behind_it(stack: ExitStack) -> None:
    agent = Cluster(stack, 2).agent(0, "thc", HASTY)
    feedback = ErrorFeedback(X.size)
    first, second = (agent.submit(X, feedback=feedback) for _ in range(2))
    with pytest.raises(AllReduceTimeoutError) as raised:
        first.result(WAIT_S)
    assert f"generation {GENERATION}, rank 0, slot 0, round 1, UPDATE sent" in str(raised.value)
    assert "1 of 1 chunks lack their result" in str(raised.value)
    with pytest.raises(
        GenerationEndedError, match=f"rank 0 is no longer in generation {GENERATION}.*: no result from switch 127"
    ) as over:
        second.result(WAIT_S)
    assert over.value.__cause__ is raised.value
    np.testing.assert_array_equal(feedback.residual, 2 * X)
    with pytest.raises(GenerationEndedError, match="Make a new agent with a membership of a new generation"):
        agent.submit(X)


def test_codes_behind_those_that_are_missing_end_with_them() -> None:
    """No deadline ends them: what this rank cannot send has none."""
    stand = Stage("fixed")
    feedback = [ErrorFeedback(X.size) for _ in range(2)]
    first, second = (stand.submit(X, each, number) for number, each in enumerate(feedback))
    for handle, phases in ((0, 3), (2, 4)):
        stand.transport.wait_for_phases(handle + 1)
        stand.transport.do(handle)
        stand.transport.wait_for_phases(phases)
    stand.transport.void(1, AllReduceTimeoutError("its codes"))
    with pytest.raises(AllReduceTimeoutError, match="its codes"):
        first.future.result(WAIT_S)
    with pytest.raises(GenerationEndedError, match="its codes"):
        second.future.result(WAIT_S)
    for each in feedback:
        np.testing.assert_array_equal(each.residual, X)
    stand.stop()


@pytest.mark.parametrize("phase", ["ranges", "encode", "decode", "dequantize_own"])
def test_a_codec_that_fails_ends_its_rank_and_then_the_others(stack: ExitStack, phase: str) -> None:
    cluster = Cluster(stack, 2)
    broken, sound = cluster.agent(0, broken_codec(phase), HASTY), cluster.agent(1, "fixed", HASTY)
    feedback = [ErrorFeedback(X.size) for _ in range(2)]
    futures = [agent.submit(X, feedback=each) for agent, each in zip((broken, sound), feedback, strict=True)]
    with pytest.raises(ZeroDivisionError, match=f"no {phase} today"):
        futures[0].result(WAIT_S)
    np.testing.assert_array_equal(feedback[0].residual, X)
    with pytest.raises(GenerationEndedError, match=f"no {phase} today"):
        broken.submit(X)
    if phase in ("ranges", "encode"):
        with pytest.raises(
            AllReduceTimeoutError,
            match="this all-reduce with the codec, the options and the vector lengths of the others",
        ):
            futures[1].result(WAIT_S)
        np.testing.assert_array_equal(feedback[1].residual, X)


def test_close_ends_what_is_in_progress(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    agent = cluster.agent(0, "fixed", PATIENT)
    feedback = ErrorFeedback(X.size)
    futures = [agent.submit(X, feedback=feedback) for _ in range(3)]
    await_that(lambda: cluster.links[0].headers)
    agent.close()
    assert not agent._thread.is_alive()
    for future, message in zip(futures, ["in the middle of this", "before this", "before this"], strict=True):
        with pytest.raises(CommunicatorClosedError, match=f"closed {message} all-reduce"):
            future.result(0)
    np.testing.assert_array_equal(feedback.residual, 3 * X)
    with pytest.raises(CommunicatorClosedError, match="agent of rank 0 is closed"):
        agent.submit(X)
    agent.close()


def test_no_such_rank_and_no_such_codec(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    with pytest.raises(MembershipError, match="rank 2 is not in job 'test'"):
        Agent(cluster.membership, 2)
    with pytest.raises(CodecError, match="codec 'zip'"):
        Agent(cluster.membership, 0, codec="zip")


def test_a_program_that_forgets_close_ends(stack: ExitStack, tmp_path: Path) -> None:
    """Also in the middle of an all-reduce; its thread is joined before the interpreter goes down."""
    path = tmp_path / "membership.json"
    path.write_text(format_membership(Cluster(stack, 2).membership))
    program = (
        "import atexit, sys, threading, numpy; from hopsum.agent import Agent\n"
        "atexit.register(lambda: print(threading.active_count(), 'thread'))\n"  # runs last
        "from hopsum.transport.udp_link import UdpLink\n"
        f"agent = Agent({str(path)!r}, 0, codec='fixed', link=UdpLink(('127.0.0.1', 0), ('127.0.0.1', 9)))\n"
        "agent.submit(numpy.ones(9, numpy.float32))\n"
        "assert not {'torch', 'grpc', 'scapy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 thread\n", "")
