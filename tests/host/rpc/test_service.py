# SPDX-License-Identifier: Apache-2.0
"""The service in front of a real cluster controller: its answers, its refusals, and random bytes and values."""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_base.token_files import AdminToken, read_admin_tokens
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import BEAT_THREADS, Service
from hopsum_controlplane.service.member_service import _caller
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import WIRE_VERSION
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import BEARER, JOB_SERVICE, MEMBERSHIP_SERVICE, Method, methods
from hopsum_wire.control.values import message_to_dict
from hopsum_wire.membership import JobMembership, MembershipError

from ...controlplane.cluster.world import Cluster, Worker, switch_config
from ...support.processes import await_that
from .desk import ADMIN, TOKEN, desk_service


@pytest.fixture
def operator(channel: Channel) -> JobsClient:
    return JobsClient(channel, ADMIN)


def _join_all(channel: Channel, name: str, token: str, workers: int = 2) -> list[tuple[MemberClient, JobMembership]]:
    members = [MemberClient(channel, name, token, version="1.2.3") for _ in range(workers)]
    for rank, member in enumerate(members):
        member.join(("127.0.0.1", 5000 + rank), 5.0, rank=rank, side_port=6000 + rank)
    return [(member, member.membership(20.0)) for member in members]


def _code(error: pytest.ExceptionInfo[ControllerError]) -> str:
    return error.value.code


def test_a_job_from_creation_to_deletion(operator: JobsClient, channel: Channel) -> None:
    made = operator.create("train", 2, 16, table=range(16), quorum=1)
    assert (made.name, list(made.switches), made.slots, made.workers) == ("train", ["s1"], 16, 2)
    located = MemberClient(channel, "train", made.token).locate(5.0)
    assert located == pb.LocateResponse(send_to=pb.Endpoint(ip="127.0.0.1", udp_port=47500), workers=2)
    (first, membership), (second, same) = _join_all(channel, "train", made.token)
    assert membership == same
    assert (membership.job, membership.quorum, membership.tables) == ("train", 1, {"table": tuple(range(16))})
    assert [worker.endpoint.udp_port for worker in membership.workers] == [5000, 5001]
    assert membership.side_channels == {0: ("127.0.0.1", 6000), 1: ("127.0.0.1", 6001)}
    beat = first.heartbeat(membership.generation, {"retransmits": 3.0})
    assert (beat.state, beat.generation, beat.reason) == (pb.JOB_STATE_RUNNING, membership.generation, "")
    shown = message_to_dict(operator.job("train"))
    assert (shown["state"], shown["generation"], shown["slots"]) == ("running", membership.generation, 16)
    assert shown["members"][0]["statistics"] == {"retransmits": 3.0}
    assert [member["phase"] for member in shown["members"]] == ["in", "in"]
    assert shown["members"][1]["endpoint"] == {"ip": "127.0.0.1", "udp_port": 5001}
    assert shown["members"][0]["version"] == "1.2.3"
    [switch] = operator.switches()
    assert (switch.name, switch.jobs, switch.slots_used, switch.reachable) == ("s1", 1, 16, True)
    operator.delete("train")
    assert operator.jobs() == []
    for member in (first, second):
        with pytest.raises(ControllerError, match="no job 'train'") as raised:
            member.heartbeat(membership.generation, {})
        assert _code(raised) == "NOT_FOUND"


def test_a_jobs_token_shows_this_job_and_nothing_else(operator: JobsClient, channel: Channel) -> None:
    mine, other = operator.create("mine", 2, 16), operator.create("other", 2, 16)
    holder = JobsClient(channel, mine.token)
    assert (holder.job("mine").name, holder.job("mine").workers) == ("mine", 2)
    with pytest.raises(ControllerError, match="wrong token for job 'other'") as raised:
        holder.job("other")
    assert _code(raised) == "UNAUTHENTICATED"
    for refused in (holder.jobs, holder.switches, lambda: holder.delete("mine"), lambda: holder.create("more", 2, 16)):
        with pytest.raises(ControllerError, match="jobs are for the administrator") as raised:
            refused()
        assert _code(raised) == "UNAUTHENTICATED"
    assert [job.name for job in operator.jobs()] == ["mine", "other"]
    assert JobsClient(channel, other.token).job("other").name == "other"
    assert operator.job("other").name == "other"


def test_what_a_worker_says_is_no_order_to_a_terminal(operator: JobsClient, channel: Channel) -> None:
    made = operator.create("train", 2, 16)
    loud = MemberClient(channel, "train", made.token, version="\x1b]0;owned\x07\x1b[31m1.0\nrow\u202e\x9b2J")
    with pytest.raises(ControllerError, match="send printable characters"):
        loud.join(("127.0.0.1", 5000), 60.0, rank=0)
    shown = message_to_dict(operator.job("train"))
    assert shown["members"] == []
    assert shown["last_refusal"].isprintable()
    raw = pb.Job(name="train", reason="\x1b[2J", last_refusal="a\nb", members=[pb.Member(version="\x07é")])
    values = message_to_dict(raw)
    assert (values["reason"], values["last_refusal"]) == ("\\x1b[2J", "a\\nb")
    assert values["members"][0]["version"] == "\\x07é"


def test_a_worker_that_calls_from_elsewhere_is_named(cluster: Cluster) -> None:
    (first, second) = cluster.make("train")
    first.join(ip="127.0.0.2", caller="127.0.0.1")
    second.join(ip="127.0.0.3", caller="10.9.9.9")
    told = [
        event.message
        for event in cluster.controller._histories.history_of("train").events
        if event.reason == "CallsFrom"
    ]
    assert len(told) == 1
    assert told[0].startswith("rank 1 calls from 10.9.9.9 and has registered 127.0.0.3: ")
    assert [_caller(peer) for peer in ("ipv4:10.0.0.1:5", "ipv6:[::ffff:10.0.0.1]:5", "unix:/a", "unix:")] == [
        "10.0.0.1", "10.0.0.1", "", ""
    ]  # fmt: skip


def test_leaving_twice_is_leaving(operator: JobsClient, channel: Channel) -> None:
    made = operator.create("train", 2, 16)
    member = MemberClient(channel, "train", made.token)
    seat = member.join(("127.0.0.1", 5000), 5.0)
    channel.call("MembershipService", "Leave", pb.LeaveRequest(job="train", rank=seat.rank), secret=seat.secret)
    member.leave()  # as if the first answer was lost
    with pytest.raises(MembershipError, match="join first"):
        member.registration  # noqa: B018
    assert not operator.job("train").members


def test_a_report_goes_over_the_wire(operator: JobsClient, channel: Channel) -> None:
    made = operator.create("train", 2, 16)
    requests = [
        pb.JoinRequest(
            job="train",
            rank=rank,
            endpoint=pb.Endpoint(ip="127.0.0.1", udp_port=5000 + rank),
            incarnation=bytes([rank + 1] * 16),
            wire_version=WIRE_VERSION,
        )
        for rank in range(2)
    ]

    def join(rank: int) -> str:
        return str(
            channel.call("MembershipService", "Join", requests[rank], secret=made.token, timeout_s=60.0).secret.hex()
        )

    def ask(rank: int, secret: str) -> dict[str, Any]:
        request = pb.AwaitMembershipRequest(job="train", rank=rank, timeout_s=60.0)
        reply = channel.call("MembershipService", "AwaitMembership", request, secret=secret, timeout_s=90.0)
        return dict(json.loads(reply.membership))

    seats = [join(rank) for rank in range(2)]
    generation = ask(0, seats[0])["generation"]
    requests[1].incarnation = b"another" + bytes(9)
    seats[1] = join(1)
    with pytest.raises(ControllerError, match=f"was in generation {generation}, of which it reports nothing") as raised:
        join(0)
    assert _code(raised) == "UNAUTHENTICATED"
    report = pb.Report(generation=generation, delivered_to=20, submitted_to=1 << 40, allreduces_begun=7)
    report.held.add(first=18, end=25)
    report.held.add(first=20, end=21)
    requests[0].report.CopyFrom(report)
    with pytest.raises(ControllerError, match=r"a run of results 20 \.\. 21 after 25") as raised:
        join(0)
    assert _code(raised) == "INVALID_ARGUMENT"
    requests[0].report.held[1].CopyFrom(pb.Report.Run(first=25, end=(1 << 33) + 1))
    assert join(0) == seats[0]
    found = ask(1, seats[1])
    decided = [{"first": 18, "end": (1 << 33) + 1, "ranks": [0]}]
    told = {"base": 16, "start": 1 << 40, "start_generation": found["generation"], "allreduces": 7, "replaced": [1]}
    assert found["resume"] == {**told, "decided": decided}


def test_nothing_without_the_right_secret(
    operator: JobsClient, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made, other = operator.create("train", 2, 16), operator.create("other", 2, 16)
    (first, membership), (second, _) = _join_all(channel, "train", made.token)
    before = message_to_dict(operator.job("train"))
    for token in ("", "wrong", other.token, made.token[:-1], made.token + "x", "é".encode().hex(), "a" * 1000, ADMIN):
        intruder = MemberClient(channel, "train", token)
        for call in (lambda who=intruder: who.locate(5.0), lambda who=intruder: who.join(("127.0.0.1", 7000), 5.0)):
            with pytest.raises(ControllerError) as raised:
                call()
            assert _code(raised) == "UNAUTHENTICATED"
            assert made.token not in str(raised.value)
    secret = first.registration.secret
    for wrong in ("", "zz", secret[:-2], second.registration.secret, made.token, secrets.token_hex(32)):
        for name, request in (
            ("Heartbeat", pb.HeartbeatRequest(job="train", rank=0, generation=membership.generation)),
            ("AwaitMembership", pb.AwaitMembershipRequest(job="train", rank=0)),
            ("Leave", pb.LeaveRequest(job="train", rank=0)),
        ):
            with pytest.raises(ControllerError) as raised:
                channel.call("MembershipService", name, request, secret=wrong)
            assert _code(raised) == "UNAUTHENTICATED"
            assert secret not in str(raised.value)
    assert _without_leases(message_to_dict(operator.job("train"))) == _without_leases(before)
    for hidden in (made.token, secret, ADMIN):
        assert hidden not in caplog.text


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        ({"name": "train"}, "ALREADY_EXISTS", "train"),
        ({"name": "a b"}, "INVALID_ARGUMENT", "job name 'a b'"),
        ({"name": "big", "slots": 1 << 31}, "INVALID_ARGUMENT", "2147483648 slots"),
        ({"name": "crowd", "workers": 65}, "INVALID_ARGUMENT", "a job has 1 .. 64"),
        ({"name": "table", "table": (0, 200) * 8}, "INVALID_ARGUMENT", "rise from 0"),
        ({"name": "quorum", "quorum": 3}, "INVALID_ARGUMENT", "quorum 3"),
        ({"name": "where", "switch": "s9"}, "INVALID_ARGUMENT", "no switch 's9'; there are s1"),
        ({"name": "room", "slots": 2048}, "RESOURCE_EXHAUSTED", "slots"),
    ],
)
def test_refusals_have_a_code_and_the_numbers(
    operator: JobsClient, request_: dict[str, Any], code: str, message: str
) -> None:
    operator.create("train", 2, 16)
    with pytest.raises(ControllerError, match=message) as raised:
        operator.create(**{"workers": 2, "slots": 16, **request_})
    assert _code(raised) == code
    assert [job.name for job in operator.jobs()] == ["train"]


def test_a_full_job_is_an_error_at_once(operator: JobsClient, channel: Channel) -> None:
    made = operator.create("train", 1, 16)
    MemberClient(channel, "train", made.token).join(("127.0.0.1", 5000), 5.0)
    start = time.monotonic()
    with pytest.raises(ControllerError, match="all 1 ranks of job 'train' are taken") as raised:
        MemberClient(channel, "train", made.token).join(("127.0.0.1", 5001), 600.0)
    assert _code(raised) == "FAILED_PRECONDITION"
    assert time.monotonic() - start < 300


@pytest.mark.parametrize("timeout_s", [float("nan"), float("-inf"), -1.0, 0.0])
def test_odd_timeouts_are_none(operator: JobsClient, channel: Channel, timeout_s: float) -> None:
    made = operator.create("train", 2, 16)
    member = MemberClient(channel, "train", made.token)
    seat = member.join(("127.0.0.1", 5000), 5.0)
    request = pb.AwaitMembershipRequest(job="train", rank=seat.rank, timeout_s=timeout_s)
    assert (
        channel.call("MembershipService", "AwaitMembership", request, secret=seat.secret).WhichOneof("outcome")
        == "pending"
    )


def test_who_waits_keeps_nobody_from_a_heartbeat() -> None:
    """More wait than there are threads: they hold none, heartbeats and joins pass."""
    waiting = threading.Semaphore(0)
    with (
        desk_service(workers=12, threads=2) as (desk, service),
        Channel(ControllerAddress.of(service.address)) as channel,
    ):
        members = [MemberClient(channel, "ddp", TOKEN) for _ in range(11)]
        for number, member in enumerate(members):
            member.join(("127.0.0.1", 5000 + number), 5.0)
        desk.before = lambda name: waiting.release() if name == "await_membership" else None
        with ThreadPoolExecutor(11) as pool:
            futures = [pool.submit(member.membership, 60.0) for member in members]
            for _ in members:
                assert waiting.acquire(timeout=60)
            for member in members:
                member.heartbeat(0, {})
            MemberClient(channel, "ddp", TOKEN).join(("127.0.0.1", 5011), 5.0)
            assert {future.result(60).generation for future in futures} == {70}
    assert len(desk.beats) == 11


def test_leaving_waits_for_no_switch() -> None:
    """A switch of hosts:// ends with its rank, and the controller tries it for seconds."""
    proceed, follows = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name == "reconcile_job":
            follows.set()
            proceed.wait(60)

    with desk_service(workers=1) as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        desk.before = wait
        member = MemberClient(channel, "ddp", TOKEN)
        member.join(("127.0.0.1", 5000), 5.0)
        member.leave(30.0)
        assert follows.wait(60)
        assert not proceed.is_set()
        proceed.set()


def test_a_heartbeat_counts_though_its_answer_is_late(cluster: Cluster, operator: JobsClient, channel: Channel) -> None:
    """A controller that is slow answers when the worker has given the call up, and may not evict that worker."""
    (first, _), (second, _) = _join_all(channel, "train", operator.create("train", 2, 16).token)
    cluster.clock.sleep(9)
    with cluster.controller._cache.changed:
        # One more than there are threads for heartbeats: the last call has not begun when it is given up.
        for member in [first] * BEAT_THREADS + [second]:
            with pytest.raises(ControllerError):
                member.heartbeat(0, {}, 0.3)
    shown = lambda: message_to_dict(operator.job("train"))["members"]  # noqa: E731
    await_that(lambda: all(left["lease_left_s"] >= 5 for left in shown()))


def test_what_goes_wrong_inside_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    with desk_service() as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:

        def fail(name: str) -> None:
            raise ZeroDivisionError("the secret reason")

        desk.before = fail
        with pytest.raises(ControllerError, match="an error of the controller's own, see its log") as raised:
            MemberClient(channel, "ddp", TOKEN).join(("127.0.0.1", 5000), 5.0)
        assert _code(raised) == "INTERNAL"
        assert "the secret reason" in caplog.text
        assert TOKEN not in caplog.text
        desk.before = lambda name: None
        assert MemberClient(channel, "ddp", TOKEN).join(("127.0.0.1", 5000), 5.0).rank == 0


def test_only_one_controller_at_an_address(cluster: Cluster, service: Service) -> None:
    with pytest.raises(ControlPlaneError, match=r"cannot listen at .*see whether another controller runs"):
        Service(cluster.controller, service.address, safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)]))


def test_others_need_an_administrators_token(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ControlPlaneError, match="would let everybody who reaches it make and delete jobs"):
        Service(cluster.controller, "0.0.0.0:0")
    with Service(cluster.controller, "0.0.0.0:0", safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)])) as service:
        assert "without TLS: tokens pass in the clear" in caplog.text
        port = service.address.rpartition(":")[2]
        with Channel(ControllerAddress.of(f"127.0.0.1:{port}")) as channel:
            assert JobsClient(channel, ADMIN).jobs() == []


def test_a_unix_socket_is_for_its_owner(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "controller.socket"
    for _ in range(2):  # and it is no hindrance when it was left behind
        with Service(cluster.controller, f"unix:{path}") as service:
            assert path.stat().st_mode & 0o777 == 0o600
            with Channel(ControllerAddress.of(service.address)) as channel:
                assert JobsClient(channel).jobs() == []


def test_admin_token_files(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    with pytest.raises(ControlPlaneError, match="cannot be read"):
        read_admin_tokens(path, ControlPlaneError)
    path.touch(0o600)
    for text, message in (("short", "holds 5 characters"), ("two words " * 3, "not one word"), ("é" * 20, "be read")):
        path.write_text(text)
        with pytest.raises(ControlPlaneError, match=message) as raised:
            read_admin_tokens(path, ControlPlaneError)
        assert text not in str(raised.value)
    path.write_text(ADMIN + "\n")
    assert [each.token for each in read_admin_tokens(path, ControlPlaneError)] == [ADMIN]
    path.chmod(0o640)
    with pytest.raises(ControlPlaneError, match="has mode 0640: others can read it; chmod 600"):
        read_admin_tokens(path, ControlPlaneError)


def _without_leases(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "members": [{**member, "lease_left_s": None} for member in job["members"]]}


CALLS: Final = 300 * int(os.environ.get("TEST_SCALE", "1"))
TOKENS: Final = {JOB_SERVICE: ADMIN}
REFUSALS: Final = {
    "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "FAILED_PRECONDITION", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED",
}  # fmt: skip
METHODS: Final = [
    (service, name, method)
    for service in (MEMBERSHIP_SERVICE, JOB_SERVICE)
    for name, method in methods(service).items()
]


@pytest.fixture
def fuzz_cluster(tmp_path: Path) -> Iterator[Cluster]:
    switches = tuple(switch_config(number, {1: "127.0.0.0/8", 2: "10.0.0.0/8"}) for number in (1, 2))
    found = Cluster(tmp_path, switches, {switch.name: FakeDevice() for switch in switches})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def address(fuzz_cluster: Cluster) -> Iterator[str]:
    with Service(
        fuzz_cluster.controller,
        "127.0.0.1:0",
        safeguards=Safeguards(admin_tokens=[AdminToken(ADMIN)]),
    ) as service:
        yield service.address


def _installed_entries(fuzz_cluster: Cluster, crew: list[Worker]) -> Any:
    """The state that must not change: the bystander's job in the database, on the switch, and as its workers hear."""
    [job] = [message_to_dict(_job(fuzz_cluster, crew[0].job))]
    for each in (job, *job["members"]):  # what time alone changes
        for name in [name for name in each if name == "lease_left_s" or name.endswith("_age_s")]:
            del each[name]
    switch = fuzz_cluster.devices[job["switches"][0]]
    assert isinstance(switch, FakeDevice)
    entries = {key: entity for key, entity in switch.entities.items() if f"{job['generation']}" in repr(entity)}
    return job, entries, [worker.beat() for worker in crew]


def _job(fuzz_cluster: Cluster, name: str) -> Any:

    return fuzz_cluster.controller.job(name, counters=False)


def _raw(address: str, method: Method, data: bytes, metadata: tuple[tuple[str, str | bytes], ...]) -> str:
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        send = channel.unary_unary(method.path)
        try:
            method.response.FromString(send(data, timeout=60, metadata=metadata))
        except grpc.RpcError as error:
            code: str = error.code().name
            return code
    return "OK"


def test_random_bytes(fuzz_cluster: Cluster, address: str) -> None:
    rng = random.Random(1)
    crew = fuzz_cluster.run("bystander")
    before = _installed_entries(fuzz_cluster, crew)
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
    assert _installed_entries(fuzz_cluster, crew) == before


def test_random_values(fuzz_cluster: Cluster, address: str) -> None:
    rng = random.Random(2)
    crew, target = fuzz_cluster.run("bystander"), fuzz_cluster.make("target", 3, 8)
    before = _installed_entries(fuzz_cluster, crew)
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
            if name in ("DeleteJob", "CreateJob") and "target" not in [
                job.name for job in fuzz_cluster.controller.jobs()
            ]:
                target = fuzz_cluster.make("target", 3, 8)
        assert set(codes) <= REFUSALS | {"OK"}, codes
        assert codes["OK"] > 10
        assert _installed_entries(fuzz_cluster, crew) == before
        _delete_all_but(JobsClient(channel, ADMIN), "bystander")
        assert JobsClient(channel, ADMIN).switches()[0].slots_used == 16
    assert _installed_entries(fuzz_cluster, crew) == before


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
    "signed": lambda rng: rng.choice((0, 1, -1, 7, 127, -128, 128, -129, (1 << 31) - 1, -1 << 31)),
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
    kinds = {field.TYPE_STRING: "str", field.TYPE_SINT32: "signed"}
    return _VALUES[kinds.get(field.type, "int")](rng)


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
            count = rng.choice((1, 7, 16, 17, 31, 500)) if not depth else rng.randrange(4) if depth == 1 else 0
            present.extend(_item(rng, field, depth) for _ in range(count))
        elif field.message_type is not None:
            present.CopyFrom(_message(rng, type(present), {"ip": f"10.1.0.{rng.randrange(1, 255)}"}, depth + 1))
        else:
            setattr(message, field.name, _VALUES[type(present).__name__](rng))
    return message
