# SPDX-License-Identifier: Apache-2.0
"""Training scripts with DDP, in two processes with gloo on loopback; register_worker.py has the scripts.

"Books" balance: gradients that were applied + mean of the ranks' residuals = mean of the ranks' gradients.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import hopsum
from hopsum.torch import HopsumState, register_comm_hook
from hopsum.torch.method_choice import COUNTED_STEPS, SETTLING_STEPS

from ..agent.cluster import Cluster
from .job import run_ranks

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("register_worker.py")
ROUNDING = 2e-6
Rank = dict[str, Any]


@pytest.fixture(scope="module", params=["host", "mixed"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """The lines that the two ranks printed. With "mixed" rank 1 encodes and decodes where its gradients are."""
    return run_ranks(WORKER, tmp_path_factory.mktemp("register_comm_hook"), str(request.param))


def assert_balanced(book: Rank, rounding: float = ROUNDING) -> None:
    assert book["largest"] > 0.01, "there is no residual: the test proves nothing"
    assert book["out"] < rounding


@pytest.mark.parametrize(("scenario", "steps"), [("no_sync", 6), ("accumulated", 12)])
def test_gradient_accumulation(ranks: list[Rank], scenario: str, steps: int) -> None:
    for rank in ranks:
        assert_balanced(rank[scenario])
        assert rank[scenario]["steps"] == steps
        assert rank[scenario]["allreduces"] == 1 + 3 * (steps - 1), "one bucket, then three: DDP did not rebuild"


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", ROUNDING), ("bfloat16", 0.02), ("float16", 0.002)])
def test_parameters_of_each_type(ranks: list[Rank], dtype: str, rounding: float) -> None:
    """The mean is rounded to the type once per step, which no residual knows of."""
    first, second = (rank[f"torch.{dtype}"] for rank in ranks)
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        assert rank["types"] == [f"torch.{dtype}"]
        assert_balanced(rank, rounding)
        assert sum(rank["losses"][-5:]) < 0.6 * sum(rank["losses"][:5])


def test_a_grad_scaler_skips_the_whole_step_on_all_ranks(ranks: list[Rank]) -> None:
    """One parameter of one rank is not finite; residuals of all buckets stay, and follow the scale later."""
    first, second = (rank["scale"] for rank in ranks)
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        assert rank["scales"] == [1024] * 3 + [2048] * 2 + [1024] * 3 + [2048]
        assert rank["moved"] == [step != 4 for step in range(9)]
        assert rank["nan"] == [8 if step == 4 else 0 for step in range(9)]
        assert rank["kept"] == [step == 4 for step in range(9)]
        assert rank["saved"] == 2048
        assert_balanced(rank)


def test_parameters_that_no_rank_uses_keep_their_residuals(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert_balanced(rank["unused"])
        idle = [[], ["right"], [], ["left"], [], ["right"], []]
        assert rank["unused"]["nothing"] == idle, "which gradients DDP left alone"
        assert rank["unused"]["kept"] == idle


def test_warm_up_is_plain_ddp_bit_by_bit(ranks: list[Rank]) -> None:
    for rank in ranks:
        warm_up = rank["warm_up"]
        assert_balanced(warm_up)
        assert warm_up["alike"] == [True, True, True, False, False, False]
        assert warm_up["exchanges"] == [0, 0, 0, 3, 6, 9]
        assert warm_up["restored"] == [0, 3], "saved after two steps of three: one more, then buckets"
        assert warm_up["statistics"]["uncompressed_bytes"] == 3 * 4 * 3104
        assert warm_up["statistics"]["steps"] == 6


def test_the_faster_way_stays_on_all_ranks(ranks: list[Rank]) -> None:
    """Both ranks take the same way, by the mean of what they measured, whatever one of them would rather have."""
    each = SETTLING_STEPS + COUNTED_STEPS
    for rank in ranks:
        through_gloo, through_hopsum = rank["auto"]["books"]
        assert through_gloo["ways"] == [True] * each + [False] * (20 - each)
        assert through_gloo["step_s"] == [2.5, 1.0]
        assert through_gloo["compresses"] == 0
        assert through_gloo["out"] < ROUNDING
        assert through_gloo["largest"] == 0, "what was left has been delivered"
        assert through_gloo["alike"][each + 1 :] == [True] * (19 - each), "plain DDP, bit by bit, once that is done"
        assert through_hopsum["ways"] == [True] * each + [False] * each + [True] * (20 - 2 * each)
        assert through_hopsum["step_s"] == [2.0, 3.5]
        assert through_hopsum["compresses"] == 1
        assert_balanced(through_hopsum)


def test_small_and_named_parameters_are_not_compressed(ranks: list[Rank]) -> None:
    biases = ["left.bias", "right.bias", "trunk.0.bias", "trunk.2.bias"]
    for rank in ranks:
        small = rank["small"]
        assert_balanced(small)
        assert small["alike"][0] == [], "residuals that were loaded are in the first step"
        assert small["alike"][1:] == [sorted([*biases, "left.weight", "right.weight"])] * 2
        assert small["left"] == ["trunk.0.weight", "trunk.2.weight"]
        assert small["statistics"]["uncompressed_bytes"] == 3 * 4 * (2 * (8 + 256) + 48 + 32)


def test_sparse_and_complex_gradients(ranks: list[Rank]) -> None:
    for rank in ranks:
        kinds = rank["kinds"]
        if not kinds:
            pytest.skip("gloo of this torch takes no complex numbers")
        assert_balanced(kinds, 1e-4)
        assert kinds["nan"] == [False, False, False, True, False]
        assert kinds["apart"][0] == pytest.approx(0.25), "the residual that was loaded is in the first step"
        assert [apart for apart, nan in zip(kinds["apart"], kinds["nan"], strict=True) if not nan][1:] == [0, 0, 0]
        assert kinds["group_bytes"] < 5 * 4 * 320, "rows, not the whole table"


@pytest.mark.parametrize("run", [0, 1], ids=["compressed", "uncompressed"])
def test_a_nan_is_an_error_on_all_ranks_and_the_next_step_follows(ranks: list[Rank], run: int) -> None:
    for number, rank in enumerate(ranks):
        book = rank["error"]["runs"][run]
        assert_balanced(book)
        (text,) = book["texts"]
        assert ("256 of 256" in text and "right.weight" in text) if number else "another rank's vector" in text
        assert book["kept"] == [False, True, False, False]
        assert book["failure"] == "NonFiniteError"


def test_two_models_in_one_backward_pass(ranks: list[Rank]) -> None:
    for rank in ranks:
        for book in rank["pair"]:
            assert_balanced(book)


def test_torchs_own_wrapper_around_the_hook(ranks: list[Rank]) -> None:
    first, second = (rank["registered"] for rank in ranks)
    assert first["digest"] == second["digest"]
    assert first["finite"]


def test_a_ddp_in_wrappers(ranks: list[Rank]) -> None:
    for rank in ranks:
        layers = [f"{layer}.{each}" for layer in ("left", "right", "trunk.0", "trunk.2") for each in ("bias", "weight")]
        assert rank["wrapped"] == {"names": layers[1:], "drops_unused": True}


def test_what_wrap_refuses(ranks: list[Rank]) -> None:
    for number, rank in enumerate(ranks):
        plain, foreign, again, late, named, reducer = rank["refuse"]["texts"]
        assert "not Linear: ddp = DistributedDataParallel(model); register_comm_hook(ddp, comm)" in plain
        assert f"rank 0 of 1 in torch's process group, but the communicator is rank {number} of 2" in foreign
        assert "hopsum.connect('hosts://', group=ddp.process_group) does so" in foreign
        assert 'optimize_ddp is "python_reducer"' in reducer
        # No communicator was given, and none is made: hosts:// would need all ranks.
        assert (
            again == "RuntimeError: register_comm_hook: this DistributedDataParallel has a communication hook already"
        )
        need = "all ranks need the same"
        assert late.endswith(f"register_comm_hook: rank 0 has start_iter 0; rank 1 has start_iter 3: {need}")
        assert named.endswith(f"rank 0 has uncompressed (); rank 1 has uncompressed ('*.bias',): {need}")


def test_without_a_process_group() -> None:
    with ExitStack() as stack:
        agent, module = Cluster(stack, 2).agent(0, "thc"), nn.Linear(3, 2)
        with pytest.raises(
            TypeError, match=r"not Linear: torch\.distributed\.init_process_group\('gloo'\) under torch"
        ):
            register_comm_hook(module, agent)
        for options in ({"start_iter": 1}, {"small_tensor_bytes": 9}, {"uncompressed": "bias"}):
            with pytest.raises(ValueError, match="call init_process_group first"):
                HopsumState(agent, module, **options)  # type: ignore[arg-type]
        table = nn.Sequential(nn.Embedding(9, 2, sparse=True))
        with pytest.raises(
            ValueError, match=r"sparse gradients \(sparse=True of 0\.weight\), small.* init_process_group"
        ):
            HopsumState(agent, table)
        HopsumState(agent, weight_norm(nn.Embedding(9, 2, sparse=True)))  # whose weight is computed
        with pytest.raises(ValueError, match=r"uncompressed='\*\.norm' fits no parameter; the module has bias, weight"):
            HopsumState(agent, module, uncompressed=["*.norm"])
        with pytest.raises(ValueError, match="start_iter=-1: 0 is the least"):
            HopsumState(agent, module, start_iter=-1)


def test_tied_weights_have_all_of_their_names() -> None:
    with ExitStack() as stack:
        comm = stack.enter_context(hopsum.connect("memory://tied?workers=1", rank=0, codec="fixed", backend="numpy"))
        model = nn.ModuleDict({"wte": nn.Embedding(16, 4), "lm_head": nn.Linear(4, 16, bias=False)})
        model["lm_head"].weight = model["wte"].weight
        # Nothing is left uncompressed without a process group: the name was found.
        for name in ("wte.weight", "lm_head.weight", "lm_head.*"):
            with pytest.raises(ValueError, match="call init_process_group first"):
                HopsumState(comm, model, uncompressed=[name])
        with pytest.raises(ValueError, match=r"uncompressed='head\.weight' fits no parameter; the module has wte"):
            HopsumState(comm, model, uncompressed=["head.weight"])
