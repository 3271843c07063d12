# SPDX-License-Identifier: Apache-2.0
"""One rank of test_register.py, as a process: `register_worker.py WHERE RANK WORKERS MEMBERSHIP STORE`; prints JSON.

All scenarios run one after the other in the same processes, each with a state of its own on the one agent.

No `from __future__ import annotations`: DDP compares a hook's annotations with the types themselves.
"""

import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from ledger import Ledger, Model, digest, draw, loss_of

from hopsum.agent import Agent
from hopsum.codec import make_codec
from hopsum.meeting import MeetingError
from hopsum.protocol.worker import Timing
from hopsum.torch import HopsumState, hopsum_hook, register_comm_hook

OPTIONS: dict[str, Any] = {}
"""Options of all states of this rank."""
CAP_MB = 0.002  # several buckets once DDP has rebuilt them


def make(agent: Agent, *, seed: int = 0, ddp: Any = None, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Return a model with the hook, its state and its ledger."""
    module = DistributedDataParallel(Model(seed).to(dtype), bucket_cap_mb=CAP_MB, **(ddp or {}))
    state = register_comm_hook(module, agent, **OPTIONS, **options)
    return module, state, Ledger(module, state)


def backward(module: nn.Module, *batches: Any) -> None:
    for batch in batches:
        loss_of(module, batch).backward()  # type: ignore[no-untyped-call]


class Spoiler:
    """While it is on, a parameter's gradient is multiplied by this factor."""

    def __init__(self, parameter: nn.Parameter, factor: float) -> None:
        self.on, self.factor = False, factor
        parameter.register_hook(self)

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.factor if self.on else gradient


def residuals(state: HopsumState) -> dict[str, torch.Tensor]:
    return state.state_dict()["residuals"][state.owner]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def accumulate(agent: Agent, no_sync: bool) -> dict[str, Any]:
    """Two batches a step; the first one synchronised or not."""
    module, state, ledger = make(agent)
    for step in range(6):
        batches = [draw(agent.rank, 2 * step + half) for half in range(2)]
        ledger.owe(batches)
        module.zero_grad()
        if no_sync:
            with module.no_sync():
                backward(module, batches[0])
            backward(module, batches[1])
        else:
            backward(module, *batches)
        ledger.pay()
    return {**ledger.close(), "steps": state.steps, "allreduces": state.allreduces}


def train(agent: Agent, dtype: torch.dtype) -> dict[str, Any]:
    """Train parameters of this type."""
    module, _, ledger = make(agent, dtype=dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    losses = []
    for step in range(20):
        batch = draw(agent.rank, step, dtype=dtype)
        ledger.owe([batch])
        optimizer.zero_grad()
        losses.append(loss_of(module, batch).item())
        backward(module, batch)
        ledger.pay()
        optimizer.step()
    types = {str(each.grad.dtype) for each in module.parameters()}
    return {**ledger.close(), "losses": losses, "digest": digest(module.parameters()), "types": sorted(types)}


def scale(agent: Agent) -> dict[str, Any]:
    """Under a GradScaler whose scale goes up and down; in step 4 one parameter of rank 1 has an infinite gradient."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    module, state, ledger = make(agent, on_nonfinite="skip", scaler=scaler)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    spoiler = Spoiler(module.module.right.weight, torch.inf)
    result: dict[str, list[Any]] = {"scales": [], "moved": [], "kept": [], "nan": []}
    for step in range(9):
        batch = draw(agent.rank, step)
        spoiler.on = step == 4 and agent.rank == 1
        if step != 4:
            ledger.owe([batch])
        optimizer.zero_grad()
        before, parameters = residuals(state), digest(module.parameters())
        now = scaler.get_scale()
        scaler.scale(loss_of(module, batch)).backward()  # type: ignore[no-untyped-call]
        result["nan"].append(sum(bool(each.grad.isnan().all()) for each in module.parameters()))
        if step != 4:
            ledger.pay(now)
        result["kept"].append(same(residuals(state), before))
        scaler.step(optimizer)
        scaler.update()
        result["scales"].append(now)
        result["moved"].append(digest(module.parameters()) != parameters)
    return {**result, **ledger.close(now), "digest": digest(module.parameters()), "saved": state.state_dict()["scale"]}


def unused(agent: Agent) -> dict[str, Any]:
    """Heads of each step and rank: 0 both, 1 left only, 2 right only."""
    module, state, ledger = make(agent, ddp={"find_unused_parameters": True})
    kept, nothing = [], []
    for step, heads in enumerate([(0, 0), (1, 1), (1, 2), (2, 2), (0, 1), (1, 1), (0, 0)]):
        batch = draw(agent.rank, step, heads[agent.rank])
        ledger.owe([batch])
        module.zero_grad()
        before = residuals(state)
        backward(module, batch)
        ledger.pay()
        after = residuals(state)
        idle = [name for name in after if before and torch.equal(after[name], before[name])]
        kept.append(sorted({name.partition(".")[0] for name in idle}))
        none = [name for name, each in module.module.named_parameters() if each.grad is None]
        nothing.append(sorted({name.partition(".")[0] for name in none}))
    return {**ledger.close(), "kept": kept, "nothing": nothing}


def equals_plain(module: nn.Module, plain: nn.Module, ledger: Ledger, batch: Any) -> bool:
    """Take a step on a DDP with the hook and on one without; return whether all gradients are equal, bit by bit."""
    ledger.owe([batch])
    for each in (module, plain):
        each.zero_grad()
        backward(each, batch)
    ledger.pay()
    pairs = zip(module.parameters(), plain.parameters(), strict=True)
    return all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)  # type: ignore[arg-type]


def warm_up(agent: Agent) -> dict[str, Any]:
    """Three steps next to a DDP without a hook; then a state that was saved after two of them continues."""
    before = agent.statistics.allreduces
    module, state, ledger = make(agent, start_iter=3)
    plain = DistributedDataParallel(copy.deepcopy(module.module), bucket_cap_mb=CAP_MB)
    alike, exchanges, saved = [], [], io.BytesIO()
    for step in range(6):
        alike.append(equals_plain(module, plain, ledger, draw(agent.rank, step)))
        exchanges.append(agent.statistics.allreduces - before)
        if step == 1:
            torch.save(state.state_dict(), saved)
    statistics = state.compression_stats()
    saved.seek(0)
    again, restored, _ = make(agent, start_iter=3)
    restored.load_state_dict(torch.load(saved, weights_only=True))
    before, counts = agent.statistics.allreduces, []
    for step in range(2):
        backward(again, draw(agent.rank, step))
        counts.append(agent.statistics.allreduces - before)
    return {**ledger.close(), "alike": alike, "exchanges": exchanges, "restored": counts, "statistics": statistics}


def auto(agent: Agent) -> dict[str, Any]:
    """Trials of both ways, on clocks that say what a step takes: by this rank, through hopsum and through gloo."""
    books = []
    for seconds in (((2.0, 1.0), (3.0, 1.0)), ((2.0, 1.0), (2.0, 6.0))):
        module, state, ledger = make(agent, method="auto")
        plain = DistributedDataParallel(copy.deepcopy(module.module), bucket_cap_mb=CAP_MB)
        now, ways, alike = [0.0], list[bool](), list[bool]()
        choice = state.choice
        assert choice is not None
        choice._clock, choice._is_ready = (lambda now=now: now[0]), (lambda: True)
        for step in range(20):
            alike.append(equals_plain(module, plain, ledger, draw(agent.rank, step)))
            ways.append(state.compresses)
            now[0] += seconds[agent.rank][not state.compresses]
        statistics = state.compression_stats()
        books.append(
            {**ledger.close(), "ways": ways, "alike": alike, "step_s": [each.step_s for each in choice.times],
             "compresses": statistics["compresses"]}
        )  # fmt: skip
    return {"books": books}


def small(agent: Agent) -> dict[str, Any]:
    """Biases by name and small weights by size stay as they are; residuals that were loaded for them are paid out."""
    module, state, ledger = make(agent, uncompressed=["*.bias"], small_tensor_bytes=1025)
    loaded = {name: torch.full((each.numel(),), 0.25) for name, each in module.module.named_parameters()}
    state.load_state_dict({**state.state_dict(), "residuals": {state.owner: loaded}})
    plain = DistributedDataParallel(copy.deepcopy(module.module), bucket_cap_mb=CAP_MB)
    alike = []
    for name, owed in ledger.owed.items():
        owed += loaded[name].reshape(owed.shape)
    for step in range(3):
        batch = draw(agent.rank, step)
        ledger.owe([batch])
        for each in (module, plain):
            each.zero_grad()
            backward(each, batch)
        ledger.pay()
        theirs = dict(plain.module.named_parameters())
        ours = module.module.named_parameters()
        alike.append(sorted(name for name, each in ours if torch.equal(each.grad, theirs[name].grad)))
    left = sorted(name for name, each in residuals(state).items() if each.any())
    return {**ledger.close(), "alike": alike, "left": left, "statistics": state.compression_stats()}


class Kinds(nn.Module):
    """A table with sparse gradients, and complex weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(40, 8, sparse=True)
        self.mix = nn.Parameter(torch.randn(8, 16, dtype=torch.complex64))
        self.out = nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.out((self.table(rows).to(torch.complex64) @ self.mix).abs())
        return mixed


def kinds(agent: Agent) -> dict[str, Any]:
    """Sparse and complex gradients next to plain DDP; a residual was loaded for the table, in step 3 rank 1 has NaN."""
    try:
        dist.broadcast(torch.zeros(1, dtype=torch.complex64), 0)
    except RuntimeError:  # older torch has no complex numbers in gloo
        return {}
    ddp: dict[str, Any] = {"bucket_cap_mb": CAP_MB, "find_unused_parameters": True}
    module, plain = (DistributedDataParallel(Kinds(), **ddp) for _ in range(2))
    state = register_comm_hook(module, agent, on_nonfinite="skip", **OPTIONS)
    loaded = {state.owner: {"table.weight": torch.full((320,), 0.25)}}
    state.load_state_dict({**state.state_dict(), "residuals": loaded})
    spoiler, generator = Spoiler(module.module.table.weight, torch.nan), torch.Generator().manual_seed(agent.rank)
    owed, apart, nan = torch.zeros(8, 16, dtype=torch.complex64), [], []
    for step in range(5):
        rows = torch.randint(40, (6,), generator=generator)
        spoiler.on = step == 3 and agent.rank == 1
        for each in (module, plain):
            each.zero_grad()
            each(rows).square().sum().backward()
        ours, theirs = dict(module.module.named_parameters()), dict(plain.module.named_parameters())
        nan.append(all(bool(each.grad.to_dense().isnan().all()) for each in ours.values()))
        if not nan[-1]:
            owed += theirs["mix"].grad - ours["mix"].grad
        both = [each["table.weight"].grad for each in (ours, theirs)]
        apart.append(float((both[0].to_dense() - both[1].to_dense()).abs().max()) if both[0].is_sparse else -1)
    left = state.state_dict()["residuals"][state.owner]["mix"].clone()
    dist.all_reduce(left)
    mean = torch.view_as_complex(left.view(8, 16, 2)) / 2
    return {
        "apart": apart, "nan": nan, "out": float((owed - mean).abs().max()), "largest": float(mean.imag.abs().max()),
        "group_bytes": state.compression_stats()["uncompressed_bytes"],
    }  # fmt: skip


def error(agent: Agent) -> dict[str, Any]:
    """A gradient of rank 1 is NaN in the second step, in a compressed parameter or in one that is not."""
    result = []
    for uncompressed in ((), ("right.*",)):
        module, state, ledger = make(agent, uncompressed=uncompressed)
        spoiler, texts, kept = Spoiler(module.module.right.weight, torch.nan), list[str](), []
        for step in range(4):
            batch, before = draw(agent.rank, step), residuals(state)
            spoiler.on = step == 1 and agent.rank == 1
            module.zero_grad()
            try:
                backward(module, batch)
            except RuntimeError as failure:
                texts.append(str(failure))
            else:
                ledger.owe([batch])
                ledger.pay()
            kept.append(same(residuals(state), before))
        result.append({**ledger.close(), "texts": texts, "kept": kept, "failure": type(state.failure).__name__})
    return {"runs": result}


def pair(agent: Agent) -> list[dict[str, Any]]:
    """Two models in one backward pass, on the one communicator."""
    made = [make(agent, seed=seed) for seed in range(2)]
    for step in range(5):
        losses = []
        for number, (module, _, ledger) in enumerate(made):
            batch = draw(agent.rank, 2 * step + number)
            ledger.owe([batch])
            module.zero_grad()
            losses.append(loss_of(module, batch))
        sum(losses).backward()  # type: ignore[union-attr]
        for _, _, ledger in made:
            ledger.pay()
    return [ledger.close() for _, _, ledger in made]


def registered(agent: Agent) -> dict[str, Any]:
    """torch's wrapper around our hook hands it buckets of float16."""
    module = DistributedDataParallel(Model(), bucket_cap_mb=CAP_MB)
    module.register_comm_hook(HopsumState(agent, module, **OPTIONS), fp16_compress_wrapper(hopsum_hook))
    backward(module, draw(agent.rank, 0))
    gradients = [each.grad for each in module.parameters()]
    return {"digest": digest(gradients), "finite": all(bool(each.isfinite().all()) for each in gradients)}


def wrapped(agent: Agent) -> dict[str, Any]:
    """The hook is registered on a DDP in wrappers."""
    module = DistributedDataParallel(Model(), find_unused_parameters=True)
    fabric = nn.ModuleDict({"_forward_module": torch.compile(module, backend="eager")})  # as Lightning has it
    state = register_comm_hook(fabric, agent, uncompressed="left.bias", **OPTIONS)
    backward(module, draw(agent.rank, 0))  # not by the wrappers: that would compile
    return {"names": sorted(residuals(state)), "drops_unused": state._require_sender().drops_unused}


def refuse(agent: Agent) -> dict[str, Any]:
    """The refusals of register_comm_hook: a model without DDP, ranks that do not fit, a second hook, other options."""
    texts, alone = [], [dist.new_group([rank]) for rank in range(2)]
    module = DistributedDataParallel(Model(), process_group=alone[agent.rank])
    again = make(agent)[0]
    late, named = ({"start_iter": 3 * agent.rank}, {"uncompressed": ["*.bias"] if agent.rank else []})
    fresh = [DistributedDataParallel(Model()) for _ in range(3)]
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        reducer = DistributedDataParallel(Model())
    cases = ((nn.Linear(2, 2), agent, {}), (module, agent, {}), (again, None, {}), (fresh[0], agent, late))
    for each, comm, options in (*cases, (fresh[1], agent, named), (reducer, agent, {})):
        try:
            register_comm_hook(each, comm, **options)
        except (TypeError, ValueError, RuntimeError, MeetingError) as failure:
            texts.append(f"{type(failure).__name__}: {failure}")
    register_comm_hook(fresh[2], agent, error_feedback=bool(agent.rank))  # may differ
    return {"texts": texts}


def scenarios(agent: Agent) -> dict[str, Any]:
    found = {
        "no_sync": accumulate(agent, no_sync=True),
        "accumulated": accumulate(agent, no_sync=False),
        **{str(dtype): train(agent, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)},
        "scale": scale(agent),
        "unused": unused(agent),
        "warm_up": warm_up(agent),
        "auto": auto(agent),
        "small": small(agent),
        "kinds": kinds(agent),
        "error": error(agent),
        "pair": pair(agent),
        "registered": registered(agent),
    }
    return found if "low_rank" in OPTIONS else {**found, "wrapped": wrapped(agent), "refuse": refuse(agent)}


def main() -> None:
    where, rank, workers, membership, store = sys.argv[1:]
    if where != "host" and int(rank) == 1:
        OPTIONS["codec_on"] = "device"
    if where == "low rank":
        # The first step of a scenario is whole.
        OPTIONS.update(low_rank=1, low_rank_start=1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(workers))
    codec = make_codec("thc:result_bits=8", workers=int(workers), backend="numpy")
    with Agent(membership, int(rank), codec=codec, timing=Timing(retransmit_s=0.2, deadline_s=60.0)) as agent:
        print(json.dumps(scenarios(agent)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
