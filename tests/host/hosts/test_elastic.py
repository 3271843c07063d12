# SPDX-License-Identifier: Apache-2.0
"""`hosts://` under elastic torchrun: a host dies, the others continue with fewer ranks, and it comes back."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.config import ConfigError
from hopsum.meeting import Meeting, WaitLimit, meeting, rank_store
from hopsum.meeting.meeting import COMING
from hopsum.meeting.rank_store import RankStore, agree_on_round
from hopsum_topologies.star import Star

from ...support.printed import parse_printed
from ...support.processes import await_that
from ...support.targets import require_namespaces
from .host_process import HostProcess, kill
from .test_meeting import Store

EXAMPLES = Path(__file__).parents[3] / "examples"
HOSTS, STEPS = 3, 1000
PACED = f"""
import runpy, sys, time
sys.path.insert(0, {str(EXAMPLES)!r})
import ddp_digits
draw = ddp_digits.draw_digits
ddp_digits.draw_digits = lambda *given: time.sleep(0.05) or draw(*given)
runpy.run_path({str(EXAMPLES / "elastic_digits.py")!r}, run_name="__main__")
"""
"""The example, at twenty steps a second at most: it must not end while a host is away, nor compute all that time."""
ROUND = re.compile(r"^(\d) ranks from step (\d+)", re.MULTILINE)


def agree(store: Store, workers: int) -> list[str]:
    """Return what each rank takes as the name of its round. Rank 0 comes last."""
    with ThreadPoolExecutor(workers) as pool:
        return list(
            pool.map(lambda rank: agree_on_round(store, rank, workers, WaitLimit(60), "x"), reversed(range(workers)))
        )


class AheadStore(Store):
    def put(self, key: str, value: str) -> None:
        super().put(key, value)
        if "/come/" in key:  # a rank that has come begins the next round at once
            super().put(f"hopsum/here/{key[-1]}", "next")


@pytest.mark.parametrize("kind", [Store, AheadStore])
def test_each_round_has_a_name_of_its_own_in_a_store_that_stays(kind: type[Store]) -> None:
    store, before = kind(), set[str]()
    for workers in (3, 1, 4, 4, 2):
        (name,) = set(agree(store, workers))
        assert name not in before
        assert "next" not in str(store.find("hopsum/round")), "that rank would take this name for the next round's"
        before.add(name)


def test_a_rank_of_the_round_before_is_not_waited_for_in_vain_and_not_taken_for_one_of_this_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "_STAY_S", 0.0)
    for rank, missing in ((0, "1, 2"), (2, "0")):
        store = Store()
        agree(store, 3)
        with pytest.raises(ConfigError, match=rf"x: rank {rank} has not heard of ranks {missing} within 0.2 s"):
            agree_on_round(store, rank, 3, WaitLimit(0.2), "x")
        # Processes of the next round were started after that, and take it for what it is.
        with monkeypatch.context() as later:
            later.setattr(rank_store, "_started_at", lambda: inf)
            assert len(set(agree(store, 3))) == 1


def given_up(store: Store, rank: int) -> str:
    """Let a rank come in vain, and return its words."""
    with pytest.raises(ConfigError, match="has not heard of") as told:
        agree_on_round(store, rank, 2, WaitLimit(0.2, "deadline_s"), "x")
    return str(told.value)


def test_a_rank_that_comes_late_hears_at_once_that_the_others_have_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_STAY_S", 0.0)
    for first, later in ((0, 1), (1, 0)):
        store = Store()
        told = given_up(store, first)
        assert told.endswith("at the same point of the program, or wait longer (deadline_s)")
        with pytest.raises(ConfigError, match="has not heard of") as heard:
            agree_on_round(store, later, 2, WaitLimit(600), "x")
        assert str(heard.value) == f"x: rank {first}: {told.removeprefix('x: ')}"
        # What was heard is heard once: both may try again.
        assert len(set(agree(store, 2))) == 1


@pytest.mark.parametrize(
    ("deadline_s", "timeout_s", "waits_s"), [(1800, 7200, 7200), (1800, 1800, 1800), (7, 1800, 7), (3600, 1800, 3600)]
)
def test_a_process_group_with_a_longer_timeout_than_torchs_own_is_waited_for_as_long(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float, timeout_s: float, waits_s: float
) -> None:
    asked: list[float] = []

    def open_store(patience: WaitLimit, *_: object) -> None:
        asked.append(patience.wait_s)
        raise ConfigError("as far as it goes here")

    monkeypatch.setattr(rank_store, "_group_timeout_s", lambda _: timeout_s)
    monkeypatch.setattr(rank_store, "RankStore", open_store)
    with pytest.raises(ConfigError, match="as far as it goes"):
        rank_store.meet_ranks("hosts://", WaitLimit(deadline_s, "deadline_s"))
    assert asked == [waits_s]


def test_ranks_that_have_come_hear_of_a_failure_while_others_are_waited_for() -> None:
    store = Store()

    def fail() -> None:
        name = agree_on_round(store, 1, 3, WaitLimit(600), "x")
        Meeting(store, f"{name}/all", 1, 3, WaitLimit(0)).fail(ConfigError("no such codec"))

    def wait() -> None:
        name = agree_on_round(store, 2, 3, WaitLimit(600), "x")
        Meeting(store, f"{name}/all", 2, 3, WaitLimit(600), "x").exchange(COMING, lambda: None)

    def come() -> None:
        agree_on_round(store, 0, 4, WaitLimit(600), "x")

    with ThreadPoolExecutor(3) as pool:
        found = [each.exception() for each in [pool.submit(each) for each in (come, fail, wait)]]
    assert str(found[0]) == "x: rank 1: no such codec"
    assert found[1] is None
    assert re.search("rank 1: no such codec", str(found[2]))


def test_a_rank_that_is_started_again_finds_its_round_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RankStore.__new__(RankStore)
    values = Store()
    monkeypatch.setattr(RankStore, "put", lambda _, *given: values.put(*given))
    monkeypatch.setattr(RankStore, "find", lambda _, key: values.find(key))
    (store.name,) = set(agree(values, 3))

    def again() -> str:
        return agree_on_round(values, 2, 3, WaitLimit(0.5), "x")

    with pytest.raises(ConfigError, match="rank 2 has not heard of ranks 0"):
        again()
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(again)
        while not came.done():
            store.admit({1, 2})
            time.sleep(0.01)
        assert came.result() == store.name
    values.put("hopsum/round", '["another call"]')
    store.admit({1, 2})
    assert values.find("hopsum/round") == '["another call"]'


def start_agent(stack: ExitStack, star: Star, host: int, folder: Path, name: str) -> HostProcess:
    """Start an agent of torchrun on a host."""
    where = ["--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=9", f"--local-addr={star.host_ip(host)}"]
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={star.host_ip(0)}:29512"]
    # With torch's default a killed agent is in the round for 15 s, and the others wait for it.
    alive = "keep_alive_interval=1,keep_alive_max_attempt=5"
    conf = f"--rdzv-conf=last_call_timeout=3,{alive},is_host={int(host == 0)}"
    script = [f"{folder}/paced_example.py", f"--checkpoint={folder}/checkpoint", f"--steps={STEPS}"]
    command = ["-m", "torch.distributed.run", *where, *meet, conf, *script]
    return HostProcess(stack, star, host, folder / f"{name}.log", *command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


@pytest.mark.system
@pytest.mark.long
def test_training_continues_with_fewer_hosts_and_with_more(tmp_path: Path) -> None:
    """Three hosts, two after one lost its power, three again: equal replicas, a loss without a jump."""
    require_namespaces()
    (tmp_path / "paced_example.py").write_text(PACED)

    def rounds() -> list[tuple[int, int]]:
        """Return ranks and first step of the rounds that have begun, in the order of steps."""
        time.sleep(0.2)  # it is asked without a pause
        told = [ROUND.findall(each.text) for each in agents]
        return sorted(((int(ranks), int(step)) for each in told for ranks, step in each), key=lambda each: each[1])

    def saved() -> int:
        time.sleep(0.2)
        return len(torch.load(tmp_path / "checkpoint")["losses"]) if (tmp_path / "checkpoint").exists() else 0

    with Star(HOSTS) as star, ExitStack() as stack:
        agents = [start_agent(stack, star, host, tmp_path, f"host{host}") for host in range(HOSTS)]
        killed_s = time.monotonic()
        for ranks in (HOSTS, HOSTS - 1, HOSTS):
            await_that(lambda ranks=ranks: rounds()[-1:] and rounds()[-1][0] == ranks, f"round of {ranks}")
            begun, began_s = rounds()[-1][1], time.monotonic() - killed_s
            await_that(lambda begun=begun: saved() > begun, f"first checkpoint of {ranks}")
            summed_s = time.monotonic() - killed_s
            print(f"a round of {ranks} ranks: {began_s:.1f} s after the event, its first checkpoint {summed_s:.1f} s")
            await_that(lambda begun=begun: saved() >= begun + 100, f"checkpoint of {ranks}")
            killed_s = time.monotonic()
            if len(agents) == HOSTS and ranks == HOSTS:
                kill(star, HOSTS - 1)
            elif ranks < HOSTS:
                agents.append(start_agent(stack, star, HOSTS - 1, tmp_path, "again"))
        assert [agents[number].process.wait(600) for number in (0, 1, 3)] == [0, 0, 0]
    (text,) = [each.text for each in agents if "parameters_sha256" in each.text]
    ended = parse_printed(text)
    assert [rank["workers"] for rank in ended] == [HOSTS] * HOSTS
    assert len({rank["parameters_sha256"] for rank in ended}) == 1
    assert not any("are lost" in each.text for each in agents), "the checkpoint has the residuals of all ranks"
    losses = ended[0]["losses"]
    assert len(losses) == STEPS
    for _, step in rounds()[-2:]:
        before, after = (sum(part) / 50 for part in (losses[step - 50 : step], losses[step : step + 50]))
        # Other images from step to step: a mean of 50 differs by a few percent of the loss at the beginning.
        assert after < before + 0.1 * losses[0], f"the loss jumps at step {step}"
