# SPDX-License-Identifier: Apache-2.0
"""A training by hosts:// survives what plain DDP survives. What ends it is an error on all ranks, with its cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.star import Star

from ...support.targets import require_namespaces
from .outages import ENDS, OUTAGES, Training, ends, loses_udp, narrows, survives

pytestmark = [pytest.mark.system, pytest.mark.long]
Start = Callable[..., Training]
SHORT_S = 2.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a training on so many hosts."""
    require_namespaces()
    with ExitStack() as stack:

        def begin(hosts: int, way: str = "hosts", *settings: dict[str, str], mtu: bool = False) -> Training:
            star = stack.enter_context(Star(hosts))
            if mtu:
                for host in range(hosts):
                    narrows(star, host)
            return Training(stack, star, tmp_path / way, way, settings=settings)

        yield begin


@pytest.mark.parametrize(("hosts", "outages"), [(3, tuple(OUTAGES)), (5, ("the last host is slow",))])
def test_a_training_continues_with_equal_parameters(start: Start, hosts: int, outages: tuple[str, ...]) -> None:
    training = start(hosts)
    for name in outages:
        survives(training, name, SHORT_S)
    training.finish()


@pytest.mark.parametrize("name", [name for name in ENDS if "power" not in name])
def test_the_end_of_a_rank_is_an_error_on_all_others_with_its_cause(start: Start, name: str) -> None:
    _, texts = ends(start(3), name)
    for text in texts.values():
        assert re.search(ENDS[name][2], text), text


def test_datagrams_that_are_lost_for_ever_are_an_error_or_the_end_of_hopsum(start: Start) -> None:
    """Both names of the way are in it: the bound is a setting, here 5 s."""
    bound = {"HOPSUM_UNREACHABLE_S": "5"}
    training = start(3, "hosts", bound, bound, bound)
    training.continues(0.0)
    loses_udp(training.star)
    _, texts = training.fails(0.0)
    assert any("10.0.0.2" in text and "10.0.0.3" in text for text in texts.values()), texts
    training = start(3, "fall_back", bound, bound, bound)
    training.continues(0.0)
    loses_udp(training.star)
    training.finish()


def test_an_mtu_that_is_small_on_all_hosts_from_the_start(start: Start) -> None:
    training = start(3, mtu=True)
    training.finish()
    assert "the MTU of the way is 900" in training.text(1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"HOPSUM_URL": "collective://gloo"}, "rank 1 opens collective://gloo"),
        ({"HOPSUM_LOCAL_GROUP": "auto"}, "local_group"),
        ({"HOPSUM_CODEK": "thc"}, "codek"),
    ],
)
def test_a_setting_of_one_rank_is_an_error_on_all(start: Start, setting: dict[str, str], words: str) -> None:
    _, texts = start(3, "hosts", {}, setting, {}).fails(0.0)
    for text in texts.values():
        assert words in text
