# SPDX-License-Identifier: Apache-2.0
"""Settings of pytest for all tests: the system tests, the number of processes, and what a test opens and closes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hopsum_topologies import free_port

from .support.cases_table import cases_table

# A busy machine generates examples slowly: that says nothing about a test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
SYSTEM = Path(__file__).resolve().parent / "system"
MARKED = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.system\b", re.MULTILINE)
"""How a module outside tests/system says that all its tests are system tests: its text is searched, not imported."""
NO_SHELL = "p4runtime-shell is not installed. It pins protobuf below 3.21: `make test-shell` has an environment for it"
NOT_SYSTEM = "not system"
"""The mark expression of `make check`."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pytest_configure() -> None:
    # Tests of machine code mean machine code, also where numba's cache is empty.
    os.environ.setdefault("HOPSUM_COMPILED", "wait")
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
    return True if config.option.markexpr == NOT_SYSTEM and _is_system(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(SYSTEM):
            item.add_marker("system")
        if item.get_closest_marker("shell") and find_spec("p4runtime_sh") is None:
            item.add_marker(pytest.mark.skip(reason=NO_SHELL))
    items[:] = _in_shares(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _in_shares(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the items in another order: each process begins with long ones, which at the end would run alone.

    `--dist worksteal` cuts the list into a share for each process. The long tests of a module stay together.
    """
    long: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            long.setdefault(item.path, []).append(item)
    rest = iter([item for item in items if not item.get_closest_marker("long")])
    ordered: list[pytest.Item] = []
    for number in range(processes):
        share = (len(items) - len(ordered)) // (processes - number)
        own = [item for module in list(long.values())[number::processes] for item in module]
        ordered += [*own, *islice(rest, max(0, share - len(own)))]
    return [*ordered, *rest]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    table = cases_table(each for report in reports for each in report.user_properties)
    if table:
        terminalreporter.section("data-plane cases")
        terminalreporter.write_line(table)


def _is_system(path: Path) -> bool:
    if path.is_relative_to(SYSTEM):
        return True
    return path.name.startswith("test_") and path.suffix == ".py" and MARKED.search(path.read_text()) is not None
