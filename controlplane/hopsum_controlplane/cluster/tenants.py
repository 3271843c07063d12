# SPDX-License-Identifier: Apache-2.0
"""Tenants of the configuration: holders of tokens who make jobs of their own, and their quotas, see `quotas`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopsum_controlplane.cluster.errors import ClusterConfigError

RESOURCES: Final = ("jobs", "slots", "tables", "members")
"""The resources of a quota: jobs, their slots and lookup tables on all switches together, their workers and observers.
"""
MAX_NAME_CHARACTERS: Final = 64


@dataclass(frozen=True)
class TenantConfig:
    """A tenant: where its tokens are, and its quota of each resource; None for no bound."""

    name: str
    token_file: Path
    max_jobs: int | None = None
    max_slots: int | None = None
    max_tables: int | None = None
    max_members: int | None = None

    def quota(self, resource: str) -> int | None:
        """Return the quota of one of RESOURCES."""
        found: int | None = getattr(self, f"max_{resource}")
        return found

    def check(self) -> None:
        """Raise ClusterConfigError for a name or a quota that cannot be."""
        if not self.name.isprintable() or not self.name or len(self.name) > MAX_NAME_CHARACTERS or " " in self.name:
            hint = f"a name is one word of at most {MAX_NAME_CHARACTERS} characters"
            raise ClusterConfigError(f"[[tenant]] {self.name!r:.80}", hint=hint)
        for resource in RESOURCES:
            most = self.quota(resource)
            if most is not None and most < 0:
                hint = "it is 0 or more; leave it out for no bound"
                raise ClusterConfigError(f"tenant {self.name!r}: max_{resource} {most}", hint=hint)
