# SPDX-License-Identifier: Apache-2.0
"""The entries of a job, proved by its packets through the embedded switch."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopsum_controlplane import Job, JobSpec, SwitchController, SwitchEndpoint, artifacts
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_topologies import NativeSwitch
from hopsum_wire import HOPSUM_UDP_PORT, Header, Kind, Op, pack_codes
from hopsum_wire.frames import FramePath, build_frame

pytestmark = pytest.mark.system
WORKERS = 3
CODES = 1024
RESULT_AT = 74  # Ethernet, IPv4, UDP and hopsum headers
ANSWER_S = 60.0


@pytest.fixture
def network(tmp_path: Path, pipeline: PipelineConfig) -> Iterator[tuple[NativeDevice, dict[int, socket.socket]]]:
    """Start a switch with a cable to each worker."""
    paths = {port: tmp_path / f"port{port}" for port in range(1, WORKERS + 1)}
    with ExitStack() as stack:
        switch = stack.enter_context(NativeSwitch(*artifacts.compiled_program(), unix=paths))
        device = stack.enter_context(NativeDevice(switch.address))
        ensure_pipeline(device, pipeline)
        cables = {}
        for port, path in paths.items():
            cable = stack.enter_context(closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            cable.settimeout(ANSWER_S)
            cable.bind(f"{path}.peer")
            cable.connect(str(path))
            cables[port] = cable
        yield device, cables


def update(job: Job, rank: int, codes: np.ndarray, **changes: int) -> bytes:
    worker = job.spec.workers[rank]
    path = FramePath(
        src_mac=mac_to_int(worker.mac),
        dst_mac=mac_to_int(job.switch.mac),
        src_ip=ipv4_to_int(worker.ip),
        dst_ip=ipv4_to_int(job.switch.ip),
        src_port=worker.udp_port,
    )
    payload = pack_codes(codes).tobytes()
    header = Header(kind=Kind.UPDATE, op=Op.LOOKUP_ADD8, worker=rank, slot=3, generation=job.generation, round=1)
    return build_frame(path, replace(header, count=CODES, length=len(payload), **changes), payload)


def test_the_sum_reaches_every_worker(
    network: tuple[NativeDevice, dict[int, socket.socket]],
    make_spec: Callable[..., JobSpec],
    switch_endpoint: SwitchEndpoint,
) -> None:
    device, cables = network
    controller = SwitchController(device, switch_endpoint)
    controller.create_job(make_spec("other", workers=WORKERS))  # so that nothing of the job's is number 0
    job = controller.create_job(make_spec(workers=WORKERS))
    codes = np.random.default_rng(7).integers(0, 16, (WORKERS, CODES), dtype=np.uint8)
    codes[0, :16] = range(16)  # every value of the table
    for rank in range(WORKERS):
        cables[rank + 1].send(update(job, rank, codes[rank]))

    expected = np.array(job.spec.table, dtype=np.uint8)[codes].sum(axis=0, dtype=np.uint8)
    for rank, worker in enumerate(job.spec.workers):
        frame = cables[rank + 1].recv(2048)
        assert np.array_equal(np.frombuffer(frame, np.uint8)[RESULT_AT:], expected)
        assert frame[:6] == mac_to_int(worker.mac).to_bytes(6, "big")
        assert frame[6:12] == mac_to_int(switch_endpoint.mac).to_bytes(6, "big")
        assert frame[26:34] == ipv4_to_int(switch_endpoint.ip).to_bytes(4, "big") + ipv4_to_int(worker.ip).to_bytes(
            4, "big"
        )
        assert frame[34:38] == HOPSUM_UDP_PORT.to_bytes(2, "big") + worker.udp_port.to_bytes(2, "big")
    events = controller.job_counters(job)
    assert (events["added"], events["completed"], sum(events.values())) == (WORKERS, 1, WORKERS + 1)
    assert sum(controller.drop_counters().values()) == 0


def test_only_packets_of_the_job_are_admitted(
    network: tuple[NativeDevice, dict[int, socket.socket]],
    make_spec: Callable[..., JobSpec],
    switch_endpoint: SwitchEndpoint,
) -> None:
    device, cables = network
    controller = SwitchController(device, switch_endpoint)
    job = controller.create_job(make_spec(workers=WORKERS, slots=16))
    codes = np.zeros(CODES, dtype=np.uint8)
    elsewhere = replace(job, spec=replace(job.spec, workers=make_spec(workers=WORKERS + 1).workers[1:]))
    cables[1].send(update(job, 0, codes, generation=job.generation + 1))
    cables[1].send(update(job, 0, codes, worker=WORKERS))
    cables[2].send(update(job, 0, codes))
    cables[1].send(update(elsewhere, 0, codes))
    cables[1].send(update(job, 0, codes, slot=16))
    cables[1].send(update(job, 0, codes, slot=15))
    for rank in range(WORKERS):  # a complete round: the packets before it have been dealt with
        cables[1 if rank == 0 else rank + 1].send(update(job, rank, codes))
    cables[1].recv(2048)

    drops = controller.drop_counters()
    assert {reason: packets for reason, packets in drops.items() if packets} == {
        "unknown_generation": 1,
        "unknown_worker": 1,
        "wrong_port": 1,
        "wrong_source": 1,
        "bad_slot": 1,
    }
    controller.delete_job(job)
    cables[1].send(update(job, 0, codes))
    new = controller.create_job(make_spec(workers=1))
    cables[1].send(update(new, 0, codes))
    cables[1].recv(2048)
    assert controller.drop_counters()["unknown_generation"] == 2
