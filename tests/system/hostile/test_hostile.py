# SPDX-License-Identifier: Apache-2.0
"""Each attack with one job's token in turn: others keep their places, generations, slots and sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hopsum_topologies.process import ManagedProcess

from .attacker import ATTACKS
from .hostile_site import START_S, HostileSite

LEASE_S = 120.0
"""So long that no place is lost because of a slow machine."""
SECONDS = 1.5
EXPECTED = {
    "flood-locate": ("answered",),
    "flood-lists": ("answered", "unauthenticated"),
    "flood-heartbeats": ("answered",),
    "strangers": ("unauthenticated",),
    "giants": ("resource_exhausted", "invalid_argument"),
    "odd-values": ("invalid_argument", "unauthenticated"),
    "churn-generations": ("generations",),
    "silent-calls": ("opened",),
    "connections": ("most at once",),
    "slow-readers": ("most at once",),
    "forged": ("datagrams",),
    "flood-datagrams": ("datagrams",),
}
"""The events that an attack counts at least once."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileSite]:
    with ExitStack() as stack:
        yield HostileSite(tmp_path_factory.mktemp("hostile"), stack, LEASE_S)


def await_drops(site: HostileSite, attacker: ManagedProcess) -> None:
    """Wait until the switch has dropped forged datagrams for each of these reasons."""

    def dropped() -> bool:
        drops = site.admin.switches()[0].drops
        return all(drops[reason] for reason in ("unknown_generation", "bad_length", "bad_slot", "bad_kind"))

    attacker.wait_for(dropped, "drops for each reason", START_S)


def test_every_attack_is_made() -> None:
    assert list(EXPECTED) == list(ATTACKS)


@pytest.mark.xdist_group("hostile")
def test_others_keep_what_they_have(site: HostileSite) -> None:
    before, free = site.others(), site.admin.switches()[0].slots_used
    for name in ATTACKS:
        attacker = site.attack(name, EXPECTED[name])
        site.watch(SECONDS)
        if name == "forged":
            await_drops(site, attacker)
        counts = site.end(attacker)
        assert [what for what in EXPECTED[name] if not counts.get(what)] == [], (name, counts)
        assert site.others() == before, name
        assert site.admin.switches()[0].slots_used == free, name
    site.training.finish()
