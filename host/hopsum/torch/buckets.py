# SPDX-License-Identifier: Apache-2.0
"""A bucket's way into its sums: what is compressed goes to the agent, the rest to torch's process group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hopsum.codec.interface import OnNonfinite, nonfinite_error
from hopsum.communicator import Communicator
from hopsum.errors import WorkersReplacedError
from hopsum.torch.device import DeviceCodecs
from hopsum.torch.residuals import Residuals
from hopsum.torch.step import Portion, PortionSum, Step, places_of
from hopsum.torch.step_times import StepTimes
from hopsum.torch.uncompressed import GroupSums


class Bucket(Protocol):
    """The part of torch.distributed.GradBucket that is used here."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients of the bucket, flat, one parameter after the other."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters, in the order of the buffer."""

    def index(self) -> int:
        """Return which bucket of the backward pass it is."""

    def is_last(self) -> bool:
        """Return whether no other bucket follows in this backward pass."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Begins the sums of buckets. What it begins is noted in the step, and ends there."""

    agent: Communicator
    names: dict[torch.Tensor, str]
    plain: frozenset[str]
    """Parameters that are never compressed."""
    group: GroupSums | None
    """There is one if anything is not compressed, or drops_unused."""
    drops_unused: bool
    """DDP drops the mean of a parameter that no rank used."""
    residuals: Residuals
    error_feedback: bool
    on_nonfinite: OnNonfinite
    keeps_gradients: bool = False
    """Buffers have the rank's own gradients until the step is over."""
    times: StepTimes = field(default_factory=StepTimes)
    device_codecs: DeviceCodecs | None = None
    """The codecs of the devices of gradients; None: all are encoded on the host."""

    def send(self, bucket: Bucket, step: Step, sums: list[PortionSum], *, number: int, compress: bool) -> None:
        """Begin the sums of a bucket, and append them to `sums`.

        The buckets of a step are a group (`Communicator.group_start`), which `HopsumState` starts and ends: DDP knows
        which bucket is the last, and knows the same on all ranks.

        Args:
            number: of the all-reduce that the agent is handed, if any.
            compress: False: nothing of this bucket is.

        Raises:
            ValueError: the bucket has a foreign parameter, or gradients that are not dense real numbers.
        """
        buffer, names = bucket.buffer(), self._names_in(bucket)
        places = places_of([parameter.numel() for parameter in bucket.parameters()])
        used = self._used(buffer, names, places)
        for plain in (False, True):
            chosen = [
                each for each in zip(names, places, strict=True) if (not compress or each[0] in self.plain) is plain
            ]
            if chosen:
                portion = Portion(buffer, [name for name, _ in chosen], [place for _, place in chosen])
                sums.append(self._to_group(portion, step) if plain else self._to_agent(portion, step, number))
        if self.drops_unused:
            self._ask_for_use(used, buffer.device, step, sums)

    def _names_in(self, bucket: Bucket) -> list[str]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout is not torch.strided or not buffer.is_floating_point():
            raise ValueError(f"hopsum sums dense floating-point gradients, not {buffer.dtype} {buffer.layout}")
        unknown = [tuple(parameter.shape) for parameter in parameters if parameter not in self.names]
        if unknown:
            raise ValueError(f"parameters of shapes {unknown} are not in the module that HopsumState was made with")
        elements = sum(parameter.numel() for parameter in parameters)
        if elements != buffer.numel():
            raise ValueError(f"bucket of {buffer.numel()} elements for parameters of {elements}")
        return [self.names[each] for each in parameters]

    def _to_agent(self, portion: Portion, step: Step, number: int) -> PortionSum:
        names, sizes, device = portion.names, portion.sizes, portion.buffer.device
        on_device = self.device_codecs.at(device) if self.device_codecs else None
        x = portion.gather().to("cpu" if on_device is None else device, torch.float32).contiguous()
        if self.keeps_gradients and x.data_ptr() == portion.buffer.data_ptr():
            x = x.clone()
        begun, tensors = PortionSum(portion, x, compressed=True), list(zip(names, sizes, strict=True))
        call: dict[str, Any] = {"step": number, "tensors": tensors, "on_nonfinite": self.on_nonfinite}
        step.begin(begun)
        try:
            if on_device is None:
                kept = self.residuals.feedback(names, sizes) if self.error_feedback else None
                begun.feedback = kept
                future = self.agent.submit(x.numpy(), feedback=kept, out=x.numpy(), **call)
            else:
                held = self.residuals.device_feedback(names, sizes, device) if self.error_feedback else None
                begun.feedback = held
                future = self.agent.submit_vector(on_device.vector(x, held, out=x), **call)
        except Exception as error:
            step.end(failure=error)
            return begun
        begun.submitted = True

        def take() -> bool:
            try:
                result = future.result()
            except WorkersReplacedError:
                begun.settled = True
                raise
            self.times.end_allreduce(result, x.numel())
            if result.skipped:
                return False
            begun.settled = True
            return True

        future.add_done_callback(lambda _: _end(step, take))
        return begun

    def _to_group(self, portion: Portion, step: Step) -> PortionSum:
        assert self.group is not None
        begun = PortionSum(portion, portion.gather().clone())
        begun.carry(self.residuals)
        future = self.group.mean(begun.x)
        step.begin(begun)

        def take() -> bool:
            future.wait()
            if bool(begun.x.isfinite().all()):
                return True
            if self.on_nonfinite == "skip":
                return False
            gradients = portion.gather().to("cpu", torch.float32).numpy()
            raise nonfinite_error(gradients, list(zip(portion.names, portion.sizes, strict=True)), self.agent.rank)

        future.add_done_callback(lambda _: _end(step, take))
        return begun

    def _used(self, buffer: torch.Tensor, names: list[str], places: list[slice]) -> dict[str, bool]:
        """Return which parameters have a gradient here. Before any sum begins: its mean may be here at once."""
        if not self.drops_unused:
            return {}
        return {name: bool(buffer[place].any()) for name, place in zip(names, places, strict=True)}

    def _ask_for_use(self, here: dict[str, bool], device: torch.device, step: Step, sums: list[PortionSum]) -> None:
        """Find out which parameters have a gradient on any rank."""
        assert self.group is not None
        flags = [here[name] for each in sums for name in each.portion.names]
        used = torch.tensor(flags, dtype=torch.uint8, device=device)
        step.watch(list(sums), used)
        future = self.group.any(used)
        step.begin()

        def take() -> bool:
            future.wait()
            return True

        future.add_done_callback(lambda _: _end(step, take))


def _end(step: Step, take: Callable[[], bool]) -> None:
    """End an all-reduce as its result says, True for a mean. All errors go into the step: nobody hears them here."""
    try:
        has_mean = take()
    except BaseException as failure:
        step.end(failure=failure)
    else:
        step.end(dropped=not has_mean)
