# SPDX-License-Identifier: Apache-2.0
"""The same control-plane writes and the same frames to bmv2 and to this engine; what comes out must be the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.v1.p4runtime_pb2 import DigestList, Entity, Update

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.engine import Engine
from hopsum_switch.p4runtime.entities import write_update
from hopsum_switch.p4runtime.pipeline_config import RunningPipeline, verify
from hopsum_switch.program import load_program
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from ..server import test_service_digests
from ..server.controller import Controller
from . import bmv2, test_mirror, test_police, test_rounds, test_segments

HERE = Path(__file__).parent

pytestmark = [pytest.mark.system, pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))]


class Both:
    """bmv2 and the engine, with the same program and the same entries."""

    def __init__(self, name: str, reference: bmv2.Bmv2, controller: Controller) -> None:
        program = (HERE / name / f"{name}.json").read_bytes()
        self.info = text_format.Parse((HERE / name / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())
        controller.set_pipeline("VERIFY_AND_COMMIT", p4info=self.info, program=program)
        self._reference, self._controller = reference, controller
        self._target = RunningPipeline(verify(self.info, program), Engine(load_program(program.decode())))

    def write(self, kind: int, **entity: object) -> None:
        """Write an entity to both."""
        update = Update(type=kind, entity=Entity(**entity))
        self._controller.write(update)
        write_update(self._target, update)

    def exchange(self, port: int, frame: bytes) -> tuple[Counter[tuple[int, bytes]], Counter[tuple[int, bytes]]]:
        """Return what bmv2 and the engine send because of a frame, in no order."""
        expected = Counter(self._reference.process(port, frame))
        return expected, Counter((output.port, output.frame) for output in self._target.engine.process(port, frame))

    def agree(self, port: int, frame: bytes) -> int:
        """Compare what comes of a frame; return how many frames that were."""
        expected, got = self.exchange(port, frame)
        assert got == expected, f"port {port}, frame {frame.hex()}"
        return expected.total()


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bmv2.Bmv2, Controller]]:
    switch = bmv2.running(tmp_path_factory.mktemp("bmv2"))
    with switch as running, Controller(running.address, bmv2.DEVICE_ID) as controller:
        yield running, controller.become_primary()


@pytest.fixture
def both(request: pytest.FixtureRequest, controlled: tuple[bmv2.Bmv2, Controller]) -> Both:
    return Both(request.param, *controlled)


@pytest.mark.parametrize("both", ["segments"], indirect=True)
def test_segments_agrees(both: Both) -> None:
    rng = random.Random(14)
    sent = sum(both.agree(0, test_segments.frame(*test_segments.random_case(rng))) for _ in range(200))
    assert sent > 80


@pytest.mark.parametrize("both", ["mirror"], indirect=True)
def test_mirror_agrees(both: Both) -> None:
    rng = random.Random(15)
    for session, ports in ((test_mirror.SAMPLES, [7, 8]), (test_mirror.AUDITS, [9])):
        replicas = [{"egress_port": port, "instance": number} for number, port in enumerate(ports, 1)]
        entry = {"clone_session_entry": {"session_id": session, "replicas": replicas}}
        both.write(Update.INSERT, packet_replication_engine_entry=entry)
    seen = 0
    for _ in range(200):
        port, fields, rest = test_mirror.random_case(rng)
        expected, got = both.exchange(port, test_mirror.item(*fields) + rest)
        assert quiet(got) == quiet(expected), (port, fields, rest)
        seen += expected.total()
    assert seen > 400


def quiet(outputs: Counter[tuple[int, bytes]]) -> Counter[tuple[int, bytes]]:
    """Blank the random number, which is somewhere else behind a report."""
    result: Counter[tuple[int, bytes]] = Counter()
    for (port, frame), count in outputs.items():
        at = test_mirror.NOISE + (6 if port > 2 else 0)
        assert port == 7 or port == 8 or frame[at] in test_mirror.NOISES
        result[port, frame[:at] + b"\0" + frame[at + 1 :]] += count
    return result


@pytest.mark.parametrize("both", ["rounds"], indirect=True)
def test_rounds_agrees(both: Both) -> None:
    for port, resubmits, recirculations, marks, rest in test_rounds.CASES:
        assert both.agree(port, test_rounds.frame(resubmits, recirculations, marks, rest)) == 1
    for recirculations in range(5, 12):  # the stack runs over, and its end is lost
        both.agree(1, test_rounds.frame(1, recirculations, [(1, 3), (0, 4)], b"\0\0\0rest"))


@pytest.mark.parametrize("both", ["police"], indirect=True)
def test_police_agrees(both: Both) -> None:
    """Buckets that do not fill again, so that time does not matter."""
    table = next(t.preamble.id for t in both.info.tables)
    forward = next(a.preamble.id for a in both.info.actions if a.preamble.name.endswith("forward"))
    config = {"cir": 0, "cburst": 25, "pir": 0, "pburst": 60}
    for flow in (1, 2):
        entry = {
            "table_id": table,
            "match": [{"field_id": 1, "exact": {"value": bytes([flow])}}],
            "action": {"action": {"action_id": forward, "params": [{"param_id": 1, "value": b"\3"}]}},
        }
        if flow == 1:
            entry["meter_config"] = config
        both.write(Update.INSERT, table_entry=entry)
    meter = both.info.meters[0].preamble.id
    packets = {"cir": 0, "cburst": 3, "pir": 0, "pburst": 5}
    both.write(Update.MODIFY, meter_entry={"meter_id": meter, "index": {"index": 5}, "config": packets})
    rng = random.Random(16)
    frames = [test_police.item(rng.choice([4, 5]), rng.choice([1, 1, 2, 3]), 10 + rng.randrange(4)) for _ in range(40)]
    assert 20 < sum(both.agree(0, frame) for frame in frames) < 40


def learner_frame(rng: random.Random) -> bytes:
    kind = rng.choice([0x1234, 0x1234, test_service_digests.PROBE])
    return test_service_digests.frame(rng.randrange(1, 12), kind, rng.choice([0, 9, 0x123]))


def collect(controller: Controller, count: int) -> tuple[list[tuple[int, ...]], list[DigestList]]:
    """Wait until so many samples of digests have come; return them with their digest's id, and the lists."""
    found: list[tuple[int, ...]] = []
    lists: list[DigestList] = []
    while len(found) < count:
        lists.append(test_service_digests.told(controller))
        found += [(lists[-1].digest_id, *sample) for sample in test_service_digests.samples(lists[-1])]
    return found, lists


@pytest.mark.parametrize("ack_timeout_ns", [0, 3600 * 10**9])
def test_learner_agrees(controlled: tuple[bmv2.Bmv2, Controller], ack_timeout_ns: int) -> None:
    """Digests of random frames; with a time for acknowledgements each sample comes once, else all frames differ."""
    reference, controller = controlled
    with SwitchServer(device_id=bmv2.DEVICE_ID) as switch, Controller(switch.grpc_address, bmv2.DEVICE_ID) as own:
        for each in (controller, own.become_primary()):
            program = (HERE / "learner" / "learner.json").read_bytes()
            each.set_pipeline("VERIFY_AND_COMMIT", p4info=test_service_digests.INFO, program=program)
            for name in test_service_digests.IDS:
                config = {"max_list_size": 1, "ack_timeout_ns": ack_timeout_ns}
                each.write(test_service_digests.configure(Update.INSERT, name, **config))
        rng, seen = random.Random(17), set[tuple[int, bytes]]()
        for _ in range(60):
            port, frame = rng.randrange(1, 4), learner_frame(rng)
            if not ack_timeout_ns and (port, frame) in seen:
                continue
            seen.add((port, frame + bytes(len(seen) if frame[12:14] == b"\x88\xb5" and not ack_timeout_ns else 0)))
            reference.process(port, frame)
            switch.dataplane.inject(port, frame)
        await_that(lambda: switch.dataplane.stats()["digests"].get("sent", 0) > 0)
        count = switch.dataplane.stats()["digests"]["sent"]
        (expected, lists), (got, _) = collect(controller, count), collect(own, count)
        assert got == expected
        assert count > 20
        for message in lists:
            controller.send(test_service_digests.acknowledge(message))
