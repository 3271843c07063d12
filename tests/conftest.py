# SPDX-License-Identifier: Apache-2.0
"""Settings of pytest for all tests: the system tests, and the number of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hopsum_topologies import free_port

from .support.cases_table import cases_table

# A busy machine generates examples slowly: that says nothing about a test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
TESTS = Path(__file__).resolve().parent
SYSTEM = (
    "host/agent/test_agent.py",
    "host/agent/test_failures.py",
    "host/agent/test_laws.py",
    "host/agent/test_long_run.py",
    "host/agent/test_stopped_worker.py",
    "cli/packet/test_counts.py",
    "cli/packet/test_interface.py",
    "cli/test_bench.py",
    "cli/test_bench_controlplane.py",
    "cli/test_codec_compare.py",
    "cli/test_demo.py",
    "cli/test_doctor.py",
    "cli/test_main.py",
    "cli/test_naive.py",
    "cli/test_selftest.py",
    "cli/test_top.py",
    "host/codec/estimation",
    "host/codec/lossless/test_bench.py",
    "host/codec/lossless/test_losses.py",
    "host/codec/test_bench.py",
    "host/codec/test_docs.py",
    "host/codec/test_feedback.py",
    "host/codec/test_laws.py",
    "host/codec/test_memory.py",
    "host/codec/test_options.py",
    "host/codec/test_table_search.py",
    "host/codec/test_theory.py",
    "system/contract",
    "controlplane/cluster/test_crash.py",
    "controlplane/cluster/test_history.py",
    "controlplane/cluster/test_pace.py",
    "controlplane/cluster/test_restart.py",
    "controlplane/cluster/test_switch_processes.py",
    "controlplane/cluster/test_tree_bmv2.py",
    "controlplane/cluster/test_web.py",
    "controlplane/test_shell.py",
    "controlplane/test_switches.py",
    "controlplane/test_takeovers.py",
    "controlplane/test_traffic.py",
    "controlplane/test_trees.py",
    "controlplane/tofino/test_driver.py",
    "host/diagnosis/test_controller_native.py",
    "host/diagnosis/test_doctor.py",
    "host/diagnosis/test_doctor_namespaces.py",
    "evaluation/drill/test_controller_drills.py",
    "evaluation/drill/test_drills.py",
    "frame/test_guides.py",
    "frame/test_p4_build.py",
    "frame/test_readme.py",
    "frame/test_record_cuda.py",
    "frame/test_tna_build.py",
    "frame/test_tutorial_own_p4.py",
    "frame/test_wheel.py",
    "system/fuzz",
    "system/hostile",
    "system/labs",
    "system/model",
    "controlplane/operate",
    "host/plan/test_command.py",
    "host/protocol/test_batch.py",
    "host/protocol/test_generation_change.py",
    "host/protocol/test_pair.py",
    "host/protocol/test_repair.py",
    "host/protocol/test_sums.py",
    "host/protocol/test_trees.py",
    "system/ptf",
    "evaluation/report",
    "host/hosts/test_hosts.py",
    "host/local_group/test_processes.py",
    "host/hosts/test_worker_switch.py",
    "host/rpc/test_cluster.py",
    "host/rpc/test_dead_connections.py",
    "host/rpc/test_generations.py",
    "host/rpc/test_restart.py",
    "host/rpc/test_shard_cluster.py",
    "host/rpc/test_source.py",
    "host/rpc/test_stubs.py",
    "host/rpc/test_unfinished.py",
    "system/soak",
    "system/systemd",
    "switch/native",
    "switch/programs/test_against_bmv2.py",
    "switch/programs/test_robustness.py",
    "switch/programs/test_yardstick.py",
    "switch/random_programs",
    "switch/server/test_address.py",
    "switch/server/test_keepalive.py",
    "switch/server/test_loops.py",
    "switch/server/test_metrics.py",
    "switch/server/test_process.py",
    "switch/server/test_shell.py",
    "system/tna",
    "system/topologies",
    "system/walkthrough",
    "system/year",
    "topologies",
    "host/torch/test_agreement.py",
    "host/torch/test_collective.py",
    "host/torch/test_compare.py",
    "host/torch/test_collective_example.py",
    "host/torch/test_ddp.py",
    "host/torch/test_diloco_sites.py",
    "host/torch/test_example.py",
    "host/torch/test_frameworks.py",
    "host/torch/test_fsdp.py",
    "host/torch/test_group.py",
    "host/torch/test_launch.py",
    "host/torch/test_published.py",
    "host/torch/test_quorum.py",
    "host/torch/test_ray.py",
    "host/torch/test_replaced.py",
    "host/torch/test_register.py",
    "host/torch/test_switch_lost.py",
    "host/torch_codec",
    "host/torch_device/test_ranks.py",
    "host/transport/test_generation_change.py",
    "host/transport/test_load.py",
    "host/transport/test_raw.py",
    "vectors",
)
"""Folders and modules that need processes, root, the network, or more than some seconds."""
LONGEST = ("evaluation/report/test_sections.py", "system/year", "system/ptf/test_ptf.py", "frame/test_wheel.py")
"""Tests of more than a minute each. They come first: a long one at the end would run alone."""
NOT_SYSTEM = "not system"
"""The mark expression of `make check`."""


def pytest_configure(config: pytest.Config) -> None:
    missing = [where for where in (*SYSTEM, *LONGEST) if not (TESTS / where).exists()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py: SYSTEM or LONGEST names what is not there: {', '.join(missing)}")
    if "PYTEST_XDIST_WORKER" in os.environ:
        # As many processes as cores run tests: a pool of threads in each of them would take turns.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        _share_ports()


def _share_ports() -> None:
    """Let eight processes that run tests choose from different ports: seconds can pass until a port is bound to."""
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    free_port.candidates = free_port.candidates[number % 8 :: 8]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one process more than cores for unit tests, which compute, and twice as many where tests wait."""
    cores = len(os.sched_getaffinity(0))
    return cores + 1 if config.option.markexpr == NOT_SYSTEM else 2 * cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave system tests out unread: what they import takes seconds."""
    return True if config.option.markexpr == NOT_SYSTEM and _is_below(collection_path, SYSTEM) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_below(item.path, SYSTEM):
            item.add_marker("system")
    items.sort(key=lambda item: not _is_below(item.path, LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    table = cases_table(each for report in reports for each in report.user_properties)
    if table:
        terminalreporter.section("data-plane cases")
        terminalreporter.write_line(table)


def _is_below(path: Path, places: tuple[str, ...]) -> bool:
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix().startswith(places)
