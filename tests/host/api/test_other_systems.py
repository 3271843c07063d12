# SPDX-License-Identifier: Apache-2.0
"""Systems without what hopsum takes from Linux: sums of threads work, all else is refused with the reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hopsum
from hopsum.config import ConfigError
from hopsum_cli.main import main

REFUSED = (
    r"hopsum runs on Linux, and this is {}: take a Linux machine, a container or WSL2\. "
    r"Only memory://NAME\?workers=N, .* works here"
)
LACKING = {
    "darwin": {"os": "eventfd memfd_create sched_getaffinity", "socket": "AF_NETLINK AF_PACKET TCP_USER_TIMEOUT"},
    "win32": {
        "os": "eventfd memfd_create sched_getaffinity register_at_fork fork geteuid uname O_NOFOLLOW",
        "socket": "AF_NETLINK AF_PACKET TCP_USER_TIMEOUT AF_UNIX CMSG_SPACE MSG_DONTWAIT SCM_RIGHTS",
        "select": "poll epoll",
        "signal": "SIGKILL SIGHUP SIGALRM",
        "": "fcntl resource termios pwd grp",
    },
}
"""Names of modules of Python that a system has not, and modules that it has not."""
SUM = """
import sys, os, select, signal, socket
import asyncio, concurrent.futures, logging, multiprocessing, numpy, msgspec
system, lacking = sys.argv[1], eval(sys.argv[2])
for module in lacking.pop("", "").split():
    sys.modules[module] = None
for module, names in lacking.items():
    for name in names.split():
        delattr(sys.modules[module], name)
sys.platform = system

import hopsum
from concurrent.futures import ThreadPoolExecutor

def work(rank):
    with hopsum.connect("memory://here?workers=2", rank=rank, codec="fixed", backend="numpy") as comm:
        return hopsum.allreduce(numpy.float32([rank, 2]), comm).tolist()

with ThreadPoolExecutor(2) as pool:
    print(*pool.map(work, range(2)))
"""


@pytest.mark.parametrize("system", LACKING)
def test_threads_sum_where_there_is_no_linux(system: str) -> None:
    command = [sys.executable, "-c", SUM, system, repr(LACKING[system])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[0.5, 2.0] [0.5, 2.0]\n", "", 0)


@pytest.mark.parametrize("url", ["hosts://", "hopsum://127.0.0.1:9/job", "file:///job.json", "collective://gloo"])
def test_a_url_of_processes_is_refused_there(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match=REFUSED.format("darwin")):
        hopsum.connect(url, rank=0)


@pytest.mark.parametrize("words", [["switch", "--help"], ["bench", "codec"], ["demo"]])
def test_a_command_is_refused_there(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=REFUSED.format("win32")):
        main(words)
