# SPDX-License-Identifier: Apache-2.0
"""The state of the DDP hook from step to step, and in a checkpoint.

Each rank has a state of its own. Save that of every rank: they load under any order and number of ranks. A state does
not hold the agent, which belongs to one generation; a state that was pickled needs `attach` before it is used again.

A step is one backward pass that DDP synchronises; `hopsum.torch.step` says what becomes of its buckets. After a
failed one the residuals hold what it did not deliver: continue from a checkpoint (which replaces them), or drop that
step's gradients; doing the step again would count them twice. One that failed with WorkersReplacedError is as if it had
not been: do it again once the agent has resumed. DDP starts with one bucket and rebuilds after the first
step, so the first steps after a restart round differently from those of a run that continued.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Unpack, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum.agent import Communicator
from hopsum.codec.interface import CollectiveError, feeds_back, require_on_nonfinite
from hopsum.config import CodecOn, Method
from hopsum.errors import WorkersReplacedError, unhandled_error
from hopsum.torch.buckets import (
    Bucket,
    GroupSums,
    Sender,
    ddp_in,
    drops_unused,
    group_of,
    require_buckets,
    sparse_parameters,
    uncompressed_names,
)
from hopsum.torch.device_codec import DeviceCodecs
from hopsum.torch.low_rank import Matrices, matrices_of, require_low_rank, usual_rank
from hopsum.torch.low_rank_factors import Factors, require_device_bytes
from hopsum.torch.method_choice import (
    COUNTED_STEPS,
    LEAST_DELIVERED,
    LOW_RANK,
    PROCESS_GROUP,
    AveragingMethod,
    MethodChoice,
)
from hopsum.torch.options import HookOptions, Scaler, settings_from
from hopsum.torch.residuals import (
    RankStateDict,
    Residuals,
    bare_names,
    fit_residuals,
    norm_of,
    redistribute,
    warn_of_lost_residuals,
)
from hopsum.torch.step import ON_SWITCH_LOST, BucketSlice, FallBack, Step
from hopsum.torch.step_times import (
    COMPARE_VARIABLE,
    StepTimes,
    log_or_print,
    steps_to_compare,
)
from hopsum.torch.sum_order import SumOrder
from hopsum.torch.tensor_parallel import join_names, replicated_parameters
from hopsum.torch.tensors import real_elements

_VERSION: Final = 3
_OPTIONS: Final = (
    "error_feedback", "on_nonfinite", "small_tensor_bytes", "uncompressed", "start_iter", "method", "on_switch_lost",
    "log_every", "codec_on", "low_rank", "low_rank_start",
)  # fmt: skip
_METHODS: Final = get_args(Method)
_OF_ONE_RANK: Final = ("error_feedback", "log_every", "codec_on")
"""Options in which ranks may differ."""
_log: Final = logging.getLogger(__name__)


class StateDict(RankStateDict):
    """The saved form of a state. Loads with `torch.load(..., weights_only=True)`."""

    version: int
    steps: int
    """Backward passes so far, from which the warm-up continues."""
    allreduces: int
    """Numbers of all-reduces so far, from which the randomness continues."""
    scale: float
    """The scale of the residuals: the GradScaler's."""
    factors: dict[str, torch.Tensor]
    """The last Q of each matrix of low rank, float32[rank, columns] on the CPU: the same on all ranks."""


class _Calls:
    """A flag that says whether a state was ever handed a bucket. It outlives the state."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.any = False

    def warn(self) -> None:
        """Warn at the end of the program that no gradient went through hopsum, unless it ends by an error."""
        if not self.any and unhandled_error() is None:
            _log.warning(
                "rank %d: a HopsumState was made and its hook was never called: no gradient went through hopsum. "
                "Was the hook registered on the module that is trained? Lightning registers none on the CPU",
                self.rank,
            )


class HopsumState:
    """State of the DDP communication hook: a communicator, and an error feedback for each parameter of `module`.

    All arguments are the same on all ranks, but for the rank of `comm`. Each option but `process_group` and `scaler`
    may be in the environment, as `HOPSUM_` and its name in capitals. Arguments come before it.

    Args:
        comm: sums gradients. The caller closes it. Several states may share a communicator, if all ranks run their
            backward passes in the same order.
        module: the trained module, or the DistributedDataParallel around it.
        error_feedback: whether the undelivered part of a sum is added to the next gradient. `thc:bits=2` has none
            unless the codec says so: `thc:bits=2,error_feedback=true`.
        on_nonfinite: when some rank's gradients have NaN or infinity, the step is dropped on all ranks, and residuals
            are what they were before it. "raise": `backward` raises, naming the parameters; "skip": all gradients
            are NaN, for which a GradScaler skips the step.
        small_tensor_bytes: parameters of fewer bytes than this are not compressed.
        uncompressed: names, or patterns of names (`"*.bias"`), of parameters that are not compressed. Nor are those
            that tensor parallelism replicates where it shards others (`tensor_parallel.py`).
        start_iter: how many steps at the start are not compressed.
        method: "hopsum"; or "auto": the first steps try the codec, low rank and the process group, and the fastest
            stays (`method_choice.py`). Without `low_rank` its rank follows from the model, and it stays only where it
            delivers enough of a gradient. Not for a worker that joins a job later.
        on_switch_lost: "raise"; or "fall_back": from the step on in which some rank lost the switch for good, the
            process group averages, on all ranks alike. Costs a copy of the gradients and a vote of the ranks each step.
        log_every: after so many steps, rank 0 writes a line with their times; 0: never.
        codec_on: "auto": gradients on a GPU are encoded and decoded there, if the codec has code for GPUs, else on the
            host, with a line in the log; "device": on their own device, the CPU too; "host". The bytes are the same.
        low_rank: matrices travel as factors of this rank (`low_rank_factors.py`), parameters of two or more dimensions
            whose factors have half of their elements or less. Their bytes fall by ten to a hundred times. It needs
            error feedback. None: the rank in HOPSUM_LOW_RANK, else matrices travel whole, as all other parameters.
        low_rank_start: with `low_rank`, how many steps after `start_iter` matrices travel whole.
        process_group: averages the gradients that are not compressed; the DistributedDataParallel's own if left out.
        scaler: the GradScaler, if there is one: residuals follow its scale. Without it they keep the scale at which
            they arose.

    Raises:
        ValueError: a negative number, a word that the option does not have, a pattern that fits no parameter, a process
            group that is missing or has other ranks than `comm`; `low_rank` is no rank, or pays for no parameter, or
            there is no error feedback; method="auto" on a worker that joined the job later; a DistributedDataParallel
            with torch's "python_reducer", or one whose module has lost parameters.
        ConfigError: a variable in the environment that does not fit.
        TypeError: an option that does not exist.
        CodecError: an unknown `on_nonfinite`; or codec_on="device" and the codec has no code for a parameter's device.
    """

    def __init__(
        self,
        comm: Communicator,
        module: nn.Module,
        **options: Unpack[HookOptions],
    ) -> None:
        chosen = settings_from(options)
        process_group, scaler = options.get("process_group"), options.get("scaler")
        error_feedback, on_nonfinite, uncompressed = chosen.error_feedback, chosen.on_nonfinite, chosen.uncompressed
        small_tensor_bytes, start_iter, log_every = chosen.small_tensor_bytes, chosen.start_iter, chosen.log_every
        method, on_switch_lost, codec_on = chosen.method, chosen.on_switch_lost, chosen.codec_on
        low_rank, low_rank_start = chosen.low_rank, chosen.low_rank_start
        require_on_nonfinite(on_nonfinite)
        require_low_rank(low_rank, low_rank_start, error_feedback=error_feedback)
        if min(small_tensor_bytes, start_iter, log_every) < 0:
            numbers = f"small_tensor_bytes={small_tensor_bytes}, log_every={log_every}, start_iter={start_iter}"
            raise ValueError(f"{numbers}: 0 is the least")
        if method not in _METHODS:
            raise ValueError(f"method={method!r}: one of {', '.join(_METHODS)}")
        if on_switch_lost not in ON_SWITCH_LOST:
            raise ValueError(f"on_switch_lost={on_switch_lost!r}: one of {', '.join(ON_SWITCH_LOST)}")
        self.error_feedback = error_feedback
        self.on_nonfinite = on_nonfinite
        self.small_tensor_bytes = small_tensor_bytes
        self.uncompressed = (uncompressed,) if isinstance(uncompressed, str) else tuple(uncompressed)
        self.start_iter = start_iter
        self.method = method
        self.on_switch_lost = on_switch_lost
        self.log_every = log_every
        self.codec_on: CodecOn = codec_on
        self.low_rank, self.low_rank_start = low_rank, low_rank_start
        self.steps = 0
        """Backward passes that DDP synchronised; the same on all ranks."""
        self.allreduces = 0
        """Numbers of vectors that were handed to the agent; the same on all ranks."""
        self.rank, self.workers = comm.rank, comm.workers
        self._scale = 1.0
        self._calls = _Calls(comm.rank)
        self._factors = Factors()
        self._start(Residuals())
        self.attach(comm, module, process_group=process_group, scaler=scaler)
        # At the state's end, also that of the program: by then a hook that was registered has been called.
        weakref.finalize(self, self._calls.warn)

    def _start(self, residuals: Residuals) -> None:
        self.failure: BaseException | None = None
        """The error of a failed all-reduce, of which `backward` raises only the text: what ended all, else the last."""
        self._residuals = residuals
        self._step: Step | None = None
        self._grouping: SumOrder | None = None
        """Where the group of the step's buckets is open; None between steps."""
        self._sender: Sender | None = None
        self._scaler: Scaler | None = None
        self.choice: MethodChoice | None = None
        """The trial of methods, with method="auto" or HOPSUM_COMPARE. It begins anew with `attach`."""
        self._fall_back: FallBack | None = None
        self._times = StepTimes()

    def attach(
        self,
        comm: Communicator,
        module: nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        """Continue with another communicator (a new generation, or after unpickling) and the same module.

        Its rank and its number of workers may be others: residuals are scaled to the new number, and a warning says
        that those of lost workers are missing. A step in progress is given up. `failure`, the times and the trial of
        methods begin anew.

        Args:
            process_group: as for the constructor. The earlier one is not kept.
            scaler: as for the constructor. The earlier one is not kept.

        Raises:
            ValueError, CodecError: as the constructor does; a residual that fits no parameter. Nothing was changed.
        """
        module = ddp_in(module) or module
        require_buckets(module)
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        parameters = dict(inner.named_parameters())
        names = {parameters[name]: bare for name, bare in bare_names(parameters).items()}
        if isinstance(module, DistributedDataParallel):
            names |= self._names_of_hidden(module, names)
        held = self._residuals.as_dict()
        kept = fit_residuals(held, {name: real_elements(parameter) for parameter, name in names.items()})
        sparse = frozenset(names[each] for each in sparse_parameters(inner))
        replicated = replicated_parameters({name: each for each, name in names.items()})
        every = dict(inner.named_parameters(remove_duplicate=False))
        aliases = {bare: every[name] for name, bare in bare_names(every).items()}
        aliases |= {name: each for each, name in names.items()}
        chosen = uncompressed_names(names, self.small_tensor_bytes, self.uncompressed, aliases)
        plain = chosen | sparse | replicated
        group = group_of(module, comm, process_group)
        if self.method == "auto" and comm.is_newcomer:
            raise ValueError(
                f"method='auto' on rank {comm.rank}, which joined the job later: it cannot know what the others "
                "measured. Use method='hopsum' in jobs whose workers are replaced"
            )
        compared = steps_to_compare()
        needs_group = self.method == "auto" or self.on_switch_lost == "fall_back" or compared
        if (plain or self.start_iter or needs_group) and group is None:
            tables = f"sparse gradients (sparse=True of {', '.join(sorted(sparse))}), " if sparse else ""
            raise ValueError(
                f"{tables}small_tensor_bytes, uncompressed, start_iter, method='auto', on_switch_lost='fall_back' and "
                "HOPSUM_COMPARE average through torch's process group, "
                f"and there is none of {comm.workers} ranks with this one as rank {comm.rank}: call init_process_group "
                "first, or pass process_group"
            )
        matrices = self._matrices(names, plain, comm.codec)
        codecs = DeviceCodecs(comm, self.codec_on)
        # Here and not in a backward pass: kernels are compiled and checked, which takes seconds.
        for device in {parameter.device for parameter in names}:
            if codecs.codec_for(device) is not None and matrices is not None:
                require_device_bytes(self._factors.kernels, device)
        if kept.keys() != held.keys():
            self._residuals.load(kept)
        if comm.workers < self.workers:
            warn_of_lost_residuals(f"{self.workers - comm.workers}", self.workers, [norm_of(kept)])
        # The mean divides by another number of workers, and owes as much as before.
        self._residuals.scale(comm.workers / self.workers)
        self.rank, self.workers = comm.rank, comm.workers
        self._start(self._residuals)
        self._scaler = scaler
        self._sender = Sender(
            communicator=comm,
            names=names,
            uncompressed=plain,
            group=None if group is None else GroupSums(group),
            drops_unused=drops_unused(module),
            residuals=self._residuals,
            error_feedback=self.error_feedback and feeds_back(comm.codec),
            on_nonfinite=self.on_nonfinite,
            keeps_gradients=self.on_switch_lost == "fall_back",
            times=self._times,
            device_codecs=codecs,
            matrices=matrices,
        )
        if replicated and self.rank == 0:
            _log.info("not compressed, since tensor parallelism replicates them: %s", join_names(replicated))
        if group is not None and self.on_switch_lost == "fall_back":
            self._fall_back = FallBack(group, self._residuals, self.on_nonfinite)
        if group is not None and (self.method == "auto" or compared):
            self.choice = MethodChoice(
                self._methods(comm.codec, matrices),
                GroupSums(group).average_numbers,
                counted_steps=compared or COUNTED_STEPS,
                decides=self.method == "auto",
                tells=self.rank == 0,
                has_ended=lambda: comm.has_ended,
            )

    def _matrices(self, names: dict[torch.Tensor, str], plain: frozenset[str], codec: Any) -> Matrices | None:
        """Return the matrices that travel, or may travel, as factors. Raises ValueError as `matrices_of` does."""
        if self.low_rank is not None:
            return matrices_of(names, plain, self.low_rank, codec, self._factors)
        if self.method == "auto" and self.error_feedback:
            with suppress(ValueError):  # this model has none, or this codec cannot carry factors: it is not tried
                return matrices_of(names, plain, usual_rank(names), codec, self._factors)
        return None

    def _methods(self, codec: Any, matrices: Matrices | None) -> list[AveragingMethod]:
        """Return the methods to try: those of the options first, then the process group, then low rank."""
        # Last, as the first gradients of a training are not of low rank.
        methods = [AveragingMethod(codec.name, compresses=True), AveragingMethod(PROCESS_GROUP, compresses=False)]
        if matrices is not None:
            given = self.low_rank is not None
            low_rank = AveragingMethod(LOW_RANK.format(matrices.rank), True, True, 0.0 if given else LEAST_DELIVERED)
            methods = [low_rank, methods[1]] if given else [*methods, low_rank]
        return methods

    def _names_of_hidden(
        self, ddp: DistributedDataParallel, found: Mapping[torch.Tensor, str]
    ) -> dict[torch.Tensor, str]:
        """Return the names of parameters that torch has taken out of the module.

        Over a mesh DistributedDataParallel does so with those that tensor parallelism shards, in the first forward
        pass. Raises ValueError where this state has not seen them before.
        """
        known = {} if self._sender is None else self._sender.names
        hidden = [each for each in ddp._module_parameters if each.requires_grad and each not in found]
        if all(each in known for each in hidden):
            return {each: known[each] for each in hidden}
        raise ValueError(
            f"{len(hidden)} parameters of the DistributedDataParallel are not in its module any more. With tensor "
            "parallelism over a device mesh torch takes them out in the first forward pass: register the hook before "
            "it. Else make the DistributedDataParallel anew after parameters were replaced"
        )

    @property
    def communicator(self) -> Communicator:
        """Return the communicator that sums. Raises RuntimeError for a state that was unpickled and not attached."""
        return self._require_sender().communicator

    @property
    def shared_options(self) -> dict[str, str]:
        """Return the options that ranks need to have in common, as texts by name."""
        shared = {name: repr(getattr(self, name)) for name in _OPTIONS if name not in _OF_ONE_RANK}
        if self.choice is not None:
            # The methods follow also from options in which ranks may differ without a trial, such as error_feedback.
            shared["methods on trial"] = ", ".join(each.name for each in self.choice.methods)
        return {**shared, COMPARE_VARIABLE: str(steps_to_compare())}

    @property
    def method_in_use(self) -> str:
        """Return the name of the method of the step in progress, or the last one, such as "low rank 8".

        Raises RuntimeError for a state that was unpickled and not attached, where that compresses.
        """
        if not self.compresses:
            return PROCESS_GROUP
        if self.factors_matrices and self._sender is not None and self._sender.low_rank is not None:
            return LOW_RANK.format(self._sender.low_rank.matrices.rank)
        return self.communicator.codec.name

    @property
    def compresses(self) -> bool:
        """Return whether the step in progress, or the last one, goes through the communicator."""
        if self._fall_back is not None and self._fall_back.active:
            return False
        return self.steps >= self.start_iter and (self.choice is None or self.choice.method.compresses)

    @property
    def factors_matrices(self) -> bool:
        """Return whether matrices of low rank travel as factors in the step in progress, or the last one."""
        if self.choice is not None:
            return self.choice.method.factors and self.steps >= self._first_factored and self.compresses
        return self.low_rank is not None and self.steps >= self._first_factored and self.compresses

    @property
    def _first_factored(self) -> int:
        """The first step in which matrices of low rank travel as factors."""
        return self.start_iter + (self.low_rank_start if self.low_rank else 0)

    def submit(self, bucket: Bucket, deliver: Callable[[], None]) -> tuple[Step, list[BucketSlice]]:
        """Begin the sums of a bucket, and return its step and its sums; for the hook.

        Nothing may touch the bucket's buffer until `deliver` is called, in any thread: it has to lead to `write`.

        An error in submitting fails the step: RuntimeError without a communicator; ValueError for a foreign parameter
        or gradients that are not dense real numbers; GenerationEndedError or CommunicatorClosedError if the
        communicator takes nothing more.
        """
        # Bucket 0 begins a new step: one still open belongs to a backward pass that was given up.
        open_step = self._step if bucket.index() and self._step and not self._step.over.done() else None
        step, portions = open_step or self._begin_step(), list[BucketSlice]()
        try:
            sender = self._sender or self._require_sender()
            compress, factor = self.compresses, self.factors_matrices
            portions = sender.send(bucket, step, number=self.allreduces, compress=compress, factor=factor)
        except Exception as error:
            step.fail(error)
            # The bucket has no mean: it waits for the end of the step.
            portions = []
        for each in portions:
            self.allreduces += each.allreduces if each.compressed else 0
        step.deliver(portions, deliver)
        if bucket.is_last():
            # Before `complete`: the communicator may wait for more buckets of the group until then.
            self._end_group()
            if self._sender is not None and self._sender.low_rank is not None:
                self._sender.low_rank.complete()
            self.steps += 1
            self._times.note_last_bucket()
            step.over.add_done_callback(self._end_step)
            step.complete()
        return step, portions

    def write(self, buffer: torch.Tensor, step: Step, portions: list[BucketSlice]) -> torch.Tensor:
        """Put the mean, or NaN, into a bucket's buffer and return it, once it was delivered; for the hook.

        Raises:
            HopsumError, ValueError, RuntimeError: the error of the step; `failure` has it, or an earlier fatal one.
        """
        # A bucket that is delivered before the end of its step has a mean.
        if step.over.done():
            try:
                dropped = step.over.result()
            except BaseException as error:
                # What ended all is kept. An error that a later step may follow is replaced by the newest.
                if self.failure is None or isinstance(self.failure, CollectiveError | WorkersReplacedError):
                    self.failure = error
                raise
            if dropped and buffer.is_sparse:
                # All rows, as a rank may have none: GradScaler looks for NaN on each rank by itself.
                return buffer.copy_(torch.full_like(buffer.to_dense(), torch.nan).to_sparse(buffer.sparse_dim()))
            if dropped:
                return buffer.fill_(torch.nan)
        for each in portions:
            each.scatter()
        return buffer

    def _end_step(self, over: Future[bool]) -> None:
        """Take the time of a step, and write the line of `log_every`. Runs in the thread that ends the step."""
        self._times.end_step()
        asked = self.log_every and self.rank == 0 and self.steps % self.log_every == 0
        if asked and over.exception() is None and self._sender is not None:
            times = () if self.choice is None else self.choice.times
            measured = {each.method.name: each.step_s for each in times}
            log_or_print(_log, self._times.format_line(self.steps, self._sender.communicator.workers, measured))

    def _require_sender(self) -> Sender:
        if self._sender is None:
            raise RuntimeError("this HopsumState was unpickled: call attach(comm, module) first")
        return self._sender

    def _begin_step(self) -> Step:
        """Begin a step and its group. One still open was given up, as its backward pass was."""
        self._end_group()
        low_rank = None if self._sender is None else self._sender.low_rank
        delivered = 1.0 if low_rank is None else low_rank.delivered
        if low_rank is not None:
            low_rank.begin_step()
        # Where the end of a step may still change the means, no bucket gets one before.
        drops_unused = self._sender is not None and self._sender.drops_unused
        together = drops_unused or self._fall_back is not None or self.on_nonfinite == "skip"
        self._step = Step(self._residuals.clear, self._fall_back, together=together)
        self._calls.any = True
        before = self._times.begin_step()
        if before is not None and self._sender is not None:
            self._sender.communicator.note_step(before.step_s, before.wait_s)
        has_switch = self._fall_back is None or not self._fall_back.active
        if not has_switch:
            self._step, self.choice = Step(self._residuals.clear), None
        # Steps in which matrices travel whole say nothing of those that follow.
        if self.choice is not None and self.steps >= self._first_factored:
            self.choice.begin_step(0.0 if before is None else before.wait_s, delivered)
            if low_rank is not None:
                low_rank.measures_delivered = self.choice.measures_delivered
        if self._sender is not None and has_switch:
            # Kept, as `attach` may put another communicator in its place before the group ends.
            self._grouping = self._sender.order
            self._grouping.group_start()
        # Asked once: on a GPU the answer waits for the device.
        if self._scaler is not None and (scale := self._scaler.get_scale()) != self._scale:
            # Residuals are parts of scaled gradients. Unscaled they would count 2^16 times too little or too much.
            self._residuals.scale(scale / self._scale)
            self._scale = scale
        return self._step

    def _end_group(self) -> None:
        """End the group of the step's buckets, if one is open."""
        if self._grouping is not None:
            self._grouping.group_end()
            self._grouping = None

    def compression_stats(self) -> dict[str, float]:
        """Return counts, bytes and seconds of all steps so far, for a log.

        Of the agent, so of all states that share it: `fp32_bytes` is the size of the gradients it summed, of this
        state's matrices also where they travelled as factors; `bytes_up` and `bytes_down` passed this worker's
        interface, headers included; the ratios are fp32_bytes by them.
        With `local_group` the leader of a host has the bytes for all `local_ranks` of it, the others have none.
        Of this state: its steps; whether they are compressed now, 1 or 0 (see `method`); the rank in which matrices
        travel as factors now, or 0 (see `low_rank`); the elements and bytes that torch's process group averaged, which
        are in none of the others; the bytes that crossed the bus where codecs are on the gradients' device
        (`codec_on`); and the seconds of a step, the seconds that it waited, the bytes divided by those of a ring in
        fp32 and in bf16, and the seconds of such a ring at the rate so far (`step_times.py`; NaN before anything was
        counted). Raises RuntimeError for a state that was unpickled and not attached.
        """
        sender = self._require_sender()
        statistics, plain, codecs = sender.communicator.statistics, sender.group, sender.device_codecs
        elements = statistics.elements + (0 if sender.low_rank is None else sender.low_rank.spared_elements)
        traffic, fp32_bytes = statistics.traffic, 4 * elements
        up, down = traffic.interface_bytes_sent, traffic.interface_bytes_received
        return {
            "steps": self.steps,
            "allreduces": statistics.allreduces,
            "skipped": statistics.skipped,
            "elements": elements,
            "fp32_bytes": fp32_bytes,
            "bytes_up": up,
            "bytes_down": down,
            "ratio_up": fp32_bytes / up if up else float("nan"),
            "ratio_down": fp32_bytes / down if down else float("nan"),
            "packets_up": traffic.datagrams_sent,
            "packets_down": traffic.datagrams_received,
            "retransmits": traffic.retransmits,
            "local_ranks": statistics.local_ranks,
            "compresses": float(self.compresses),
            "low_rank": float(sender.low_rank.matrices.rank) if self.factors_matrices and sender.low_rank else 0.0,
            "uncompressed_elements": plain.elements if plain else 0,
            "uncompressed_bytes": plain.bytes if plain else 0,
            "bytes_from_device": codecs.bytes_to_host if codecs else 0,
            "bytes_to_device": codecs.bytes_to_device if codecs else 0,
            **self._times.scalars(sender.communicator.workers),
        }

    @property
    def owner(self) -> str:
        """Return the name of this rank in saved states: its number as text."""
        return str(self.rank)

    def state_dict(self) -> StateDict:
        """Return a copy of this rank's state for a checkpoint. Raises RuntimeError in the middle of a backward pass."""
        if self._step is not None and self._step.under_way:
            raise RuntimeError("gradients are on their way: take the state between backward passes")
        residuals = self._residuals.as_dict()
        return StateDict(
            version=_VERSION,
            workers=self.workers,
            steps=self.steps,
            allreduces=self.allreduces,
            scale=self._scale,
            norms={self.owner: norm_of(residuals)},
            residuals={self.owner: residuals},
            factors=self._factors.as_dict(),
        )

    def load_state_dict(self, saved: StateDict | Iterable[StateDict]) -> None:
        """Take over the states of all ranks (`state_dict`), in any order, whatever their number: see `redistribute`.

        Where the number of workers is as it was, this rank's own state is enough. Residuals of parameters that are not
        compressed here are added to their next gradients. A matrix whose factor is not there, or of another rank of the
        factors, begins with random columns, the same on all ranks.

        Raises:
            RuntimeError: the state was unpickled and not attached.
            ValueError: a state of another version of hopsum, or for other parameters; two of one rank, or of different
                steps. Nothing was changed.
        """
        sizes = {name: real_elements(each) for each, name in self._require_sender().names.items()}
        state, residuals = redistribute(saved, self.owner, self.workers, sizes, version=_VERSION)
        self._residuals.load(residuals)
        self._factors.load(state.get("factors", {}), sizes)
        self.steps, self.allreduces, self._scale = state["steps"], state["allreduces"], state["scale"]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS} | {"rank": self.rank, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        for name in (*_OPTIONS, "rank"):
            setattr(self, name, pickled[name])
        state: StateDict = pickled["state"]
        self.workers, self.steps, self.allreduces = state["workers"], state["steps"], state["allreduces"]
        self._scale = state["scale"]
        self._calls = _Calls(self.rank)
        self._factors = Factors()
        self._factors.load(state["factors"])
        self._start(Residuals())
        self._residuals.load(state["residuals"][self.owner])
