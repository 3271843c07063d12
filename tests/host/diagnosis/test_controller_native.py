# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor --controller` and a switch that is a process: it dies, another controller takes it, or a program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.diagnosis.rows import DiagnosisReport, Status
from hopsum_controlplane import artifacts
from hopsum_controlplane.devices.base import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_topologies import NativeSwitch

from .test_controller import Practice

pytestmark = pytest.mark.system
DEADLINE_S = 300.0
POLL_S = 0.05


class Ward:
    """A doctor's practice with one switch process."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.pipeline = PipelineConfig.load(*artifacts.compiled_program())
        self.start()
        self.practice = Practice(folder, self._open, pipeline=self.pipeline)
        stack.callback(self.practice.close)
        stack.callback(self.practice.controller.close)

    def start(self) -> None:
        self.process = self._stack.enter_context(NativeSwitch(*artifacts.compiled_program()))

    def connect(self, *election_id: int) -> Device:
        device = open_device("native", self.process.address, election_id=election_id)  # type: ignore[arg-type]
        self._stack.callback(device.close)
        return device

    def examine_until(self, check: str) -> DiagnosisReport:
        """Let the controller look after its switch until this check fails."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            self.practice.cluster.clock.sleep(40)  # audits, and whatever pauses there are
            self.practice.controller.reconcile("s1")
            report = self.practice.examine()
            if report[check].status is Status.FAIL:
                return report
            assert time.monotonic() < until_s, report.rows
            time.sleep(POLL_S)

    def _open(self) -> Device:
        return ReconnectingDevice(lambda: self.connect(1, 0), self.pipeline.cookie)


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with ExitStack() as stack:
        yield Ward(stack, tmp_path)


def first_failure(report: DiagnosisReport) -> str:
    return next(row.check for row in report.rows if row.status is Status.FAIL)


def test_a_switch_that_died(ward: Ward) -> None:
    assert ward.practice.examine().good
    ward.process.stop()
    report = ward.examine_until("switches")
    assert first_failure(report) == "switches"
    assert report["primary"].status is report["program"].status is Status.PASS
    ward.start()
    until_s = time.monotonic() + DEADLINE_S
    while not ward.practice.examine().good:  # it comes back by itself
        assert time.monotonic() < until_s
        ward.practice.cluster.clock.sleep(40)
        ward.practice.controller.reconcile("s1")
        time.sleep(POLL_S)


def test_another_controller_has_it(ward: Ward) -> None:
    ward.connect(9, 0)
    report = ward.examine_until("primary")
    assert first_failure(report) == "primary"
    assert "election id 1 is not the primary's" in report["primary"].finding


def test_it_was_given_another_program(ward: Ward) -> None:
    ward.process.stop()
    ward.start()
    other = ward.connect(0, 5)
    other.set_pipeline_config(dataclasses.replace(ward.pipeline, p4info=ward.pipeline.p4info + "\n"))
    other.close()
    report = ward.examine_until("program")
    assert first_failure(report) == "program"
    assert f"{ward.pipeline.cookie:x}" in report["program"].finding
