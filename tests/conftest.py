# SPDX-License-Identifier: Apache-2.0
"""What pytest does with all tests: which are system tests, and how many processes run them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SYSTEM = (
    "cli/test_demo.py",
    "controlplane/cluster/test_switch_processes.py",
    "controlplane/cluster/test_tree_bmv2.py",
    "drill/test_controller_drills.py",
    "drill/test_drills.py",
    "frame/test_p4_build.py",
    "frame/test_readme.py",
    "frame/test_tna_build.py",
    "frame/test_wheel.py",
    "fuzz",
    "operate",
    "ptf",
    "soak",
    "tna",
    "topologies",
    "vectors",
)
"""Folders and modules that need processes, root, the network or minutes. Single tests carry the mark themselves."""
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
    """Return one process per core for unit tests, which compute, and two where most tests wait for other processes."""
    cores = len(os.sched_getaffinity(0))
    return cores if config.option.markexpr == NOT_SYSTEM else 2 * cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave system tests out unread: what they import takes seconds."""
    return True if config.option.markexpr == NOT_SYSTEM and _is_system(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_system(item.path):
            item.add_marker("system")


def _is_system(path: Path) -> bool:
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix().startswith(SYSTEM)
