# SPDX-License-Identifier: Apache-2.0
"""`hopsum.allreduce`: the mean of an array or tensor over all workers, in one call.

torch and `hopsum.torch` are imported only for a tensor of torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Final, Literal, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import AllReduceResult, Communicator, HostVector, Vector
from hopsum.codec import ErrorFeedback
from hopsum.codec.interface import Floats, OnNonfinite, feeds_back
from hopsum.config import resolve
from hopsum.connection import open_config, settings_of

Tensor = TypeVar("Tensor")
ReduceOp = Literal["mean", "sum"]


class _Call(Protocol):
    """The argument of one all-reduce, an array or a tensor. Its methods are called in the order below."""

    elements: int

    def fits(self, feedback: Any) -> bool:
        """Return whether an error feedback fits this vector."""

    def feedback(self) -> Any:
        """Return a new error feedback for this vector."""

    def vector(self, feedback: Any) -> Vector:
        """Return the vector to submit, with an error feedback or None."""

    def restore(self, mean: Any, factor: int) -> Any:
        """Return the mean times a factor, with the type, shape and device of the argument."""


class _HostCall:
    """An array, or a tensor that is encoded on the host.

    Args:
        x: contiguous float32[elements].
        write: converts a mean to the argument's type and shape.
        out: the memory for the mean: the caller's `out`, if that is contiguous float32.
        is_half: whether the argument was float16.
    """

    def __init__(self, x: Floats, write: Callable[[Floats], Any], out: Floats | None, *, is_half: bool) -> None:
        self.elements = x.size
        self._x, self._write, self._out, self._is_half = x, write, out, is_half

    def fits(self, feedback: Any) -> bool:
        return isinstance(feedback, ErrorFeedback)

    def feedback(self) -> ErrorFeedback:
        return ErrorFeedback(self.elements)

    def vector(self, feedback: ErrorFeedback | None) -> Vector:
        return HostVector(self._x, feedback, self._out)

    @np.errstate(all="ignore")
    def restore(self, mean: Floats, factor: int) -> Any:
        # Means of float16 values are in float16's range: only the codec's error can leave it.
        if self._is_half:
            mean = np.where(np.isfinite(mean), np.clip(mean, -_MOST_HALF, _MOST_HALF), mean)
        return self._write(mean if factor == 1 else mean * np.float32(factor))


class _Kept:
    """State of a communicator between all-reduces: error feedback by tensor name."""

    def __init__(self) -> None:
        self.feedback: dict[str, Any] = {}
        # Weak: the communicator keeps futures in flight, and a done future would keep its mean.
        self.pending: WeakValueDictionary[str, Future[AllReduceResult]] = WeakValueDictionary()


_lock: Final = threading.RLock()
_kept: Final[WeakKeyDictionary[Any, _Kept]] = WeakKeyDictionary()
_thread: Final = threading.local()
"""`finishing` is true while this thread, a communicator's, resolves a future."""
_opened: Final[dict[str, Communicator]] = {}
_MOST_HALF: Final = np.float32(np.finfo(np.float16).max)


@overload
def allreduce(
    tensor: Tensor,
    comm: Communicator | str | None = ...,
    *,
    async_op: Literal[False] = ...,
    op: ReduceOp = ...,
    out: Tensor | None = ...,
    name: str | None = ...,
    step: int | None = ...,
    on_nonfinite: OnNonfinite | None = ...,
) -> Tensor: ...


@overload
def allreduce(
    tensor: Tensor,
    comm: Communicator | str | None = ...,
    *,
    async_op: Literal[True],
    op: ReduceOp = ...,
    out: Tensor | None = ...,
    name: str | None = ...,
    step: int | None = ...,
    on_nonfinite: OnNonfinite | None = ...,
) -> Future[Tensor]: ...


def allreduce(
    tensor: Tensor,
    comm: Communicator | str | None = None,
    *,
    async_op: bool = False,
    op: ReduceOp = "mean",
    out: Tensor | None = None,
    name: str | None = None,
    step: int | None = None,
    on_nonfinite: OnNonfinite | None = None,
) -> Tensor | Future[Tensor]:
    """Return the mean of a tensor over all workers. All workers make the same calls in the same order.

    Args:
        tensor: numpy array or torch tensor of float16, float32, float64 or torch's bfloat16, of any shape. It is
            summed as float32; a float64 beyond float32's range counts as infinite. It is only read. Do not change it
            before the future is done.
        comm: a communicator of `hopsum.connect`, or a URL; by default the setting `url` (HOPSUM_URL). A URL is
            connected at its first use in the process, until `disconnect`.
        async_op: whether to return a future of the result at once. Inside a group of the communicator, only True: a
            blocking call would wait for the end of the group.
        op: "mean" of the workers that are in the sum, or "sum": that mean times the number of workers.
        out: memory for the result, which is then returned: of the same type, shape and element type. It may be the
            tensor itself.
        name: key of this tensor's residual (error feedback), which is added to the next all-reduce of this name on
            this rank, of as many elements. Without a name the residual is lost.
        step: seed of this all-reduce's randomness, the same on all ranks; counted by default.
        on_nonfinite: "raise" or "skip" (the result is NaN); by default the setting.

    Returns:
        A tensor of the same kind, shape, element type and device, the same on all ranks. An empty tensor is returned
        without communication.

    Raises:
        TypeError: no dense floating-point tensor, or an `out` that does not fit.
        ValueError: another `op`, an all-reduce of this name is in flight, or its residual is on another device.
        CodecError: the residual of this name has another number of elements.
        ConfigError, MembershipError: as for `connect`.
        RuntimeError: without async_op, in a callback of a future of this function, or in an open group.
        NonFiniteError: some rank has NaN or infinity, on all ranks. The communicator stays usable. Further errors are
            those of `Agent.submit`. With async_op the future has the errors of the network.
    """
    if op not in ("mean", "sum"):
        raise ValueError(f'op is "mean" or "sum", not {op!r}')
    if not async_op and getattr(_thread, "finishing", False):
        raise RuntimeError("allreduce in a callback of its own futures would wait for itself: use async_op=True")
    call = _on_device(tensor, comm, out) or _read(tensor, out)
    if not call.elements:
        done: Future[Any] = Future()
        done.set_result(call.restore(np.zeros(0, np.float32), 1))
    else:
        joined = _communicator(comm)
        if not async_op and joined.is_in_group:
            raise RuntimeError("allreduce in a group would wait for the group's end: use async_op=True")
        done = _submit(joined, call, op, name, step, on_nonfinite)
    return done if async_op else done.result()


def disconnect(url: str | None = None) -> None:
    """Close the communicator that `allreduce` opened for this URL, by default all of them. Blocks.

    Their error feedback is lost. Nothing happens for a URL that is not open. Communicators of `connect` stay open.
    """
    with _lock:
        closed = [_opened.pop(each) for each in list(_opened) if url is None or each == url]
    # Outside the lock: `close` waits for the other ranks, whose threads may be of this process.
    with ExitStack() as stack:  # all are closed where one raises
        for each in reversed(closed):  # the stack calls the last one first
            stack.callback(each.close)


def _communicator(comm: Communicator | str | None) -> Communicator:
    if comm is not None and not isinstance(comm, str):
        return comm
    # Held while connecting: two threads with the first call must not join the job as two workers.
    with _lock:
        if comm in _opened:
            return _opened[comm]
        config = resolve({"url": comm})
        if config.url not in _opened:
            _opened[config.url] = open_config(config)
        return _opened[config.url]


def _submit(
    comm: Communicator, call: _Call, op: ReduceOp, name: str | None, step: int | None, on_nonfinite: OnNonfinite | None
) -> Future[Any]:
    config = settings_of(comm)
    keeps = config.error_feedback and feeds_back(comm.codec)
    kept = _feedback(comm, name, call) if name is not None and keeps else None
    submitted = comm.submit(
        call.vector(kept),
        step=step,
        tensors=() if name is None else ((name, call.elements),),
        on_nonfinite=on_nonfinite or config.on_nonfinite,
    )
    if kept is not None and name is not None:
        _kept[comm].pending[name] = submitted
    promised: Future[Any] = Future()
    # Other ranks already wait for this vector: a future that is running cannot be cancelled.
    promised.set_running_or_notify_cancel()

    def finish(arrived: Future[AllReduceResult]) -> None:
        # In the communicator's thread: a callback that waits for an all-reduce here would wait for itself.
        _thread.finishing = True
        try:
            restored = call.restore(arrived.result().mean, 1 if op == "mean" else comm.workers)
        except BaseException as error:
            promised.set_exception(error)
        else:
            promised.set_result(restored)
        finally:
            _thread.finishing = False

    submitted.add_done_callback(finish)
    return promised


def _feedback(comm: Communicator, name: str, call: _Call) -> Any:
    with _lock:
        kept = _kept.setdefault(comm, _Kept())
        before = kept.pending.get(name)
        # Two vectors in flight would both send the residual.
        if before is not None and not before.done():
            raise ValueError(f"an all-reduce of {name!r} is still on its way: wait for its future, or use another name")
        feedback = kept.feedback.setdefault(name, call.feedback())
        if not call.fits(feedback):
            raise ValueError(
                f"what all-reduces of {name!r} have not delivered is on another device than this tensor: use another "
                "name for it"
            )
        return feedback


def _is_torch(tensor: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(tensor).__mro__)


def _on_device(tensor: Any, comm: Communicator | str | None, out: Any) -> _Call | None:
    """Return the call of a torch tensor that is encoded on its device; None: it is encoded on the host."""
    if not _is_torch(tensor) or not tensor.numel():
        return None
    from hopsum.torch import tensors as torch_side

    torch_side.require_dense(tensor)
    if out is not None:
        torch_side.require_out(tensor, out)
    joined = _communicator(comm)
    codec_on = settings_of(joined).codec_on
    if codec_on == "host" or (codec_on == "auto" and tensor.device.type == "cpu"):
        return None
    from hopsum.torch.tensors import device_call

    return device_call(joined, codec_on, tensor, out)


def _read(tensor: Any, out: Any) -> _Call:
    if _is_torch(tensor):
        from hopsum.torch import tensors as torch_side

        if out is not None:
            torch_side.require_out(tensor, out)
        place = None if out is None else torch_side.vector_of(out)
        x, is_half = torch_side.read_tensor(tensor), str(tensor.dtype) == "torch.float16"
        return _HostCall(x, lambda mean: torch_side.write_tensor(mean, tensor, out), place, is_half=is_half)
    if not isinstance(tensor, np.ndarray | np.floating):
        raise TypeError(f"hopsum sums numpy arrays and torch tensors, not {type(tensor).__name__}")
    array = np.asarray(tensor)
    if array.dtype.name not in ("float16", "float32", "float64"):
        raise TypeError(f"hopsum sums arrays of float16, float32 and float64, not {array.dtype}: convert it first")
    if out is not None and (not isinstance(out, np.ndarray) or (out.shape, out.dtype) != (array.shape, array.dtype)):
        shown = f"{out.dtype}{list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out is {shown}, but the array {array.dtype}{list(array.shape)}")
    # Independent of the program's error state: the codec checks values beyond float32.
    with np.errstate(all="ignore"):
        x = np.require(array.reshape(-1).astype(np.float32, copy=False), requirements=["C", "A"])
    plain = out is not None and out.dtype == np.float32 and out.flags.carray
    place = out.reshape(-1) if plain and out is not None else None
    return _HostCall(x, lambda mean: _write(mean, array, out), place, is_half=array.dtype == np.float16)


def _write(mean: Floats, like: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    made = mean.reshape(like.shape).astype(like.dtype, copy=False)
    if out is None:
        return made
    out[...] = made
    return out
