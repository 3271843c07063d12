# SPDX-License-Identifier: Apache-2.0
"""Switches of a tree that note, in one list of all of them, when they begin and cease to admit a generation."""

from __future__ import annotations

from pathlib import Path

from hopsum_controlplane.entries import Delete, Insert, TableEntry, Update
from hopsum_ptf.fake_device import FakeDevice

from .world import TREE_LINKS, Cluster, tree_configs

EVERYBODY = "10.0.1.0/24"
"""The network of all workers."""


class Noted(FakeDevice):
    """A switch that notes when it begins and ceases to admit a generation, in a list of all switches."""

    def __init__(self, name: str, notes: list[tuple[str, str]]) -> None:
        super().__init__()
        self.name, self.notes = name, notes

    def _apply(self, update: Update) -> str:
        entity = update.entity
        if isinstance(entity, TableEntry) and entity.table == "jobs":
            words = {Insert: "admits", Delete: "admits no more"}
            self.notes.append((self.name, words[type(update)]))
        return super()._apply(update)


def noted_tree(folder: Path) -> Cluster:
    """Return a cluster that is not started."""
    notes: list[tuple[str, str]] = []
    configs = tree_configs()
    return Cluster(folder, configs, {each.name: Noted(each.name, notes) for each in configs}, TREE_LINKS)


def device(cluster: Cluster, name: str) -> Noted:
    found = cluster.devices[name]
    assert isinstance(found, Noted)
    return found
