# SPDX-License-Identifier: Apache-2.0
"""Tokens of a job are replaced while it runs: nobody loses a place, and the old one can be made worthless."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsum_controlplane.cluster import InvalidRequestError, JobState, UnauthenticatedError, UnknownJobError
from hopsum_ptf.fake_device import FakeDevice

from .world import Cluster, Worker, enter, state_of, switch_config


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path, (switch_config(),), {"s1": FakeDevice()})
    made.start()
    return made


def newcomer(cluster: Cluster, crew: list[Worker], token: str) -> Worker:
    return Worker(cluster, crew[1].job, token, 1, lives=crew[1].lives + 1)


@pytest.mark.parametrize("restart", [False, True])
def test_two_tokens_are_valid_until_the_earlier_one_is_revoked(cluster: Cluster, restart: bool) -> None:
    crew = cluster.run("train")
    old, generation = crew[0].token, crew[0].generation
    new = cluster.controller.rotate_token("train")
    if restart:
        cluster.start()
    assert new != old
    assert [each.beat().generation for each in crew] == [generation] * 2
    assert cluster.controller.knows(old)
    assert cluster.controller.knows(new)
    for token in (old, new):
        assert cluster.controller.locate("train", token).workers == 2
    newcomer(cluster, crew, new).join()  # takes rank 1 over, which ends the generation
    assert crew[0].beat().generation == 0

    cluster.controller.revoke_earlier_token("train")
    if restart:
        cluster.start()
    assert not cluster.controller.knows(old)
    with pytest.raises(UnauthenticatedError, match="wrong token for job 'train'"):
        cluster.controller.locate("train", old)
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        newcomer(cluster, crew, old).join()
    with pytest.raises(InvalidRequestError, match="has no token but the present one"):
        cluster.controller.revoke_earlier_token("train")
    cluster.stop()


def test_who_has_joined_with_a_revoked_token_goes_on_from_generation_to_generation(cluster: Cluster) -> None:
    crew = cluster.run("train")
    new = cluster.controller.rotate_token("train")
    cluster.controller.revoke_earlier_token("train")
    replaced = newcomer(cluster, crew, new)
    replaced.join()
    crew[0].join()  # with its report, and the token that it has
    enter([crew[0], replaced])
    assert state_of(cluster.controller.job("train")) is JobState.RUNNING
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        crew[0].start_again()  # another life is another worker
    cluster.stop()


def test_a_job_that_is_none_has_no_token(cluster: Cluster) -> None:
    for change in (cluster.controller.rotate_token, cluster.controller.revoke_earlier_token):
        with pytest.raises(UnknownJobError):
            change("nobody")
    cluster.run("train")
    cluster.controller.rotate_token("train")
    cluster.controller.delete_job("train")
    cluster.run("train")  # begins without an earlier token
    with pytest.raises(InvalidRequestError):
        cluster.controller.revoke_earlier_token("train")
    cluster.stop()
