# SPDX-License-Identifier: Apache-2.0
"""Options of hooks and settings of `connect`: one list for type checkers, the environment and what runs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

import hopsum
from hopsum.agent import Communicator
from hopsum.config import Config, ConfigError, ConnectOptions, HookSettings, describe, resolve
from hopsum.torch import DiLoCo, HopsumState
from hopsum.torch.low_rank import DENSE_STEPS
from hopsum.torch.options import OF_OBJECTS, HookOptions

from .job import run_processes

USER = """
import hopsum
from hopsum.torch import DiLoCo, register_all_reduce_hook, register_comm_hook
from torch import nn

def train(ddp: nn.Module, model: nn.Module) -> None:
    with hopsum.connect("hosts://", codec="thc", lease_s=90, rank=None) as comm:
        register_comm_hook(ddp, comm, on_nonfinite="skip", uncompressed=["*.bias"], low_rank=8)
        register_all_reduce_hook(model, comm, low_rank=8)
        DiLoCo(model, comm, sync_every=100, error_feedback=False)
        hopsum.connect("hosts://", lease_s="sixty")
        hopsum.connect("hosts://", codek="thc")
        hopsum.connect("hosts://", on_nonfinite="skipp")
        register_comm_hook(ddp, comm, on_nonfinte="skip")
        register_comm_hook(ddp, comm, log_every="ten")
        register_comm_hook(ddp, comm, method="fastest")
        register_all_reduce_hook(model, comm, low_rnk=8)
        DiLoCo(model, comm, sync_every="often")
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def comm() -> Any:
    with ExitStack() as stack:
        yield stack.enter_context(hopsum.connect("memory://options?workers=1", rank=0, codec="fixed", backend="numpy"))


def test_type_checkers_have_the_settings() -> None:
    hints = get_type_hints(Config)
    assert get_type_hints(ConnectOptions) == {name: each | None for name, each in hints.items() if name != "url"}
    hints, options = get_type_hints(HookSettings), get_type_hints(HookOptions)
    assert {name: each for name, each in options.items() if name not in OF_OBJECTS} == hints
    assert set(options) == {*hints, *OF_OBJECTS}
    assert HookSettings().low_rank_start == DENSE_STEPS


def test_a_setting_that_hooks_share_has_one_kind() -> None:
    kinds = {each.name: each.metadata["kind"].name for each in fields(Config)}
    for each in fields(HookSettings):
        assert kinds.get(each.name, each.metadata["kind"].name) == each.metadata["kind"].name


def test_mypy_finds_wrong_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "user.py").write_text(USER)
    heavy = "\n".join(f"[mypy-{name}.*]\nfollow_imports = skip" for name in ("torch", "numpy", "numba"))
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{heavy}\n")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--follow-imports=silent", "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": ":".join(str(ROOT / each) for each in ("base", "wire", "host"))},
    )
    # A wrong line is one after those that are right.
    first = USER.splitlines().index('        hopsum.connect("hosts://", lease_s="sixty")') + 1
    lines = {int(each.split(":")[1]) for each in found.stdout.splitlines() if ": error:" in each}
    assert lines == set(range(first, first + 8)), found.stdout + found.stderr


@pytest.mark.parametrize("setting", describe(HookSettings), ids=lambda each: each.name)
def test_every_option_has_its_variable(monkeypatch: pytest.MonkeyPatch, comm: Communicator, setting: Any) -> None:
    values: dict[str, tuple[str, Any]] = {
        "error_feedback": ("no", False), "on_nonfinite": ("skip", "skip"), "codec_on": ("host", "host"),
        "log_every": ("7", 7), "low_rank": ("1", 1), "low_rank_start": ("3", 3),
    }  # fmt: skip
    needs_group = {"uncompressed": "bias, wei*", "small_tensor_bytes": "64", "start_iter": "2", "method": "auto",
                   "on_switch_lost": "fall_back"}  # fmt: skip
    resolve(environment={setting.environment: values.get(setting.name, ("1", 1))[0]})
    if setting.name in needs_group:
        monkeypatch.setenv(setting.environment, needs_group[setting.name])
        # Read, and so in need of a process group.
        with pytest.raises(ValueError, match="call init_process_group first"):
            HopsumState(comm, nn.Linear(4, 4))
    else:
        text, value = values[setting.name]
        monkeypatch.setenv(setting.environment, text)
        assert getattr(HopsumState(comm, nn.Linear(4, 4)), setting.name) == value
    # None says nothing: the environment says it then.
    if (default := getattr(HookSettings(), setting.name)) is not None:
        assert getattr(HopsumState(comm, nn.Linear(4, 4), **{setting.name: default}), setting.name) == default


def test_diloco_reads_the_options_that_it_has(monkeypatch: pytest.MonkeyPatch, comm: Communicator) -> None:
    assert DiLoCo(nn.Linear(4, 4), comm, sync_every=2).low_rank_start == 1
    monkeypatch.setenv("HOPSUM_LOW_RANK_START", "5")
    assert DiLoCo(nn.Linear(4, 4), comm, sync_every=2).low_rank_start == 5
    assert DiLoCo(nn.Linear(4, 4), comm, sync_every=2, low_rank_start=2).low_rank_start == 2
    monkeypatch.setenv("HOPSUM_ERROR_FEEDBACK", "false")
    assert not DiLoCo(nn.Linear(4, 4), comm, sync_every=2)._sender.error_feedback


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, comm: Communicator) -> None:
    with pytest.raises(TypeError, match="there is no option 'on_nonfinte'; did you mean on_nonfinite"):
        HopsumState(comm, nn.Linear(4, 4), on_nonfinte="skip")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"method: it is an option of the hook, register_comm_hook\(ddp, method"):
        resolve({"method": "auto"})
    with pytest.raises(ConfigError, match="there is no setting 'metod'; did you mean method"):
        resolve(environment={"HOPSUM_METOD": "auto"})
    for name, text in {"METHOD": "fastest", "LOG_EVERY": "ten", "START_ITER": "-1", "ERROR_FEEDBACK": "maybe"}.items():
        monkeypatch.setenv(f"HOPSUM_{name}", text)
        with pytest.raises(ConfigError, match=f"HOPSUM_{name} is '?{text}'?: {name.lower()} is"):
            HopsumState(comm, nn.Linear(4, 4))
        monkeypatch.delenv(f"HOPSUM_{name}")


ONE_RANK = """
import json, os, sys
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from hopsum.agent import Agent
from hopsum.codec import make_codec
from hopsum.torch import register_comm_hook
rank, membership, store = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
with Agent(membership, int(rank), codec=make_codec("fixed", workers=2, backend="numpy")) as agent:
    if rank == "1":
        os.environ["HOPSUM_LOG_EVERY"] = "ten"
    try:
        register_comm_hook(DistributedDataParallel(nn.Linear(2, 2)), agent)
    except Exception as error:
        print(json.dumps({"kind": type(error).__name__, "text": str(error)}))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.system
def test_what_one_rank_refuses_is_an_error_on_all(tmp_path: Path) -> None:
    from .job import serve_job

    script, path = tmp_path / "rank.py", tmp_path / "job.json"
    script.write_text(ONE_RANK)
    with serve_job(path, 2):
        first, second = run_processes(script, [[str(rank), str(path)] for rank in range(2)], tmp_path)
    assert second["kind"] == "ConfigError"
    assert first["kind"] == "MeetingError"
    assert "register_comm_hook: rank 1: environment variable HOPSUM_LOG_EVERY is 'ten'" in first["text"]
