# SPDX-License-Identifier: Apache-2.0
"""FSDP2 whose replicas are averaged through an embedded switch: under torchrun, with real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hopsum
from hopsum.codec import CodecError
from hopsum.torch import register_all_reduce_hook
from hopsum.torch.fsdp import _in_fsdp_order, _replicated

from .embedded import EXAMPLES, embedded_jobs, torchrun

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("fsdp_worker.py")
STEPS = 50


@pytest.mark.parametrize(("shards", "options"), [(2, ("--bf16",)), (1, ())], ids=["2x2-bfloat16", "4x1"])
def test_the_example(tmp_path: Path, shards: int, options: tuple[str, ...]) -> None:
    where = str(tmp_path / "job{shard}.json")
    with embedded_jobs(tmp_path, 4 // shards, jobs=shards):
        arguments = ("--shards", str(shards), "--membership", where, "--steps", str(STEPS), *options)
        ranks, _ = torchrun(EXAMPLES / "hsdp_digits.py", *arguments, ranks=4)
    for shard in range(shards):
        replicas = [rank for rank in ranks if rank["shard"] == shard]
        assert [rank["replica"] for rank in replicas] == list(range(4 // shards))
        assert len({rank["shard_sha256"] for rank in replicas}) == 1
    for rank in ranks:
        assert rank["allreduces"] == 3 * STEPS
    first, last = (sum(rank[name] for rank in ranks) for name in ("loss_first", "loss_last"))
    assert last < 0.8 * first


def test_the_example_with_shards_as_factors(tmp_path: Path) -> None:
    """Two replicas of two shards: each shard has factors of its own, and its replicas end equal."""
    where, steps = str(tmp_path / "job{shard}.json"), 20
    with embedded_jobs(tmp_path, 2, jobs=2):
        arguments = ("--shards", "2", "--membership", where, "--steps", str(steps))
        ranks, _ = torchrun(EXAMPLES / "hsdp_digits.py", *arguments, ranks=4, environment={"HOPSUM_LOW_RANK": "2"})
    for shard in range(2):
        assert len({rank["shard_sha256"] for rank in ranks if rank["shard"] == shard}) == 1
    for rank in ranks:
        # Ten steps are whole. Then matrices have two sums, in addition to that of the vectors.
        assert 3 * steps < rank["allreduces"] <= 3 * 10 + 3 * 3 * 10


def test_the_example_without_options() -> None:
    ranks, _ = torchrun(EXAMPLES / "hsdp_digits.py", ranks=4)
    for shard in range(2):
        assert len({rank["shard_sha256"] for rank in ranks if rank["shard"] == shard}) == 1
    assert all(rank["allreduces"] == 300 for rank in ranks)


def test_a_hook_that_is_refused_leaves_torch_its_average() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(nn.Linear(2, 2), mesh=mesh)
        before = [info.replicate_process_group for info in _replicated(model)]
        with (
            hopsum.connect("memory://refused?workers=1", rank=0, codec="fixed") as comm,
            pytest.raises(CodecError, match="codec fixed has no form for devices"),
        ):
            register_all_reduce_hook(model, comm, codec_on="device")
        after = [info.replicate_process_group for info in _replicated(model)]
        assert [here is there for here, there in zip(before, after, strict=True)] == [True]
    finally:
        dist.destroy_process_group()


def test_books_checkpoint_and_refusals(tmp_path: Path) -> None:
    with embedded_jobs(tmp_path, 2, jobs=6):
        ranks, _ = torchrun(WORKER, str(tmp_path), ranks=4)
    for rank in ranks:
        assert rank["largest"] > 1e-4, "there is no residual: the test proves nothing"
        assert rank["out"] < 2e-6
        assert rank["restored"] == rank["went_on"], "the first step after a checkpoint"
        assert rank["without"] != rank["went_on"], "the error feedback was of no account: the test proves nothing"
        world, split, plain, foreign = rank["texts"]
        assert re.search(r"replica \d of 4 in the mesh, but the communicator is rank [01] of 2: make a job", world)
        assert "is sharded over a mesh of 2 dimensions, as (" in split
        assert "Linear has no FSDP module: call fully_shard(model, mesh=mesh) first" in plain
        assert foreign == "state with shards 7: here it is 2"
    for place in range(2):
        first, second = (rank["diloco"] for rank in ranks if rank["diloco"]["place"] == place)
        assert first == second
        assert first["apart"], "the replicas never differed: the test proves nothing"
        assert first["allreduces"] == 2
    assert len({rank["diloco"]["whole"] for rank in ranks}) == 1
    if not all(rank["replicate"] for rank in ranks):
        pytest.skip("this torch has no replicate() of FSDP2")
    for rank in ranks:
        against_ddp = rank["replicate"]
        assert against_ddp["imaginary"] > 0.1
        assert max(against_ddp["apart"], against_ddp["moved"]) < 1e-4
    for place in range(2):
        assert len({rank["replicate"]["digest"] for rank in ranks if rank["replicate"]["place"] == place}) == 1


def test_parameters_are_in_the_order_in_which_fsdp_reduces_them() -> None:
    """Its own order, which is not that of `named_parameters`, where a module has parameters next to its children's."""
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(6, 9))
            self.attention = nn.MultiheadAttention(8, 2)
            self.linear = nn.Linear(9, 7)
            self.tied = self.linear

    model = Own()
    try:
        theirs, _ = _fsdp_init._get_managed_states(_fsdp_init._get_managed_modules((model,)))
    except (AttributeError, TypeError) as error:
        pytest.skip(f"this torch tells its order in another way: {error}")
    ours = _in_fsdp_order(model)
    assert [id(each) for each in ours] == [id(each) for each in theirs]
    assert [id(each) for each in ours] != [id(each) for each in model.parameters()]
