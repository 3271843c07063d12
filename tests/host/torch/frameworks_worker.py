# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_frameworks.py: `torchrun frameworks_worker.py FRAMEWORK MEMBERSHIP`; rank 0 prints JSON.

What is marked HOPSUM is the recipe of docs/training.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ledger import Model, draw, loss_of

import hopsum
from hopsum.torch import register_comm_hook

STEPS = 6


def with_accelerate(comm: Any, rank: int) -> tuple[Any, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    raw = Model()
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.02))
    state = register_comm_hook(model, comm)  # HOPSUM: after prepare
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, draw(rank, step)))
        optimizer.step()
    return state, model


def with_lightning(comm: Any, rank: int) -> tuple[Any, Any]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return loss_of(self.model, draw(rank, index))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.02)

    class Hopsum(lightning.Callback):  # HOPSUM
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.state = register_comm_hook(trainer.strategy.model, comm)

    callback, module = Hopsum(), Module()
    lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_steps=STEPS, callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, torch.utils.data.DataLoader(torch.zeros(4 * STEPS, 1)))  # fmt: skip
    return callback.state, module


def with_transformers(comm: Any, rank: int) -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

    class Hopsum(TrainerCallback):  # HOPSUM
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.state = register_comm_hook(trainer.model_wrapped, comm)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self.state.state_dict(), folder / f"hopsum{comm.rank}.pt")

    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    rows = torch.randint(64, (8 * STEPS, 16), generator=torch.Generator().manual_seed(1))
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", save_steps=STEPS, seed=0,
        )  # fmt: skip
        data: Any = [{"input_ids": row, "labels": row} for row in rows]
        trainer, callback = Trainer(model, arguments, train_dataset=data), Hopsum()
        trainer.add_callback(callback)  # HOPSUM
        with redirect_stdout(sys.stderr):  # it prints its times
            trainer.train()
        saved = torch.load(Path(folder) / f"checkpoint-{STEPS}" / f"hopsum{rank}.pt", weights_only=True)
    assert saved["rank"] == rank
    assert any(each.any() for each in saved["residuals"].values())
    return callback.state, trainer.model


def main() -> None:
    framework, membership = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    with hopsum.connect(f"file://{membership}", rank=rank, backend="numpy") as comm:
        state, model = _FRAMEWORKS[framework](comm, rank)
        data = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        statistics = state.compression_stats()
    found = {"digest": hashlib.sha256(data).hexdigest(), "steps": statistics["steps"], "sums": statistics["allreduces"]}
    every: list[dict[str, Any]] = [{}] * 2
    dist.all_gather_object(every, found)
    if rank == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


_FRAMEWORKS = {"accelerate": with_accelerate, "lightning": with_lightning, "transformers": with_transformers}

if __name__ == "__main__":
    main()
