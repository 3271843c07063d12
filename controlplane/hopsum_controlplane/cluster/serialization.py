# SPDX-License-Identifier: Apache-2.0
"""Requests, jobs, reports and decisions as JSON texts, in which the database keeps them, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from ipaddress import IPv4Network
from typing import Any

from hopsum_controlplane.cluster.config import PortRule, SwitchConfig
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.errors import InvalidRequestError
from hopsum_controlplane.cluster.records import BranchAssignment, RegisteredSwitch, ShardSeat
from hopsum_controlplane.cluster.requests import JobRequest
from hopsum_controlplane.jobs import ALL_OPS, Job, JobSpec, LeafEndpoint, ParentEndpoint, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.slots import SlotRange
from hopsum_wire import Op
from hopsum_wire.generations import Decided, Resume


def request_to_json(request: JobRequest) -> str:
    """Return a request as text."""
    return json.dumps(asdict(request))


def request_from_json(text: str) -> JobRequest:
    """Return the request of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    values = json.loads(text)
    shard_switches = tuple(values.get("shard_switches", ()))  # databases of before shards have none
    return JobRequest(**{**values, **_tables(values), "shard_switches": shard_switches})


def job_to_json(job: Job) -> str:
    """Return a job as it stands on a switch as text."""
    return json.dumps(asdict(job))


def job_from_json(text: str) -> Job:
    """Return the job of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    return _job(json.loads(text))


def _job(values: dict[str, Any]) -> Job:
    return Job(
        **{
            **values,
            "spec": _spec(values["spec"]),
            "switch": SwitchEndpoint(**values["switch"]),
            "region": SlotRange(*values["region"]),
            "ops": tuple(map(Op, values.get("ops", ALL_OPS))),  # which databases of before do not have
            "side_key": values.get("side_key", ""),
        }
    )


def branches_to_json(branches: Iterable[BranchAssignment]) -> str:
    """Return the further switches of a job as text."""
    return json.dumps([asdict(branch) for branch in branches])


def branches_from_json(text: str) -> tuple[BranchAssignment, ...]:
    """Return the further switches of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    return tuple(
        BranchAssignment(
            **{
                **values,
                "region": SlotRange(*values["region"]),
                "job": None if values["job"] is None else _job(values["job"]),
            }
        )
        for values in json.loads(text)
    )


def names_to_json(names: Iterable[str]) -> str:
    """Return names of switches as text."""
    return json.dumps(list(names))


def names_from_json(text: str) -> tuple[str, ...]:
    """Return the names of a text. Raises ValueError or TypeError when it holds none."""
    return tuple(str(name) for name in json.loads(text))


def settings_to_json(settings: Iterable[tuple[str, str]]) -> str:
    """Return a member's settings as text."""
    return json.dumps(dict(settings))


def settings_from_json(text: str) -> tuple[tuple[str, str], ...]:
    """Return the settings of a text. Raises ValueError or AttributeError when it holds none."""
    return tuple((str(name), str(value)) for name, value in json.loads(text).items())


def further_to_json(further: Iterable[ShardSeat]) -> str:
    """Return a member's places at further shards as text."""
    return json.dumps([{"endpoint": asdict(seat.endpoint), "side_port": seat.side_port} for seat in further])


def further_from_json(text: str) -> tuple[ShardSeat, ...]:
    """Return the places of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    return tuple(ShardSeat(WorkerEndpoint(**each["endpoint"]), each["side_port"]) for each in json.loads(text))


def switch_to_json(switch: RegisteredSwitch) -> str:
    """Return a switch that registered as text."""
    config = asdict(switch.config)
    ports = [{"port": rule.port, "network": str(rule.network)} for rule in switch.config.ports]
    replaced = [incarnation.hex() for incarnation in switch.replaced]
    del config["program"], config["loop_ports"]  # which no switch has that registers
    return json.dumps(
        {"config": {**config, "ports": ports}, "incarnation": switch.incarnation.hex(), "replaced": replaced}
    )


def switch_from_json(text: str) -> RegisteredSwitch:
    """Return the switch of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    values = json.loads(text)
    config = values["config"]
    ports = tuple(PortRule(rule["port"], IPv4Network(rule["network"])) for rule in config["ports"])
    ip, udp_port = config["service_address"]
    endpoint = SwitchEndpoint(**config["endpoint"])
    made = SwitchConfig(**{**config, "ports": ports, "endpoint": endpoint, "service_address": (ip, udp_port)})
    replaced = tuple(bytes.fromhex(each) for each in values["replaced"])
    return RegisteredSwitch(made, bytes.fromhex(values["incarnation"]), replaced)


def report_to_json(report: Report) -> str:
    """Return what a worker reported as text."""
    return json.dumps(asdict(report))


def report_from_json(text: str) -> Report:
    """Return the report of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    report = _report(json.loads(text))
    try:
        report.check()
    except InvalidRequestError as error:
        raise ValueError(str(error)) from error
    return report


def _report(values: dict[str, Any]) -> Report:
    held = tuple((int(first), int(end)) for first, end in values["held"])
    further = tuple(_report({**each, "allreduces_begun": 0}) for each in values.get("further_shards", ()))
    return Report(**{**values, "held": held, "further_shards": further})


def resume_to_json(resume: Resume) -> str:
    """Return how a stream goes on as text."""
    return json.dumps(asdict(resume))


def resume_from_json(text: str) -> Resume:
    """Return the decision of a text. Raises ValueError, KeyError or TypeError when it holds none."""
    return _resume(json.loads(text))


def _resume(values: dict[str, Any]) -> Resume:
    decided = tuple(Decided(**{**each, "ranks": tuple(each["ranks"])}) for each in values["decided"])
    further = tuple(map(_resume, values.get("further_shards", ())))
    return Resume(**{**values, "replaced": tuple(values["replaced"]), "decided": decided, "further_shards": further})


def _spec(values: dict[str, Any]) -> JobSpec:
    members = {who: tuple(WorkerEndpoint(**member) for member in values[who]) for who in ("workers", "observers")}
    below = values.get("leaves", ())  # databases of before trees have neither
    leaves = tuple(LeafEndpoint(**{**leaf, "members": tuple(leaf["members"])}) for leaf in below)
    parent = None if values.get("parent") is None else ParentEndpoint(**values["parent"])
    return JobSpec(**{**values, **members, **_tables(values), "leaves": leaves, "parent": parent})


def _tables(values: dict[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Return the tables and digits of a request or specification. Older databases have no `table6` or `digits`."""
    found = {name: values[name] for name in ("table", "table16")}
    found |= {name: values.get(name) for name in ("table6", "digits")}
    return {name: None if table is None else tuple(table) for name, table in found.items()}
