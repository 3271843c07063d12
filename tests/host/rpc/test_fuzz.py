# SPDX-License-Identifier: Apache-2.0
"""Random bytes and values: answers or refusals, a server that stays up, nothing of another job changed."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.token_files import AdminToken
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import BEARER, JOB_SERVICE, MEMBERSHIP_SERVICE, SWITCH_SERVICE, Method, methods
from hopsum_wire.control.values import message_to_dict

from ...controlplane.cluster.world import Cluster, Worker, switch_config

CALLS: Final = 300 * int(os.environ.get("TEST_SCALE", "1"))
ADMIN: Final = "the-administrator-s-token"
SWITCH: Final = "the-token-for-switches"
TOKENS: Final = {JOB_SERVICE: ADMIN, SWITCH_SERVICE: SWITCH}
REFUSALS: Final = {
    "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "FAILED_PRECONDITION", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED",
}  # fmt: skip
METHODS: Final = [
    (service, name, method)
    for service in (MEMBERSHIP_SERVICE, JOB_SERVICE, SWITCH_SERVICE)
    for name, method in methods(service).items()
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    switches = tuple(switch_config(number, {1: "127.0.0.0/8", 2: "10.0.0.0/8"}) for number in (1, 2))
    found = Cluster(tmp_path, switches, {switch.name: FakeDevice() for switch in switches})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    with Service(
        cluster.controller, "127.0.0.1:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)], switch_token=SWITCH)
    ) as service:
        yield service.address


def _installed_entries(cluster: Cluster, crew: list[Worker]) -> Any:
    """The state that must not change: the bystander's job in the database, on the switch, and as its workers hear."""
    [job] = [message_to_dict(_job(cluster, crew[0].job))]
    for each in (job, *job["members"]):  # what time alone changes
        for name in [name for name in each if name == "lease_left_s" or name.endswith("_age_s")]:
            del each[name]
    switch = cluster.devices[job["switches"][0]]
    assert isinstance(switch, FakeDevice)
    entries = {key: entity for key, entity in switch.entities.items() if f"{job['generation']}" in repr(entity)}
    return job, entries, [worker.beat() for worker in crew]


def _job(cluster: Cluster, name: str) -> Any:

    return cluster.controller.job(name, counters=False)


def _raw(address: str, method: Method, data: bytes, metadata: tuple[tuple[str, str | bytes], ...]) -> str:
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        send = channel.unary_unary(method.path)
        try:
            method.response.FromString(send(data, timeout=60, metadata=metadata))
        except grpc.RpcError as error:
            code: str = error.code().name
            return code
    return "OK"


def test_random_bytes(cluster: Cluster, address: str) -> None:
    rng = random.Random(1)
    crew = cluster.run("bystander")
    before = _installed_entries(cluster, crew)
    assert before[1]
    codes: Counter[str] = Counter()
    for _ in range(CALLS // 2):
        service, _, method = rng.choice(METHODS)
        data = bytearray(rng.randbytes(rng.choice((0, 1, 3, 20, 300))))
        if rng.random() < 0.5:  # a message with some of its bytes changed
            data = bytearray(_message(rng, method.request, {}).SerializeToString())
            for _ in range(rng.randrange(1, 4) if data else 0):
                data[rng.randrange(len(data))] = rng.randrange(256)
        secret = rng.choice((TOKENS.get(service, crew[0].token), crew[0].secret.hex()))
        metadata = rng.choice(((), (("authorization", BEARER + secret),), (("authorization", "Basic eA=="),)))
        codes[_raw(address, method, bytes(data), metadata)] += 1
    assert set(codes) <= REFUSALS | {"OK"}, codes
    assert codes["INVALID_ARGUMENT"] > 10
    assert _installed_entries(cluster, crew) == before


def test_random_values(cluster: Cluster, address: str) -> None:
    rng = random.Random(2)
    crew, target = cluster.run("bystander"), cluster.make("target", 3, 8)
    before = _installed_entries(cluster, crew)
    codes: Counter[str] = Counter()
    with Channel(ControllerAddress.of(address)) as channel:
        for _ in range(CALLS):
            service, name, method = rng.choice(METHODS)
            known = {"job": target[0].job, "name": rng.choice((target[0].job, "new")), "incarnation": rng.randbytes(16)}
            request = _message(rng, method.request, known)
            secret = TOKENS.get(service, target[0].token)
            code, told = _call(channel, service, name, request, secret)
            codes[code] += 1
            assert secret not in told
            if name in ("DeleteJob", "CreateJob") and "target" not in [job.name for job in cluster.controller.jobs()]:
                target = cluster.make("target", 3, 8)
        assert set(codes) <= REFUSALS | {"OK"}, codes
        assert codes["OK"] > 10
        assert _installed_entries(cluster, crew) == before
        _delete_all_but(JobsClient(channel, ADMIN), "bystander")
        assert JobsClient(channel, ADMIN).switches()[0].slots_used == 16
    assert _installed_entries(cluster, crew) == before


def _call(channel: Channel, service: str, name: str, request: Any, secret: str) -> tuple[str, str]:
    try:
        return "OK", str(type(channel.call(service, name, request, secret=secret, timeout_s=60)))
    except ControllerError as error:
        return error.code, str(error)


def _delete_all_but(operator: JobsClient, name: str) -> None:
    for job in operator.jobs():
        if job.name != name:
            operator.delete(job.name)


_VALUES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "int": lambda rng: rng.choice((0, 1, 2, 5, 63, 64, 65, 255, 2047, 65535, 65536, (1 << 31) - 1, (1 << 32) - 1)),
    "float": lambda rng: rng.choice((0.0, -1.0, 0.01, 5.0, 1e300, float("inf"), float("-inf"), float("nan"))),
    "bool": lambda rng: rng.random() < 0.5,
    "str": lambda rng: rng.choice(
        ("", "a", "a" * 5000, "\0", "\n", "../../x", "10.0.0.1", "127.0.0.1", "02:00:00:00:01:01", "';--", "😀", "s2")
    ),
    "bytes": lambda rng: rng.randbytes(rng.choice((0, 1, 15, 16, 17, 4000))),
}


def _item(rng: random.Random, field: Any, depth: int) -> Any:
    """Return one value of a repeated field."""
    if field.message_type is not None:
        return _message(rng, field.message_type._concrete_class, {}, depth + 1)
    return _VALUES["str" if field.type == field.TYPE_STRING else "int"](rng)


def _message(rng: random.Random, kind: Any, known: dict[str, Any], depth: int = 0) -> Any:
    """Return a message with any of its fields set to anything; those `known` by name mostly to that.

    A message may repeat messages of its own kind: further down there are few, and then none.
    """
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        present = getattr(message, field.name)
        if rng.random() < 0.2:
            continue
        if field.name in known and rng.random() < 0.8:
            setattr(message, field.name, known[field.name])
        elif hasattr(present, "items"):
            values = {pb.HeartbeatRequest: "float", pb.JoinRequest: "str"}.get(kind, "int")
            for _ in range(rng.choice((1, 3, 200))):
                present[_VALUES["str"](rng)] = _VALUES[values](rng)
        elif hasattr(present, "extend"):
            count = rng.choice((1, 16, 17, 500)) if not depth else rng.randrange(4) if depth == 1 else 0
            present.extend(_item(rng, field, depth) for _ in range(count))
        elif field.message_type is not None:
            present.CopyFrom(_message(rng, type(present), {"ip": f"10.1.0.{rng.randrange(1, 255)}"}, depth + 1))
        else:
            setattr(message, field.name, _VALUES[type(present).__name__](rng))
    return message
