# SPDX-License-Identifier: Apache-2.0
"""Each attack of a tenant in turn: others keep their places, generations, slots and sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .attacker import ATTACKS
from .site import SLOTS, HostileSite

LEASE_S = 120.0
"""Whoever loses a place loses it to an attack, not to a slow machine."""
SECONDS = 1.5
EXPECTED = {
    "flood-locate": ("answered", "resource_exhausted"),
    "flood-lists": ("answered", "not_found", "resource_exhausted"),
    "flood-heartbeats": ("answered",),
    "strangers": ("unauthenticated", "resource_exhausted"),
    "giants": ("resource_exhausted", "invalid_argument"),
    "odd-values": ("invalid_argument", "unauthenticated"),
    "hold-slots": ("made", "refused"),
    "churn-jobs": ("made and deleted",),
    "churn-generations": ("generations",),
    "connections": ("most at once",),
    "forged": ("datagrams",),
    "flood-datagrams": ("datagrams",),
}
"""What an attack counts at least once."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileSite]:
    with ExitStack() as stack:
        yield HostileSite(tmp_path_factory.mktemp("hostile"), stack, LEASE_S)


def test_every_attack_is_in_the_table() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tenants.md").read_text()
    assert list(EXPECTED) == list(ATTACKS)
    assert [name for name in ATTACKS if f"\n| `{name}`: " not in page] == []


@pytest.mark.xdist_group("hostile")
def test_others_keep_what_they_have(site: HostileSite) -> None:
    before, free = site.others(), site.admin.switches()[0].slots_used
    for name in ATTACKS:
        attacker = site.attack(name)
        site.watch(SECONDS)
        site.training.goes_on(3)
        held = [job for job in site.admin.jobs() if job.tenant == "hostile"]
        assert sum(job.slots for job in held) <= SLOTS, name
        counts = site.end(attacker)
        assert [what for what in EXPECTED[name] if not counts.get(what)] == [], (name, counts)
        assert site.others() == before, name
        assert site.admin.switches()[0].slots_used == free, name
        if name == "hold-slots":
            assert counts["refused"] == counts["refused, naming the quota"]
    drops = site.admin.switches()[0].drops
    assert [
        reason for reason in ("unknown_generation", "bad_length", "bad_slot", "bad_kind") if not drops[reason]
    ] == []
    site.training.finish()
    site.training.check()
