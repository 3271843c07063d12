# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of the controller's page that docs/operating.md shows.

    python -m tests.controlplane.operate.screenshot

Everything in them runs: a native switch, `hopsum controller`, two jobs of several workers, each a process of its own,
that sum vectors over hopsum:// with error feedback, and one job that waits for its workers. In `vectors` rank 2 takes a
pause before every all-reduce, so the others wait for it.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import hopsum
from hopsum.codec import ErrorFeedback
from hopsum_topologies.process import ManagedProcess

from .browser import Browser, find_browser

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "images"
START_S, WATCH_S = 60.0, 75.0
ELEMENTS = {"digits": 200_000, "vectors": 50_000}
WORKERS = {"digits": 4, "vectors": 3, "later": 4}
CODECS = {"digits": "thc", "vectors": "uhc", "later": "thc"}
LATE_JOB, LATE_RANK, PAUSE_S = "vectors", 2, 0.15
STEP_S = 0.05
CONFIG = """\
[controller]
database = "{folder}/state.sqlite"
listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
[[switch]]
name = "leaf1"
driver = "native"
address = "{grpc}"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
service_address = "{udp}"
ports = [{{port = 1, network = "127.0.0.0/8"}}]
"""


def work(url: str, job: str, rank: int) -> None:
    """Sum vectors as one worker until the process is ended."""
    rng = np.random.default_rng(rank)
    x = rng.standard_normal(ELEMENTS[job]).astype(np.float32)
    feedback = ErrorFeedback(x.size)
    with hopsum.connect(url, rank=rank, codec=CODECS[job]) as agent:
        while True:
            time.sleep(STEP_S + (PAUSE_S if (job, rank) == (LATE_JOB, LATE_RANK) else 0.0))
            agent.allreduce(x, feedback=feedback)


class Stage:
    """Processes, and their logs in a folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def start(self, name: str, *command: str) -> ManagedProcess:
        process = ManagedProcess([sys.executable, "-m", *command], self._folder / f"{name}.log")
        self._stack.callback(process.stop)
        return process

    def word(self, process: ManagedProcess, pattern: str) -> str:
        """Wait for a line that has it, and return its group."""
        process.wait_for(lambda: re.search(pattern, process.log_text()) is not None, pattern, START_S)
        found = re.search(pattern, process.log_text())
        assert found is not None
        return found[1]


def pictures(folder: Path, stack: ExitStack, to: Path) -> None:
    """Run it all and take them."""
    stage = Stage(folder, stack)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        udp = f"127.0.0.1:{free.getsockname()[1]}"
    ports = ["--grpc", "127.0.0.1:0", "--udp", f"1={udp},as=10.0.0.254:24677"]
    switch = stage.start("switch", "hopsum_cli.main", "switch", *ports)
    grpc = stage.word(switch, r"ready grpc=(\S+)")
    (folder / "cluster.toml").write_text(CONFIG.format(folder=folder, grpc=grpc, udp=udp))
    controller = stage.start("controller", "hopsum_cli.main", "controller", "--config", str(folder / "cluster.toml"))
    address = stage.word(controller, r"(?m)^ready listen=(\S+)")
    page = stage.word(controller, r"(?m)^page (\S+)$")
    for job, workers in WORKERS.items():
        create = ["job", "create", job, "--workers", str(workers), "--codec", CODECS[job], "--controller", address]
        token = folder / f"{job}.token"
        subprocess.run([sys.executable, "-m", "hopsum_cli.main", *create, "--token-file", str(token)], check=True)
        for rank in range(workers if job in ELEMENTS else 0):
            url = f"hopsum://{address}/{job}?token_file={token}"
            own = ("--work", url, "--job", job, "--rank", str(rank))
            stage.start(f"{job}{rank}", "tests.controlplane.operate.screenshot", *own)
    with Browser(str(find_browser()), folder) as browser:
        browser.look(1180, 900)
        browser.go(page)
        browser.wait_for("document.querySelectorAll('tr.late').length == 1", "the straggler")
        watched_until_s = time.monotonic() + WATCH_S
        while time.monotonic() < watched_until_s:
            time.sleep(1)
            browser.value("1")
        to.mkdir(exist_ok=True)
        for name, width, dark in (("page", 1180, False), ("page-phone", 390, True)):
            browser.look(width, 900, dark=dark)
            (to / f"{name}.png").write_bytes(browser.screenshot())
        assert browser.complaints == []


def main(arguments: Sequence[str]) -> None:
    """Take the pictures, or be one of the workers in them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the pictures (default docs/images)")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work, options.job, options.rank)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pictures(Path(folder), stack, options.to)


if __name__ == "__main__":
    main(sys.argv[1:])
