# SPDX-License-Identifier: Apache-2.0
"""What the DDP hook keeps from step to step, and in a checkpoint.

Each rank has a state of its own: save and load it per rank. What it does not hold is the agent, which belongs to
one epoch; a state that was pickled needs `attach` before it is used again.

After a failed step the residuals hold what it did not deliver: go on from a checkpoint (which replaces them), or
drop that step's gradients; doing the step again would count them twice. Under a GradScaler residuals are scaled as
the gradients were when they arose. For a parameter that no rank used in a step (find_unused_parameters) DDP drops the
mean, and with it the residual that was in it. DDP starts with one bucket and rebuilds after the first step, so the
first steps after a restart round differently from those of a run that went on.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Agent, AllReduceResult
from hopsum.codec.base import OnNonfinite, require_on_nonfinite
from hopsum.torch.residuals import Residuals

_VERSION: Final = 1


class StateDict(TypedDict):
    """What is saved of a state. Loads with `torch.load(..., weights_only=True)`."""

    version: int
    rank: int
    allreduces: int
    """Where the randomness goes on."""
    residuals: dict[str, torch.Tensor]
    """float32[elements] by parameter name, on the CPU."""


class Bucket(Protocol):
    """What is used of torch.distributed.GradBucket."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients of the bucket, flat, one parameter after the other."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters, in the order of the buffer."""


class State:
    """State of the hook: the agent, and the error feedback of each parameter of `module` by its name.

    Args:
        agent: sums; stays the caller's to close.
        module: the one that is trained, or the DistributedDataParallel around it.
        error_feedback: whether what a sum does not deliver is added to the next gradient.
        on_nonfinite: the same on all ranks, when some rank's gradients have NaN or infinity. "error": `backward` raises
            on all ranks, naming the parameters; "skip": the bucket is NaN on all ranks, which is what a GradScaler
            takes as the reason to skip the step. Residuals stay as they were.
    """

    def __init__(
        self,
        agent: Agent,
        module: nn.Module,
        *,
        error_feedback: bool = True,
        on_nonfinite: OnNonfinite = "error",
    ) -> None:
        require_on_nonfinite(on_nonfinite)
        self.error_feedback = error_feedback
        self.on_nonfinite = on_nonfinite
        self.allreduces = 0
        """Buckets handed to the agent; the same on all ranks."""
        self.failure: BaseException | None = None
        """Why an all-reduce failed; what `backward` raises has only its text."""
        self.rank = agent.rank
        self._residuals = Residuals()
        self._pending: list[Future[AllReduceResult]] = []
        self._agent: Agent | None = None
        self._names: dict[torch.Tensor, str] = {}
        self.attach(agent, module)

    def attach(self, agent: Agent, module: nn.Module) -> None:
        """Go on with another agent (a new epoch, or after unpickling) and the same module.

        Raises:
            ValueError: an agent of another rank, or a residual that fits no parameter. Nothing was changed.
        """
        if agent.rank != self.rank:
            raise ValueError(f"agent of rank {agent.rank} for a state of rank {self.rank}")
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        names = {parameter: name for name, parameter in inner.named_parameters()}
        _require_fit(self._residuals.as_dict(), names)
        self._agent, self._names, self._pending, self.failure = agent, names, [], None

    def submit(self, bucket: Bucket) -> Future[AllReduceResult]:
        """Hand a bucket's gradients to the agent; for the hook. The buffer stays as it is until the future is done.

        Raises:
            RuntimeError: no agent; call `attach`.
            ValueError: the bucket has a foreign parameter, or gradients that are not dense real numbers.
            EpochOver, AgentClosed: the agent takes nothing more. After any of these nothing was submitted.
        """
        if self._agent is None:
            raise RuntimeError("this State was unpickled: call attach(agent, module) before the first step")
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout is not torch.strided or not buffer.is_floating_point():
            raise ValueError(f"hopsum sums dense floating-point gradients, not {buffer.dtype} {buffer.layout}")
        unknown = [tuple(parameter.shape) for parameter in parameters if parameter not in self._names]
        if unknown:
            raise ValueError(f"parameters of shapes {unknown} are not in the module that State was made with")
        names, sizes = [self._names[each] for each in parameters], [each.numel() for each in parameters]
        if sum(sizes) != buffer.numel():
            raise ValueError(f"bucket of {buffer.numel()} elements for parameters of {sum(sizes)}")
        feedback = self._residuals.feedback(names, sizes) if self.error_feedback else None
        x = buffer.detach().to("cpu", torch.float32).contiguous().numpy()
        future = self._agent.submit(
            x,
            feedback=feedback,
            step=self.allreduces,
            tensors=list(zip(names, sizes, strict=True)),
            on_nonfinite=self.on_nonfinite,
        )
        self.allreduces += 1
        self._pending = [*(each for each in self._pending if not each.done()), future]
        return future

    def compression_stats(self) -> dict[str, float]:
        """Return what the agent has summed so far and what it cost, in numbers, for a log.

        `fp32_bytes` is the size of the gradients; `bytes_up` and `bytes_down` are what passed this worker's interface,
        headers included; the ratios are fp32_bytes by them. Raises RuntimeError without an agent.
        """
        if self._agent is None:
            raise RuntimeError("this State was unpickled: call attach(agent, module) first")
        statistics = self._agent.statistics
        traffic, fp32_bytes = statistics.traffic, 4 * statistics.elements
        up, down = traffic.interface_bytes_sent, traffic.interface_bytes_received
        return {
            "allreduces": statistics.allreduces,
            "skipped": statistics.skipped,
            "elements": statistics.elements,
            "fp32_bytes": fp32_bytes,
            "bytes_up": up,
            "bytes_down": down,
            "ratio_up": fp32_bytes / up if up else float("nan"),
            "ratio_down": fp32_bytes / down if down else float("nan"),
            "packets_up": traffic.datagrams_sent,
            "packets_down": traffic.datagrams_received,
            "retransmits": traffic.retransmits,
        }

    def state_dict(self) -> StateDict:
        """Return what a checkpoint needs, copied. Raises RuntimeError in the middle of a backward pass."""
        if not all(future.done() for future in self._pending):
            raise RuntimeError("gradients are on their way: take the state between backward passes")
        residuals = {name: torch.from_numpy(each) for name, each in self._residuals.as_dict().items()}
        return StateDict(version=_VERSION, rank=self.rank, allreduces=self.allreduces, residuals=residuals)

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned on this rank.

        Raises:
            ValueError: of another version of hopsum, of another rank, or for other parameters. Nothing was changed.
        """
        if state["version"] != _VERSION:
            raise ValueError(f"state of version {state['version']}, this hopsum reads version {_VERSION}")
        if state["rank"] != self.rank:
            raise ValueError(f"state of rank {state['rank']} on rank {self.rank}: each rank saves and loads its own")
        arrays = {name: tensor.detach().to("cpu", torch.float32).numpy() for name, tensor in state["residuals"].items()}
        _require_fit(arrays, self._names)
        self._residuals.load(arrays)
        self.allreduces = state["allreduces"]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "error_feedback": self.error_feedback,
            "on_nonfinite": self.on_nonfinite,
            "state": self.state_dict(),
        }

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        state: StateDict = pickled["state"]
        self.error_feedback, self.on_nonfinite = pickled["error_feedback"], pickled["on_nonfinite"]
        self.failure = None
        self.rank, self.allreduces = state["rank"], state["allreduces"]
        self._agent, self._names, self._pending = None, {}, []
        self._residuals = Residuals()
        self._residuals.load({name: tensor.numpy() for name, tensor in state["residuals"].items()})


def _require_fit(residuals: Mapping[str, NDArray[np.float32]], names: Mapping[torch.Tensor, str]) -> None:
    """Raise ValueError unless every residual is one of these parameters'."""
    sizes = {name: parameter.numel() for parameter, name in names.items()}
    for name, residual in residuals.items():
        if sizes.get(name) != residual.size or residual.ndim != 1:
            here = f"{sizes[name]} elements" if name in sizes else "no such parameter"
            raise ValueError(
                f"residual of {name!r} with shape {list(residual.shape)}, but the module has {here}: load the state "
                "of the same model"
            )
