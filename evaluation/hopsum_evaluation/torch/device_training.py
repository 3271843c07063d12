# SPDX-License-Identifier: Apache-2.0
"""A DDP training through an embedded switch, with codecs on the device of the gradients and on the host, and without.

    python -m hopsum_evaluation.torch.device_training [--device cuda] [--json]

    group    DDP without a hook, by torch's process group (gloo), in float32
    host     the hook with codec_on="host": gradients cross the bus in float32
    device   the hook with codec_on="device": codes and sums cross it

All ranks are processes of this machine, on one device, and the network is loopback: the times compare the ways of the
bus, not networks. The ranks take the ways in turn in one run, `--runs` times, and medians are told.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hopsum
from hopsum.codec import best_table
from hopsum.communicator import Communicator
from hopsum.torch import register_comm_hook
from hopsum_controlplane import JobSpec, SwitchController, write_membership
from hopsum_topologies.free_port import free_port
from hopsum_topologies.switch_testbed import SWITCH, native_testbed

WAYS: Final = ("group", "host", "device")
SLOTS: Final = 64
WARM_UP_STEPS: Final = 2
"""DDP builds its buckets again after the first step."""
RANKS_S: Final = 500.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print what every rank found, and return 0; 1 if ranks or ways differ where they must not."""
    options = build_parser().parse_args(arguments)
    if options.rank:
        print(json.dumps(train_rank(options)))
        return 0
    ranks = run_ranks(options)
    found = {"device": ranks[0]["device"], "torch": torch.__version__, "python": platform.python_version()}
    found |= {"workers": options.workers, "elements": ranks[0]["elements"], "ways": summarise(ranks)}
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    difference = compare(ranks)
    if difference:
        print(difference, file=sys.stderr)
    return 1 if difference else 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m hopsum_evaluation.torch.device_training", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    cuda = torch.cuda.is_available()
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--device", default="cuda" if cuda else "cpu", help="of all ranks (default: cuda if there is)")
    parser.add_argument("--workers", type=int, default=2, help="ranks (default %(default)s)")
    width = 2048 if cuda else 256
    parser.add_argument("--width", type=int, default=width, help="of the model's six layers (default %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of each way in a run (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--membership", type=Path, help=argparse.SUPPRESS)
    return parser


def run_ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a switch and the ranks, and return what these print."""
    with native_testbed(options.workers) as testbed, tempfile.TemporaryDirectory() as folder:
        controller, path = SwitchController(testbed.device, SWITCH), Path(folder) / "job.json"
        # Ranks bind these themselves: torchrun starts them, so no socket can be handed over.
        places = [("127.0.0.1", free_port(socket.SOCK_DGRAM)) for _ in range(options.workers)]
        endpoints = tuple(seat.endpoint(place) for seat, place in zip(testbed.seats, places, strict=True))
        job = controller.create_job(JobSpec("device", endpoints, SLOTS, best_table(options.workers).values))
        write_membership(job, path, {seat.rank: seat.switch for seat in testbed.seats})
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(options.workers), "-m", __spec__.name, "--rank", "--membership", str(path),
        ]  # fmt: skip
        for name in ("device", "width", "steps", "runs"):
            command += [f"--{name}", str(getattr(options, name))]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        # cuBLAS is deterministic only with a workspace of fixed size: replicas are compared byte for byte.
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=RANKS_S, env=environment)
    if done.returncode:
        raise SystemExit(f"a rank failed with status {done.returncode}; see above")
    # Gloo of torch 2.8 prints too, in pieces of lines where ranks share the output
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def train_rank(options: argparse.Namespace) -> dict[str, Any]:
    """Train every way in turn, as one rank of torchrun."""
    # Ways and ranks are compared byte for byte at the end.
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = torch.device(options.device)
    with hopsum.connect(options.membership.absolute().as_uri(), rank=rank) as comm:
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(options.runs):
            for way in WAYS:
                runs[way].append(train(options, comm, way, device))
    elements = runs["device"][0].pop("elements")
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"cpu, {torch.get_num_threads()} threads a rank"
    dist.destroy_process_group()
    return {"rank": rank, "device": name, "elements": elements, "steps": options.steps + WARM_UP_STEPS, "runs": runs}


def train(options: argparse.Namespace, comm: Communicator, way: str, device: torch.device) -> dict[str, Any]:
    """Train a fresh model one way, and return its figures. The first steps are not timed."""
    # Each way begins with the same parameters, and differs in nothing but the hook.
    torch.manual_seed(0)
    width = options.width
    layers = [layer for _ in range(5) for layer in (nn.Linear(width, width), nn.ReLU())]
    ddp = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, width)).to(device))
    state = None if way == "group" else register_comm_hook(ddp, comm, codec_on=way)
    optimizer, target = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0.9), torch.linspace(-1, 1, width).to(device)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    losses: list[float] = []
    start = 0.0
    for step in range(options.steps + WARM_UP_STEPS):
        x = torch.randn(64, width, generator=generator).to(device)
        optimizer.zero_grad()
        loss = (ddp(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == WARM_UP_STEPS - 1:
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in ddp.parameters())
    figures = {
        "step_s": seconds / options.steps,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "parameters_sha256": hashlib.sha256(weights).hexdigest(),
        "elements": sum(each.numel() for each in ddp.parameters()),
    }
    if state is not None:
        told = state.compression_stats()
        figures |= {name: told[name] for name in ("wait_s", "bytes_from_device", "bytes_to_device")}
    return figures


def summarise(ranks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each way the medians of rank 0's times, its losses, and bytes of the bus for each element of a step.

    With codecs on the host the bus carries each gradient as float32, both ways; that is not counted but known.
    """
    found = {}
    for way, runs in ranks[0]["runs"].items():
        times = {name: median([run[name] for run in runs]) for name in ("step_s", "wait_s") if name in runs[0]}
        found[way] = {**times, "loss_first": runs[0]["loss_first"], "loss_last": runs[0]["loss_last"]}
        if runs[0].get("bytes_to_device"):
            summed = ranks[0]["elements"] * ranks[0]["steps"]
            for name in ("bytes_from_device", "bytes_to_device"):
                found[way][f"{name}_by_element"] = runs[0][name] / summed
    return found


def compare(ranks: list[dict[str, Any]]) -> str:
    """Compare replicas of each way, and both ways of the hook. Return the difference in words, empty for none."""
    for way in WAYS:
        for run, mine in enumerate(ranks[0]["runs"][way]):
            others = {rank["runs"][way][run]["parameters_sha256"] for rank in ranks}
            if others != {mine["parameters_sha256"]}:
                return f"way {way}: the replicas differ after run {run}"
    host, device = ({run["parameters_sha256"] for run in ranks[0]["runs"][way]} for way in ("host", "device"))
    return "" if host == device else "codecs on the host and on the device lead to different parameters"


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{found['workers']} ranks on {found['device']}, {found['elements']} elements, torch {found['torch']}")
    for way, figures in found["ways"].items():
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"  {way:7} {told}")


if __name__ == "__main__":
    sys.exit(main())
