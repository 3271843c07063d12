# SPDX-License-Identifier: Apache-2.0
"""The order of sums where several states share a communicator: the same on all ranks, whatever their timing."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.torch import DiLoCo

from ..agent.cluster import EAGER, Cluster
from .low_rank_world import Books, ScriptedNetwork, World, require_same
from .test_diloco import make_model

torch.set_num_threads(1)
WAIT_S = 60.0
ROUNDING = 2e-5
SCHEDULES = {
    "one after the other": "AAABBB",
    "in turns": "ABABAB",
    "one inside the other": "ABBBAA",
    "begun before": "BAAABB",
}
"""The buckets of two models in one backward pass, three each, in the order in which they are ready."""


def two_models(stack: ExitStack, network: ScriptedNetwork, **options: Any) -> dict[str, World]:
    """Return two models of each rank, on one communicator."""
    communicators: Any = network.communicators
    ranks = len(communicators)
    second = {"low_rank": 2} | options
    return {
        "A": World(stack, ranks, communicators=communicators, low_rank=1),
        "B": World(stack, ranks, communicators=communicators, **second),
    }


def wait_for(network: ScriptedNetwork, futures: Sequence[Any], rng: random.Random) -> None:
    """Release results at random until all futures are done."""
    deadline = time.monotonic() + WAIT_S
    while not all(each.done() for each in futures):
        assert time.monotonic() < deadline
        network.release(rng.randrange(len(network.communicators)), 1)


def backward(network: ScriptedNetwork, worlds: dict[str, World], schedule: str, seed: int) -> None:
    """Run a backward pass on all ranks. Rank 0 has results at once, the others at random times, some of them late."""
    rng = random.Random(seed)
    gradients = {name: each.draw(seed) for name, each in worlds.items()}
    ranks = len(network.communicators)
    futures: list[dict[str, list[Any]]] = [{name: [] for name in worlds} for _ in range(ranks)]
    for name in schedule:
        for rank in range(ranks):
            here = futures[rank][name]
            here += worlds[name].begin(rank, gradients[name][rank], only=[len(here)])
        for _ in range(4):
            while network.release(0):
                time.sleep(0.002)  # rank 0's own threads submit what follows
            network.release(rng.randrange(1, ranks), rng.randint(0, 1))

    wait_for(network, [future for each in futures for some in each.values() for future in some], rng)
    for name, world in worlds.items():
        means = [world.end(each[name]) for each in futures]
        for each in means[1:]:
            require_same(means[0], each)


@pytest.mark.parametrize("options", [{}, {"low_rank": None}], ids=["both of low rank", "one of low rank"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_two_models_in_one_backward_pass(stack: ExitStack, schedule: str, options: dict[str, Any]) -> None:
    network = ScriptedNetwork(3)
    network.lazy = {0, 1, 2}
    worlds = two_models(stack, network, **options)
    for step in range(3):
        backward(network, worlds, schedule, step)
    logs = [each.log for each in network.communicators]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_two_models_over_agents(stack: ExitStack, schedule: str) -> None:
    """The last vector of a group waits for the next one: no group of one model may keep the other's factors."""
    cluster = Cluster(stack, 2)
    agents: Any = [cluster.agent(rank, "fixed", EAGER) for rank in range(2)]
    worlds = {name: World(stack, 2, communicators=agents, low_rank=rank) for name, rank in (("A", 1), ("B", 2))}
    books = {name: Books(each) for name, each in worlds.items()}
    for step in range(2):
        gradients = {name: each.draw(step) for name, each in worlds.items()}
        futures: list[dict[str, list[Any]]] = [{"A": [], "B": []} for _ in agents]
        for name in schedule:
            for rank, each in enumerate(futures):
                each[name] += worlds[name].begin(rank, gradients[name][rank], only=[len(each[name])])
        for name, world in worlds.items():
            means = [world.end(each[name]) for each in futures]
            require_same(*means)
            books[name].note(gradients[name], means[0])
    for each in books.values():
        assert each.out() < ROUNDING


def test_a_model_whose_backward_pass_was_given_up(stack: ExitStack) -> None:
    """Its group stays open until its next step. The other model has its means meanwhile."""
    cluster = Cluster(stack, 2)
    agents: Any = [cluster.agent(rank, "fixed", EAGER) for rank in range(2)]
    worlds = [World(stack, 2, communicators=agents, buckets=[["2.weight"], ["0.weight"]]) for _ in range(2)]
    for rank, each in enumerate(worlds[0].draw(0)):
        worlds[0].begin(rank, each, only=[0])
    worlds[1].step(worlds[1].draw(1))
    worlds[0].step(worlds[0].draw(2))
    require_same(*worlds[0].factors())


# ---- DiLoCo --------------------------------------------------------------------------------------------------


def send(replicas: Sequence[tuple[torch.nn.Module, DiLoCo]]) -> None:
    """Change the parameters of each replica and send them. The mean is due at the next step."""
    for rank, (model, diloco) in enumerate(replicas):
        with torch.no_grad():
            for number, each in enumerate(model.parameters()):
                each += torch.randn(each.shape, generator=torch.Generator().manual_seed(100 * rank + number))
        for _ in range(2):
            diloco.step()


@pytest.mark.parametrize("again", ["made anew", "loaded"])
def test_a_diloco_that_is_given_up_with_a_fragment_in_flight(stack: ExitStack, again: str) -> None:
    """Rank 0 has submitted its second factor by then, rank 1 has not."""
    network = ScriptedNetwork(2)
    network.lazy = {0, 1}
    communicators: list[Any] = list(network.communicators)

    def make() -> list[tuple[torch.nn.Module, DiLoCo]]:
        options: dict[str, Any] = {"fragment_sync_delay": 1, "low_rank": 2, "low_rank_start": 0}
        models = [make_model() for _ in communicators]
        return [
            (model, DiLoCo(model, comm, sync_every=2, **options))
            for model, comm in zip(models, communicators, strict=True)
        ]

    replicas = make()
    fresh = [diloco.state_dict() for _, diloco in replicas]
    send(replicas)
    deadline = time.monotonic() + WAIT_S
    while len(communicators[0].log) == len(communicators[1].log):
        assert time.monotonic() < deadline
        network.release(0)
    if again == "made anew":
        replicas = make()
    for (_, diloco), state in zip(replicas, fresh, strict=True):
        diloco.load_state_dict(state)
    send(replicas)
    waited: list[Any] = [diloco._sent for _, diloco in replicas]
    wait_for(network, [sent.step.over for sent in waited], random.Random(0))
    assert communicators[0].log == communicators[1].log
    for _, diloco in replicas:
        diloco.step()
    first, second = (diloco.state_dict() for _, diloco in replicas)
    require_same(first["global_parameters"], second["global_parameters"])
    require_same(first["factors"], second["factors"])
    assert set(first["factors"]) == {"0.weight", "2.weight"}
