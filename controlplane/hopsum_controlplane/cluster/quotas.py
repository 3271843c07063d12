# SPDX-License-Identifier: Apache-2.0
"""Quotas: the resources that the jobs of a tenant may take together.

A quota counts what jobs have been made for, whether workers are there or not: a job holds its slots from its making to
its deletion. Jobs of administrators are nobody's, and count for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hopsum_controlplane.cluster.errors import ResourceExhaustedError
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.cluster.tenants import RESOURCES, TenantConfig


class Usage(NamedTuple):
    """The resources that jobs take."""

    jobs: int = 0
    slots: int = 0
    tables: int = 0
    members: int = 0

    @classmethod
    def of(cls, records: Iterable[JobRecord]) -> Usage:
        """Return the resources of jobs."""
        found = [_usage(each) for each in records]
        return cls(*(sum(getattr(each, resource) for each in found) for resource in RESOURCES))


def _usage(record: JobRecord) -> Usage:
    request, switches = record.request, len(record.switches)
    tables = sum(each is not None for each in (request.table, request.table16, request.table6))
    return Usage(1, request.slots * switches, tables * switches, request.workers + request.observers)


class Quotas:
    """The tenants of the configuration, which may be replaced, and what their jobs take; `records` returns all jobs."""

    def __init__(self, tenants: Sequence[TenantConfig], records: Callable[[], Iterable[JobRecord]]) -> None:
        self.tenants = tuple(tenants)
        self._records = records

    def require(self, record: JobRecord) -> None:
        """Raise ResourceExhaustedError where a new job of a tenant is more than its quotas leave beside its others."""
        tenant = next((each for each in self.tenants if each.name == record.request.tenant), None)
        if tenant is None:
            return
        others = self._jobs(tenant)
        used, asked = Usage.of(others), Usage.of([record])
        for resource in RESOURCES:
            most, has, wants = tenant.quota(resource), getattr(used, resource), getattr(asked, resource)
            if most is not None and has + wants > most:
                raise ResourceExhaustedError(
                    f"job {record.name!r} takes {wants} {resource[:-1] if wants == 1 else resource}, and tenant "
                    f"{tenant.name!r} has {has} of its {most} (max_{resource}) in {len(others)} jobs",
                    hint=_hint(resource, most - has, others),
                )

    def usage(self) -> dict[TenantConfig, Usage]:
        """Return what each tenant has."""
        return {tenant: Usage.of(self._jobs(tenant)) for tenant in self.tenants}

    def _jobs(self, tenant: TenantConfig) -> list[JobRecord]:
        return [each for each in self._records() if each.request.tenant == tenant.name]


def _hint(resource: str, left: int, others: Sequence[JobRecord]) -> str:
    smaller = f"ask for at most {left}, " if left > 0 and resource != "jobs" else ""
    names = ", ".join(each.name for each in others[:8]) + (", ..." if len(others) > 8 else "")
    delete = f"delete one of its jobs ({names}), " if others else ""
    return f"{smaller}{delete}or ask the administrator for a larger max_{resource}"
