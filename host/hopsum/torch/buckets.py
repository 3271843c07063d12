# SPDX-License-Identifier: Apache-2.0
"""A bucket's way into its sums: what is compressed goes to the agent, the rest to torch's process group.

Parameters that bypass the switch have means by torch's process group, in the gradients' own type: the same numbers
that DDP makes without a hook. Each rank divides by the number of ranks, then all add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import AllReduceResult, Communicator
from hopsum.codec.interface import OnNonfinite
from hopsum.errors import WorkersReplacedError
from hopsum.torch.device_codec import DeviceCodecs
from hopsum.torch.low_rank import LowRank, Matrices
from hopsum.torch.low_rank_factors import LowRankPortion, MatrixLayout
from hopsum.torch.residuals import WRAPPERS, Residuals, bare_names
from hopsum.torch.step import BucketSlice, Layout, Step, places_of
from hopsum.torch.step_times import StepTimes, Tally
from hopsum.torch.sum_order import SumOrder
from hopsum.torch.tensors import real_elements, values_of

# ---- means by the process group ----------------------------------------------------------------------------


class GroupSums:
    """All-reduces of a process group of torch. `average` counts its elements and bytes, the others do not."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.workers = dist.get_world_size(group)
        self.elements = 0
        self.bytes = 0
        """The bytes of gradients. The process group decides how often they cross a wire."""
        self._group = group

    def average(self, x: torch.Tensor) -> torch.futures.Future[Any]:
        """Count x, divide it in place, and begin its sum over the ranks. Once the future is done, x has the mean."""
        held = values_of(x)
        self.elements += held.numel()
        self.bytes += held.numel() * held.element_size()
        return self._start(x.div_(self.workers), dist.ReduceOp.SUM)

    def average_numbers(self, values: list[float]) -> list[float]:
        """Wait for the mean of each number over the ranks, and return the means. All ranks call it together."""
        # float64: a rounding to float32 may decide between two close times.
        # NCCL has no all-reduce of the host's memory.
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        x = torch.tensor(values, dtype=torch.float64, device=device) / self.workers
        self._start(x, dist.ReduceOp.SUM).wait()
        return list(map(float, x.tolist()))

    def merge_flags(self, flags: torch.Tensor) -> torch.futures.Future[Any]:
        """Begin to replace uint8 flags in place by their maximum over the ranks. Then the future is done."""
        return self._start(flags, dist.ReduceOp.MAX)

    def _start(self, x: torch.Tensor, op: Any) -> torch.futures.Future[Any]:
        work = dist.all_reduce(x, op, group=self._group, async_op=True)
        assert work is not None
        future: torch.futures.Future[Any] = work.get_future()
        return future


def group_of(module: nn.Module, comm: Communicator, given: dist.ProcessGroup | None = None) -> dist.ProcessGroup | None:
    """Return the process group that is given, or DistributedDataParallel's, or the default one if that fits, else None.

    It is None also while torch.distributed is not initialised, whatever is given.

    Raises:
        ValueError: the given group, or DistributedDataParallel's, has another rank or size than the communicator.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    # DDP's own group, which a program may have made of some ranks only.
    own: dist.ProcessGroup | None = module.process_group if isinstance(module, DistributedDataParallel) else None
    group = given or own or dist.group.WORLD
    rank, workers = dist.get_rank(group), dist.get_world_size(group)
    if (rank, workers) == (comm.rank, comm.workers):
        return group
    if not given and not own:
        return None
    raise ValueError(
        f"rank {rank} of {workers} in torch's process group, but the communicator is rank {comm.rank} of "
        f"{comm.workers}: make the communicator with the rank of the process group, and the job for as many workers; "
        "for a DDP of some ranks hopsum.connect('hosts://', group=ddp.process_group) does so, and "
        "register_comm_hook(ddp) by itself"
    )


def ddp_in(module: nn.Module | None) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a module is, or has in wrappers such as torch.compile's; else None."""
    while module is not None and not isinstance(module, DistributedDataParallel):
        module = next((each for name, each in module.named_children() if name in WRAPPERS), None)
    return module


def require_buckets(module: nn.Module) -> None:
    """Raise ValueError for a DistributedDataParallel that hands hooks no buckets but one gradient after the other."""
    # torch asks its configuration once, when the module is made.
    if getattr(module, "_use_python_reducer", False):
        raise ValueError(
            'torch._dynamo.config.optimize_ddp is "python_reducer", whose DistributedDataParallel has no buckets for a '
            'communication hook: set it to "ddp_optimizer" or False before DistributedDataParallel(model)'
        )


def drops_unused(module: nn.Module) -> bool:
    """Return whether a module is a DistributedDataParallel that ignores the means of parameters that no rank used."""
    ddp = isinstance(module, DistributedDataParallel)
    return ddp and bool(module.find_unused_parameters or module.static_graph)


def sparse_parameters(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that will have sparse gradients, by the rule of DistributedDataParallel."""
    tables = [each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse]
    # `weight` is no parameter where it is computed (torch.nn.utils.parametrize).
    return [each for table in tables for each in table.parameters(recurse=False) if each.requires_grad]


def uncompressed_names(
    parameters: Mapping[torch.Tensor, str],
    small_tensor_bytes: int,
    patterns: Collection[str],
    aliases: Mapping[str, torch.Tensor],
) -> frozenset[str]:
    """Return the names of the parameters that are not compressed: small ones, and those that fit a pattern.

    Args:
        parameters: the name of each parameter.
        small_tensor_bytes: parameters of fewer bytes are small.
        patterns: of names, as "*.bias".
        aliases: all names of the parameters: tied ones have several.

    Raises:
        ValueError: a pattern that fits no name.
    """
    chosen = {
        parameter for parameter in parameters if parameter.numel() * parameter.element_size() < small_tensor_bytes
    }
    # A script keeps its patterns when it wraps the model.
    bare = bare_names(patterns)
    for pattern in patterns:
        fit = {each for name, each in aliases.items() if fnmatchcase(name, bare[pattern])}
        if not fit:
            first = ", ".join(sorted(parameters.values())[:4])
            raise ValueError(f"uncompressed={pattern!r} fits no parameter; the module has {first}, ...")
        chosen |= fit
    return frozenset(parameters[each] for each in chosen)


# ---- a bucket's way into its sums --------------------------------------------------------------------------


class Bucket(Protocol):
    """The part of torch.distributed.GradBucket that is used here."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients of the bucket, flat, one parameter after the other."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters, in the order of the buffer."""

    def index(self) -> int:
        """Return the number of the bucket in its backward pass, from 0."""

    def is_last(self) -> bool:
        """Return whether no other bucket follows in this backward pass."""


@dataclass(frozen=True, slots=True)
class _Alone:
    """A vector that is the only bucket of its step."""

    vector: torch.Tensor
    members: list[torch.Tensor]

    def buffer(self) -> torch.Tensor:
        return self.vector

    def parameters(self) -> list[torch.Tensor]:
        return self.members

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


Way = Literal["low rank", "codec", "group"]
"""The ways of a parameter's gradient: as factors by the communicator, whole by it, or by torch's process group."""
_WAYS: tuple[Way, ...] = ("low rank", "codec", "group")


@dataclass(frozen=True, slots=True)
class Sender:
    """Begins the all-reduces of buckets, and notes them in the step, which ends them together."""

    communicator: Communicator
    names: dict[torch.Tensor, str]
    uncompressed: frozenset[str]
    """Parameters that are never compressed."""
    group: GroupSums | None
    """There is one if anything is not compressed, or drops_unused."""
    drops_unused: bool
    """DDP drops the mean of a parameter that no rank used."""
    residuals: Residuals
    error_feedback: bool
    on_nonfinite: OnNonfinite
    keeps_gradients: bool = False
    """Buffers have the rank's own gradients until the step has ended."""
    times: Tally = field(default_factory=StepTimes)
    device_codecs: DeviceCodecs | None = None
    """The codecs of the devices of gradients; None: all are encoded on the host."""
    matrices: Matrices | None = None
    """The matrices that travel as factors; None: there are none."""
    order: SumOrder = field(init=False)
    """Of what all hooks hand to the communicator."""
    low_rank: LowRank | None = field(init=False, default=None)
    """The sums of their factors."""
    _layouts: dict[tuple[bool, bool, tuple[int, ...]], list[tuple[Layout, Way]]] = field(default_factory=dict)
    """Layouts of a bucket and their ways; by `compress`, `factor`, and the ids of the bucket's parameters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", SumOrder(self.communicator))
        if self.matrices is not None:
            made = LowRank(
                self.communicator,
                self.order,
                self.matrices,
                self.residuals,
                self.device_codecs or DeviceCodecs(self.communicator, "host"),
                on_nonfinite=self.on_nonfinite,
                keeps_gradients=self.keeps_gradients,
                times=self.times,
            )
            object.__setattr__(self, "low_rank", made)

    def send(
        self,
        bucket: Bucket,
        step: Step,
        *,
        number: int,
        compress: bool,
        factor: bool = False,
        told: Sequence[tuple[str, int]] = (),
    ) -> list[BucketSlice]:
        """Begin the sums of a bucket in a step, and return them. An error of a sum ends that sum in the step.

        The buckets of a step are a group (`Communicator.group_start`), which `HopsumState` starts and ends: DDP knows
        which bucket is the last, and knows the same on all ranks.

        Args:
            number: of the first all-reduce that the communicator is handed, if any.
            compress: False: the process group averages the whole bucket.
            factor: matrices of low rank travel as factors; False: whole, as all others.
            told: see `BucketSlice.told`.

        Raises:
            ValueError: the bucket has a foreign parameter, or gradients that are not dense real numbers. No sum began.
        """
        buffer = bucket.buffer()
        by_group = buffer.is_sparse and self.group is not None
        if not (buffer.layout is torch.strided or by_group) or not buffer.is_floating_point():
            raise ValueError(f"hopsum sums dense floating-point gradients, not {buffer.dtype} {buffer.layout}")
        # Ranks have other rows of a sparse gradient: there is no vector that a switch could add.
        layouts = self._layouts_of(bucket, buffer, compress and not by_group, factor)
        # Before any sum begins: with `out` in place the mean may overwrite the gradients at once.
        used = self._used(buffer, layouts) if self.drops_unused else []
        portions = []
        for layout, way in layouts:
            portion = self._portion(buffer, layout, way)
            portion.told = told
            portions.append(portion)
            step.begin(portion)
            try:
                if isinstance(portion, LowRankPortion) and self.low_rank is not None:
                    self.low_rank.send(portion, step, number)
                elif portion.compressed:
                    self._to_switch(portion, step, number)
                else:
                    self._to_group(portion, step)
            except Exception as error:
                step.end(portion, failure=error)
            number += portion.allreduces if portion.compressed else 0
        if self.drops_unused:
            self._ask_for_use(used, buffer.device, step, portions)
        return portions

    def send_alone(
        self,
        vector: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        *,
        number: int,
        factor: bool,
        told: Sequence[tuple[str, int]] = (),
    ) -> tuple[Step, list[BucketSlice]]:
        """Begin a step of one vector, which no other of this sender overlaps. Return it, and its sums.

        When the step has ended without an error, `scatter` of each sum writes the mean into the vector.

        Args:
            vector: the gradients of these parameters, flat. It is the sender's until the step has ended.
            parameters: as in `names`, in the order of the vector.
            number, factor, told: as for `send`.

        Raises:
            ValueError: as `send` does. An error of a sum is in the step.
        """
        step, bucket = Step(self.residuals.clear), _Alone(vector, list(parameters))
        if self.low_rank is not None:
            self.low_rank.begin_step()
        self.order.group_start()
        try:
            portions = self.send(bucket, step, number=number, compress=True, factor=factor, told=told)
        finally:
            self.order.group_end()
        if self.low_rank is not None:
            self.low_rank.complete()
        step.complete()
        return step, portions

    def _portion(self, buffer: torch.Tensor, layout: Layout, way: Way) -> BucketSlice:
        if self.low_rank is not None and isinstance(layout, MatrixLayout):
            return self.low_rank.portion(buffer, layout)
        return BucketSlice(buffer, layout, compressed=way == "codec")

    def _layouts_of(
        self, bucket: Bucket, buffer: torch.Tensor, compress: bool, factor: bool
    ) -> list[tuple[Layout, Way]]:
        parameters = bucket.parameters()
        # `names` holds the parameters, so no other object gets the id of one of them.
        key = compress, factor, tuple(map(id, parameters))
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = self._make_layouts(parameters, buffer.numel(), compress, factor)
        return found

    def _make_layouts(
        self, parameters: Sequence[torch.Tensor], elements: int, compress: bool, factor: bool
    ) -> list[tuple[Layout, Way]]:
        unknown = [tuple(parameter.shape) for parameter in parameters if parameter not in self.names]
        if unknown:
            raise ValueError(f"parameters of shapes {unknown} are not in the module that HopsumState was made with")
        # DDP's buckets have complex gradients as pairs of real numbers.
        sizes = [real_elements(parameter) for parameter in parameters]
        if sum(sizes) != elements:
            raise ValueError(f"bucket of {elements} elements for parameters of {sum(sizes)}")
        named = list(zip([self.names[each] for each in parameters], places_of(sizes), strict=True))
        layouts: list[tuple[Layout, Way]] = []
        for way in _WAYS:
            chosen = [each for each in named if self._way(each[0], compress, factor) == way]
            if chosen:
                names, places = [name for name, _ in chosen], [place for _, place in chosen]
                if way == "low rank" and self.low_rank is not None:
                    layouts.append((self.low_rank.layout(names, places, elements), way))
                else:
                    layouts.append((Layout(names, places, elements), way))
        return layouts

    def _way(self, name: str, compress: bool, factor: bool) -> Way:
        """Return the way of a parameter's gradient."""
        if not compress or name in self.uncompressed:
            return "group"
        return "low rank" if factor and self.low_rank is not None and name in self.low_rank.matrices.shapes else "codec"

    def _to_switch(self, portion: BucketSlice, step: Step, number: int) -> None:
        layout, device = portion.layout, portion.buffer.device
        on_device = self.device_codecs.codec_for(device) if self.device_codecs else None
        # float32 on its place is not copied: the all-reduce works in DDP's own buffer.
        x = portion.x.to("cpu" if on_device is None else device, torch.float32).contiguous()
        # A step that may be redone by the process group needs the gradients once more.
        if self.keeps_gradients and x.data_ptr() == portion.buffer.data_ptr():
            x = x.clone()
        portion.x = x
        tensors = [*portion.told, *layout.tensors]
        call: dict[str, Any] = {"step": number, "tensors": tensors, "on_nonfinite": self.on_nonfinite}
        if on_device is None:
            kept = self.residuals.feedback(layout.names, layout.sizes) if self.error_feedback else None
            vector: Any = x.numpy()
            portion.feedback, call["feedback"], call["out"] = kept, kept, vector
            portion.residual_before = None if kept is None else kept.residual
        else:
            held = self.residuals.device_feedback(layout.names, layout.sizes, device) if self.error_feedback else None
            portion.feedback = held
            portion.residual_before = None if held is None else held.residual
            vector = on_device.vector(x, held, out=x)

        def submit() -> Future[AllReduceResult]:
            future = self.communicator.submit(vector, **call)
            portion.submitted = True
            return future

        def take(done: Future[AllReduceResult]) -> bool:
            try:
                result = done.result()
            except WorkersReplacedError:
                # The communicator has put the whole vector into the feedback: a step that is done again takes it back.
                portion.settled = True
                raise
            self.times.end_allreduce(result, x.numel())
            portion.settled = not result.skipped
            return portion.settled

        def refuse(error: BaseException) -> None:
            step.end(portion, failure=error)

        # `_end` runs in the communicator's thread, or in this one where the result is there already.
        self.order.submit(submit, partial(_end, step, portion, take), refuse)

    def _to_group(self, portion: BucketSlice, step: Step) -> None:
        assert self.group is not None
        if portion.layout.is_whole:
            # A copy: DDP's buffer keeps the gradients until the step has ended.
            portion.x = portion.x.clone()
        portion.add_residuals(self.residuals)
        future = self.group.average(portion.x)

        def take(done: torch.futures.Future[Any]) -> bool:
            done.wait()
            # The process group says nothing of NaN: each rank looks at the same mean, so all decide alike.
            if portion.is_finite:
                return True
            if self.on_nonfinite == "skip":
                return False
            raise portion.nonfinite_error(self.communicator.rank)

        future.add_done_callback(partial(_end, step, portion, take))

    def _used(self, buffer: torch.Tensor, layouts: list[tuple[Layout, Way]]) -> list[bool]:
        """Return which parameters have a gradient here, in the order of the layouts."""
        if buffer.is_sparse:
            return [True]
        return [bool(buffer[place].any()) for layout, _ in layouts for place in layout.places]

    def _ask_for_use(self, here: list[bool], device: torch.device, step: Step, portions: list[BucketSlice]) -> None:
        """Find out which parameters have a gradient on any rank."""
        assert self.group is not None
        used = torch.tensor(here, dtype=torch.uint8, device=device)
        step.keep_unused(portions, used)
        step.begin()
        try:
            future = self.group.merge_flags(used)
        except Exception as error:
            step.end(failure=error)
            return

        def take(done: torch.futures.Future[Any]) -> bool:
            done.wait()
            return True

        future.add_done_callback(partial(_end, step, None, take))


def _end(step: Step, portion: BucketSlice | None, take: Callable[[Any], bool], done: Any) -> None:
    """End an all-reduce as its result says, True for a mean. All errors go into the step: nobody hears them here."""
    try:
        # `take` gets the future here. A closure over it would be a cycle, which keeps the result until a collection.
        has_mean = take(done)
    except BaseException as failure:
        step.end(portion, failure=failure)
    else:
        step.end(portion, dropped=not has_mean)
