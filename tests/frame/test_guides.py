# SPDX-License-Identifier: Apache-2.0
"""The code of README, getting-started and of the guides runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum_controlplane.artifacts import compiled_program
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch
from hopsum_topologies.free_port import free_port

from ..support.processes import run_hopsum

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120


def blocks(page: str, language: str, word: str) -> list[str]:
    """Return the blocks of a page that have a word."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    return [each for each in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if word in each]


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, "guide", "exec"), names)
    return names


def on_two_ranks(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(2)))


class Model:
    """A program's model of one parameter vector, with the methods that the guide's loop calls."""

    def __init__(self) -> None:
        self.step = 0
        self.weights = np.zeros(1000, np.float32)

    def load(self, state: bytes) -> None:
        raise AssertionError("no rank is new here")

    def dump(self) -> bytes:
        return self.weights.tobytes()

    def gradient(self, batch: np.ndarray) -> np.ndarray:
        return batch - self.weights

    def apply(self, mean: np.ndarray) -> None:
        self.weights += mean
        self.step += 1


def test_the_first_sum_of_the_guide() -> None:
    (code,) = blocks("docs/host", "python", "a switch on every host sums")
    code = code.replace('"hosts://"', '"memory://guide-first?workers=2", rank=rank')
    gradient = np.linspace(-1, 1, 1000, dtype=np.float32)
    for names in on_two_ranks(lambda rank: run(code, {"rank": rank, "gradient": gradient, "other": -gradient})):
        assert np.mean((names["mean"] + gradient) ** 2) < 0.05 * np.mean(gradient**2)


def test_the_loop_that_survives_lost_workers_trains() -> None:
    """Here no worker is lost: tests/host/rpc and tests/host/torch replace workers of such loops."""
    (code,) = blocks("docs/host", "python", "except WorkersReplacedError")
    code = code.replace("hopsum://10.0.0.1:4700/digits?token_file=digits.token", "memory://guide-loop?workers=2")

    def work(rank: int) -> Model:
        batches = iter([np.full(1000, rank + 1, np.float32)] * 5)
        model = Model()
        run(code, {"rank": rank, "model": model, "steps": 5, "batches": batches})
        return model

    first, second = on_two_ranks(work)
    assert first.step == second.step == 5
    assert np.array_equal(first.weights, second.weights)
    assert np.mean(first.weights) == pytest.approx(1.5, rel=0.1)


def test_the_recovery_of_state_dicts_trains() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (code,) = blocks("docs/host", "python", "StateDictRecovery(")
    assert code.rstrip().endswith("...")
    code = code.replace("        ...", "        train()")

    def work(rank: int) -> Any:
        model = torch.nn.Linear(4, 1)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with hopsum.connect("memory://guide-recovery?workers=2", rank=rank) as comm:
            names: dict[str, Any] = {"comm": comm, "model": model, "optimizer": optimizer, "step": 0, "steps": 3}

            def train() -> None:
                model.weight.grad = hopsum.allreduce(torch.full((1, 4), float(rank)), comm, name="weight")
                optimizer.step()
                names["step"] += 1

            names |= {"load": None, "train": train}
            run(code, names)
            assert names["step"] == 3
        return model.weight.detach()

    assert torch.equal(*on_two_ranks(work))


@contextmanager
def switch_of(block: str, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run the block's `hopsum switch` with the compiled program, in a folder; its UDP port is `port`."""
    program, p4info = compiled_program()
    (line,) = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("hopsum switch")]
    words = shlex.split(line)[1:]
    words[words.index("--program") + 1], words[words.index("--p4info") + 1] = str(program), str(p4info)
    words[words.index("--udp") + 1] = words[words.index("--udp") + 1].replace(":24677,", f":{port},")
    if "--grpc" not in words:
        words += ["--grpc", "127.0.0.1:0"]
    words[words.index("--grpc") + 1] = "127.0.0.1:0"
    command = [sys.executable, "-m", "hopsum_cli.main", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def grpc_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready = re.fullmatch(r"ready grpc=(\S+) device_id=0\n", process.stdout.readline())
    assert ready
    return ready[1]


def command(words: str, folder: Path, typed: str = "") -> str:
    environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "dumb"}
    done = run_hopsum(*shlex.split(words)[1:], cwd=folder, input=typed, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_packets_are_sent_captured_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scapy", reason="scapy is not installed")
    (sending,) = blocks("docs/packets", "sh", "hopsum packet send")
    (capturing,) = blocks("docs/packets", "sh", "--pcap captures")
    (reading,) = blocks("docs/packets", "python", "rdpcap")
    (dissector,) = blocks("docs/packets", "sh", "hopsum.lua")
    switch, worker = (free_port(socket.SOCK_DGRAM) for _ in range(2))
    with switch_of(capturing, tmp_path, switch) as process:
        grpc_address(process)
        said = command(sending.replace("24677", str(switch)).replace("6000", str(worker)) + " --wait 0.5", tmp_path)
        assert f"sent, UDP 127.0.0.1:{worker} -> 127.0.0.1:{switch}" in said
        assert re.search(r"generation= 7\n", said)
    monkeypatch.chdir(tmp_path)
    run(reading, {})
    found = capsys.readouterr().out
    assert re.search(r"hopsum UPDATE ADD32 worker 0 generation 7 slot 3 round 1$", found, re.MULTILINE), found
    (line,) = [line for line in dissector.splitlines() if line.startswith("dissector=")]
    path = subprocess.run(
        ["sh", "-c", f'PATH="{Path(sys.executable).parent}:$PATH"; {line}; echo "$dissector"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(path).read_text(encoding="utf-8").startswith("--")


@pytest.mark.shell
def test_the_shell_of_getting_started_opens_on_the_switch(tmp_path: Path) -> None:
    (starting,) = blocks("docs/getting-started", "sh", "hopsum switch")
    (opening,) = blocks("docs/getting-started", "sh", "hopsum shell")
    with switch_of(starting, tmp_path, free_port(socket.SOCK_DGRAM)) as process:
        address = grpc_address(process)
        line = opening.strip().replace("127.0.0.1:9559", address)
        assert line.startswith("hopsum shell ")
        said = command(line, tmp_path, 'print("tables", len(list(tables)))\nexit\n')
    assert re.search(r"tables \d\d", said), said


@pytest.mark.shell
def test_a_control_command_reads_the_network_and_pushes_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks("docs/topologies", "python", "HOPSUM_NETWORK")
    program, p4info = compiled_program()
    with NativeSwitch(program, p4info) as switch:
        described = {
            "program": str(program),
            "p4info": str(p4info),
            "switches": {"s1": {"p4runtime": switch.address, "device_id": switch.device_id}},
        }
        (tmp_path / "network.json").write_text(json.dumps(described))
        monkeypatch.setenv("HOPSUM_NETWORK", str(tmp_path / "network.json"))
        script = tmp_path / "control.py"
        script.write_text(code.replace("    ...", "    print(len(list(shell.P4Objects(shell.P4Type.table))))"))
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 5


WORKERS = 4


def test_a_cluster_in_a_program_runs_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/topologies", "python", "gradients")
    names: dict[str, Any] = {}
    exec(code, names)
    counted = literal_eval(capsys.readouterr().out)
    assert counted["added"] == 4 * counted["completed"] > 0
    mean = np.mean(names["gradients"], axis=0)
    assert np.square(names["mean"] - mean).sum() < 0.05 * np.square(mean).sum()


OWN_SCRIPT = """import hopsum, numpy as np
with hopsum.connect() as comm:
    assert comm.allreduce(np.full(3000, 1.0, np.float32)).mean.shape == (3000,)
"""


def test_a_script_of_ones_own_joins_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("docs/topologies", "python", "train.py")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OWN_SCRIPT)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["statuses"] == [0, 0]
    counted = literal_eval(capsys.readouterr().out.partition("] ")[2])
    assert counted["added"] == 2 * counted["completed"] > 0


def test_two_ranks_of_torchrun_sum_through_the_switch_that_they_start(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (code,) = blocks("README", "python", "hosts://")
    script = tmp_path / "sum.py"
    script.write_text(code)
    # torchrun runs ranks unbuffered: in one pipe, the words of their lines mix. So each rank has a file.
    apart = ["--redirects", "1", "--log-dir", str(tmp_path / "logs")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *apart]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    printed = {path.parent.name: path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")}
    assert sorted(printed) == ["0", "1"]
    lines = [line for rank in "01" for line in printed[rank].splitlines() if re.match(rf"{rank} \[", line)]
    assert [line[0] for line in lines] == ["0", "1"]
    assert lines[0][1:] == lines[1][1:]


def test_the_first_lines_of_the_readme_run_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("README", "python", "memory://")
    exec(compile(code, "README.md", "exec"), {})
    printed = [float(line) for line in capsys.readouterr().out.splitlines()]
    promised = [float(number) for number in re.findall(r"# (0\.\d\d):", code)]
    assert printed == pytest.approx(promised, abs=0.005)


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_the_job_made_by_hand_sums(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("docs/getting-started", "python", "create_job")
    (joining,) = blocks("docs/getting-started", "python", "sys.argv")
    (command,) = blocks("docs/getting-started", "sh", "hopsum switch")
    udp = re.search(r"--udp 1=127\.0\.0\.1:24677,(as=\S+)", command)
    assert udp is not None
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        ports = {1: f"127.0.0.1:0,{udp[1]}"}
        switch = stack.enter_context(NativeSwitch(*compiled_program(), udp=ports, extra=("--backend", backend)))
        with ManagementClient(switch.address) as management:
            bound = int(management.list_ports()[1]["address"].rpartition(":")[2])
        code = code.replace("127.0.0.1:9559", switch.address).replace('("127.0.0.1", 24677)', f'("127.0.0.1", {bound})')
        code = code.replace("6000 + rank", "ports[rank]")
        names: dict[str, Any] = {"ports": [free_port(socket.SOCK_DGRAM) for _ in range(WORKERS)]}
        exec(compile(code, "getting-started.md", "exec"), names)  # closes its device at the end; the job stays

        def work(rank: int) -> np.ndarray:
            return run(joining.replace("int(sys.argv[1])", str(rank)), {})["mean"]

        with ThreadPoolExecutor(WORKERS) as pool:
            means = list(pool.map(work, range(WORKERS)))
    assert all(np.array_equal(mean, means[0]) for mean in means)
    assert np.mean(means[0]) == pytest.approx(2.5, rel=0.05)
