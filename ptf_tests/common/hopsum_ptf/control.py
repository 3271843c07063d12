# SPDX-License-Identifier: Apache-2.0
"""The control plane of the cases: the real Controller on a device that also records its writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf import text_format

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.devices.device import Capabilities, Device, PipelineConfig
from hopsum_controlplane.entries import CounterValue, Modify, MulticastGroup, TableEntry, Update
from hopsum_controlplane.job_spec import Job, ParentEndpoint, WorkerEndpoint
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import encode_update
from hopsum_controlplane.tables import admit, lookup, reply, requantize
from hopsum_oracle.aggregator import JobConfig, LeafConfig, ParentConfig, WorkerConfig
from hopsum_ptf.recording import Recording, Write
from hopsum_wire import Drop, Event
from hopsum_wire._layout import JOB_EVENTS

# The clock of the cases' controller: generations, and with them recordings, are the same every time.
CLOCK_S = 1_000_000.0

UNCOUNTED_EVENTS: Final = {"tofino": frozenset({Event.FAULT})}
"""Events that a target does not count, by target. Tofino compares the tag once and learns only that the packet's round
is newer."""
UNCOUNTED_DROPS: Final = {"tofino": frozenset({Drop.TRUNCATED})}
"""Drop reasons that a target does not count, by target. On Tofino the parser drops these packets."""


class RecordingDevice(Device):
    """A device that passes calls on to another one, and adds every written batch to a recording.

    The recording has a batch as P4Runtime updates in text form.
    """

    def __init__(self, device: Device, recording: Recording) -> None:
        self._device = device
        self._recording = recording
        self._p4info: P4Info | None = None
        self.where = device.where

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return the declarations of the target."""
        return self._device.capabilities

    def write(self, updates: Sequence[Update]) -> None:
        """Write a batch, and record it when the switch took it."""
        self._device.write(updates)
        assert self._p4info is not None, "write before push"
        # After the write: a batch that the switch refused is no part of the recording.
        encoded = (encode_update(self._p4info, update) for update in updates)
        self._recording.steps.append(Write(tuple(text_format.MessageToString(item) for item in encoded)))

    def read_table(self, table: str) -> list[TableEntry]:
        return self._device.read_table(table)

    def read_groups(self) -> list[MulticastGroup]:
        return self._device.read_groups()

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        return self._device.read_counter(counter, start, count)

    def read_cookie(self) -> int | None:
        return self._device.read_cookie()

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Push a program, which is not recorded: every recording begins with empty tables."""
        self._device.set_pipeline_config(pipeline)
        self._p4info = P4Info.from_text(pipeline.p4info)

    def close(self) -> None:
        """Do nothing: the device stays open for its owner."""


def read_counters(device: Device) -> dict[str, dict[int, int]]:
    """Return the packets of both counters by cell, without cells of 0."""
    return {
        name: {index: cell.packets for index, cell in enumerate(device.read_counter(name)) if cell.packets}
        for name in ("drops", "job_events")
    }


def oracle_counters(drops: dict[Any, int], job_events: dict[tuple[int, Event], int]) -> dict[str, dict[int, int]]:
    """Return the oracle's counts in the form of `read_counters`."""
    return {
        "drops": {int(reason): packets for reason, packets in drops.items() if packets},
        "job_events": {job * JOB_EVENTS + event: n for (job, event), n in job_events.items() if n},
    }


def oracle_job(job: Job) -> JobConfig:
    """Return a job as the oracle takes it."""
    above, tables = job.spec.parent, dict[str, Any](job.spec.tables)
    return JobConfig(
        generation=job.generation,
        job_index=job.job_index,
        slot_base=job.slot_base,
        slots=job.slots,
        workers=tuple(map(oracle_member, job.spec.workers)),
        quorum=job.quorum,
        min_quorum=job.spec.min_quorum,
        **tables,
        leaves=tuple(
            LeafConfig(leaf.number, leaf.port, mac_to_int(leaf.mac), ipv4_to_int(leaf.ip), members=leaf.bitmap)
            for leaf in job.spec.leaves
        ),
        parent=None if above is None else ParentConfig(above.number, above.port, *_addresses(above)),
    )


def _addresses(place: ParentEndpoint) -> tuple[int, int]:
    return mac_to_int(place.mac), ipv4_to_int(place.ip)


def oracle_member(member: WorkerEndpoint) -> WorkerConfig:
    """Return a worker or an observer as the oracle takes it."""
    address = (mac_to_int(member.mac), ipv4_to_int(member.ip), member.udp_port)
    return WorkerConfig(member.rank, member.port, *address)


def observer_entries(job: Job, observer: WorkerEndpoint) -> list[TableEntry]:
    """Build the entries of an observer, who may PROBE and nothing else. No controller makes any."""
    return [
        admit.member(job, observer, worker_bit=0),
        reply.to_member(job, observer.rank, observer, observer.udp_port),
    ]


def quorum_update(job: Job, quorum: int) -> Update:
    """Return the update that gives a job another quorum."""
    (entry,) = admit.jobs(job)
    return Modify(replace(entry, params={**entry.params, "quorum": quorum}))


def table_updates(job: Job, tables: Mapping[str, tuple[int, ...]]) -> list[Update]:
    """Return the updates that replace the values of a job's tables. The job must have tables of these names."""
    changed = replace(job, spec=replace(job.spec, tables=tables))
    return [Modify(entry) for entry in (*lookup.lookup(changed), *requantize.requantize(changed))]
