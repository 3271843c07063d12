# SPDX-License-Identifier: Apache-2.0
"""The capture of a switch that loses frames, decoded: the counts are the switch's own."""

from __future__ import annotations

import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum_cli.packet.packet_command import main
from hopsum_controlplane import Job, JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint, write_membership
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.server import SwitchServer
from hopsum_topologies.free_port import free_port
from hopsum_wire import HOPSUM_UDP_PORT

from ...switch.server.controller import wait_until

pytestmark = pytest.mark.system
WORKERS, ELEMENTS, LOSS = 3, 8_000, 0.1


def test_a_lossy_all_reduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(SwitchServer(capture_folder=tmp_path, make_engine=engine_maker(Backend.AUTO)))
        udp = UdpPort.bind(1, UdpAddress("127.0.0.1", 0), UdpAddress("10.0.0.254", HOPSUM_UDP_PORT))
        server.dataplane.bind(1, udp)
        device = stack.enter_context(NativeDevice(server.grpc_address, server.device_id))
        device.set_pipeline_config(PipelineConfig.load(*compiled_program()))
        controller = SwitchController(device, SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254"))
        job = make_job(controller, tmp_path / "job.json", udp.address)
        controller.set_loss(1, LOSS, LOSS)

        def work(rank: int) -> np.ndarray[Any, Any]:
            url = f"file://{tmp_path}/job.json"
            with hopsum.connect(url, rank=rank, codec="fixed", deadline_s=300.0) as communicator:
                return hopsum.allreduce(np.full(ELEMENTS, rank, np.float32), communicator)

        with ThreadPoolExecutor(WORKERS) as pool:
            means = list(pool.map(work, range(WORKERS)))
        assert all(np.array_equal(means[0], mean) for mean in means)
        path = tmp_path / "port1.pcapng"
        wait_until(lambda: counted(controller, job) == decoded(path, job, capsys))
        counts, seen = counted(controller, job), decoded(path, job, capsys)
        assert counts == seen
        assert counts["in"] > WORKERS * ELEMENTS // 256  # nothing is proved by an empty capture
        assert sum(controller.loss_counters()[1]) > 0


def make_job(controller: SwitchController, path: Path, switch: UdpAddress) -> Job:
    ports = [free_port(socket.SOCK_DGRAM) for _ in range(WORKERS)]
    workers = [WorkerEndpoint(rank, 1, "02:00:00:00:01:01", "127.0.0.1", port) for rank, port in enumerate(ports)]
    job = controller.create_job(JobSpec("counts", tuple(workers), 16))
    write_membership(job, path, send_to=dict.fromkeys(range(WORKERS), tuple(switch)))
    return job


def counted(controller: SwitchController, job: Job) -> dict[str, int]:
    """Return what the switch's counters say of packets that came in and went out."""
    events, lost = controller.job_counters(job), controller.loss_counters().get(1)
    lost_in, lost_out = (0, 0) if lost is None else lost
    taken = sum(events[name] for name in ("added", "duplicate", "answered", "stale", "probed", "fault"))
    replies = events["completed"] * WORKERS + events["answered"]
    return {"in": taken + lost_in, "out": replies + events["stale"] + events["probed"] - lost_out}


def decoded(path: Path, job: Job, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Return the same from the capture, as far as a capture has it."""
    assert main(["decode", "--json", str(path)]) == 0
    values = json.loads(capsys.readouterr().out)
    (file,) = values["files"]
    assert (file["foreign"], file["malformed"]) == ({}, {})
    assert {packet["generation"] for packet in values["packets"]} == {job.generation}
    packets = Counter({"UPDATE": 0, "PROBE": 0})
    packets.update(packet["kind"] for packet in values["packets"])
    arrived = packets.pop("UPDATE") + packets.pop("PROBE")
    return {"in": arrived, "out": sum(packets.values())}
