# SPDX-License-Identifier: Apache-2.0
"""Settings of pytest for all tests: the system tests, and the number of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .cases_table import cases_table

# A busy machine generates examples slowly: that says nothing about a test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
TESTS = Path(__file__).resolve().parent
SYSTEM = (
    "agent/test_agent.py",
    "agent/test_failures.py",
    "agent/test_laws.py",
    "agent/test_long_run.py",
    "agent/test_stopped_worker.py",
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
    "codec/estimation",
    "codec/lossless/test_bench.py",
    "codec/lossless/test_losses.py",
    "codec/test_bench.py",
    "codec/test_docs.py",
    "codec/test_feedback.py",
    "codec/test_laws.py",
    "codec/test_memory.py",
    "codec/test_options.py",
    "codec/test_table_search.py",
    "codec/test_theory.py",
    "contract",
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
    "diagnosis/test_controller_native.py",
    "diagnosis/test_doctor.py",
    "diagnosis/test_doctor_namespaces.py",
    "drill/test_controller_drills.py",
    "drill/test_drills.py",
    "frame/test_p4_build.py",
    "frame/test_readme.py",
    "frame/test_tna_build.py",
    "frame/test_wheel.py",
    "fuzz",
    "model",
    "operate",
    "plan/test_command.py",
    "protocol/test_batch.py",
    "protocol/test_generation_change.py",
    "protocol/test_pair.py",
    "protocol/test_repair.py",
    "protocol/test_sums.py",
    "protocol/test_trees.py",
    "ptf",
    "report",
    "rpc/test_cluster.py",
    "rpc/test_dead_connections.py",
    "rpc/test_generations.py",
    "rpc/test_restart.py",
    "rpc/test_source.py",
    "rpc/test_stubs.py",
    "rpc/test_unfinished.py",
    "soak",
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
    "tna",
    "topologies",
    "torch/test_agreement.py",
    "torch/test_collective.py",
    "torch/test_collective_example.py",
    "torch/test_ddp.py",
    "torch/test_example.py",
    "torch/test_group.py",
    "torch/test_published.py",
    "torch/test_replaced.py",
    "torch/test_register.py",
    "torch_codec",
    "transport/test_generation_change.py",
    "transport/test_load.py",
    "transport/test_raw.py",
    "vectors",
)
"""Folders and modules that need processes, root, the network, or more than some seconds."""
NOT_SYSTEM = "not system"
"""The mark expression of `make check`."""


def pytest_configure(config: pytest.Config) -> None:
    missing = [where for where in SYSTEM if not (TESTS / where).exists()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py: SYSTEM names what is not there: {', '.join(missing)}")
    if "PYTEST_XDIST_WORKER" in os.environ:
        # As many processes as cores run tests: a pool of threads in each of them would take turns.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one process more than cores for unit tests, which compute, and twice as many where tests wait."""
    cores = len(os.sched_getaffinity(0))
    return cores + 1 if config.option.markexpr == NOT_SYSTEM else 2 * cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave system tests out unread: what they import takes seconds."""
    return True if config.option.markexpr == NOT_SYSTEM and _is_system(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_system(item.path):
            item.add_marker("system")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    table = cases_table(each for report in reports for each in report.user_properties)
    if table:
        terminalreporter.section("data-plane cases")
        terminalreporter.write_line(table)


def _is_system(path: Path) -> bool:
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix().startswith(SYSTEM)
