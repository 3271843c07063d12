# SPDX-License-Identifier: Apache-2.0
"""Streams that exist on paper: operations run at once on the CPU, and every one is noted with its stream.

Two accesses to the same bytes, one of them a write, have to be ordered by what orders them on a GPU: one stream, a mark
that is waited for, the host's wait, or that the host queues an operation after what it has done. The order is kept in
vector clocks. New memory counts as written where it is made, since torch's allocator reuses it in that stream's order.
Memory from `host_buffer` is the host's, all other memory the device's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hopsum.torch.streams import Streams

HOST: Final = "host"
PROGRAM: Final = "program"
Clock = dict[str, int]


class HostMemory(torch.Tensor):
    """Memory of the host. What numpy does with it is noted as an access of the host."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    noted: CheckedStreams

    def numpy(self, *arguments: Any, **options: Any) -> Any:
        """Note a write, and return the array."""
        self.noted.note(HOST, [], [self])
        return super().numpy(*arguments, **options)


class CheckedStreams(Streams):
    """See the module, and `Streams`."""

    def __init__(self) -> None:
        self.races: list[str] = []
        self.hidden_waits: list[str] = []
        """Operations for which the host waits without `wait`."""
        self.operations = 0
        self._clocks: dict[str, Clock] = {name: {} for name in (HOST, PROGRAM, "kernels", "copies")}
        self._current = [PROGRAM]
        self._accesses: dict[int, list[tuple[str, int, int, int, bool]]] = {}
        """By storage: actor, its clock, first and last byte, whether written."""
        self._of_host: set[int] = set()
        self._alive: list[torch.Tensor] = []
        """Every tensor, so that no memory is used again."""

    def mark(self) -> Clock:
        return dict(self._clocks[self._current[-1]])

    @contextmanager
    def on_kernels(self, after: Clock | None = None) -> Iterator[None]:
        with self._on("kernels", after):
            yield

    @contextmanager
    def on_copies(self, after: Clock | None = None) -> Iterator[None]:
        with self._on("copies", after):
            yield

    def adopt(self, tensor: torch.Tensor) -> None:
        """Do nothing: all memory stays."""

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with _disable_current_modes():
            made = torch.empty(shape, dtype=dtype).as_subclass(HostMemory)
        made.noted = self
        self._alive.append(made)
        self._of_host.add(_storage(made))
        return made

    def wait(self) -> None:
        for name in ("kernels", "copies"):
            _join(self._clocks[HOST], self._clocks[name])

    @property
    def is_idle(self) -> bool:
        """Return whether the host has waited for all that was queued."""
        host = self._clocks[HOST]
        return all(self._clocks[name].get(name, 0) <= host.get(name, 0) for name in ("kernels", "copies"))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note what torch does inside."""
        with _Watch(self):
            yield

    @contextmanager
    def _on(self, name: str, after: Clock | None) -> Iterator[None]:
        if after is not None:
            _join(self._clocks[name], after)
        self._current.append(name)
        try:
            yield
        finally:
            self._current.pop()

    def run(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """Note an operation of torch: of the current stream, if anything of it is on the device."""
        devices = [each for each in reads + writes if _storage(each) not in self._of_host]
        if name in ("aten._local_scalar_dense.default", "aten.nonzero.default") and devices:
            self.hidden_waits.append(name)
            _join(self._clocks[HOST], self._clocks[self._current[-1]])
        self.note(self._current[-1] if devices else HOST, reads, writes, name)

    def note(self, actor: str, reads: list[torch.Tensor], writes: list[torch.Tensor], name: str = "numpy") -> None:
        """Note accesses of an actor, and what they race with."""
        self.operations += 1
        self._alive += [*reads, *writes]
        clock = self._clocks[actor]
        _join(clock, self._clocks[HOST])  # what the host queues is behind what it has done
        clock[actor] = clock.get(actor, 0) + 1
        for tensor, is_write in [(each, False) for each in reads] + [(each, True) for each in writes]:
            first, last = _bytes(tensor)
            known = self._accesses.setdefault(_storage(tensor), [])
            for other, at, low, high, other_writes in known:
                overlap = low < last and first < high and (is_write or other_writes)
                if overlap and other != actor and at > clock.get(other, 0):
                    self.races.append(f"{name} in {actor} with an access in {other} that it does not wait for")
            known.append((actor, clock[actor], first, last, is_write))


class _Watch(TorchDispatchMode):
    def __init__(self, streams: CheckedStreams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        reads, writes = list[torch.Tensor](), list[torch.Tensor]()
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            (writes if written else reads).extend(_tensors(value))
        if any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns):
            return result  # a view
        writes += [each for each in _tensors(result) if all(each is not other for other in writes)]
        self._streams.run(str(func), reads, writes)
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for each in value if isinstance(each, torch.Tensor)] if isinstance(value, list | tuple) else []


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte and the one behind the last, in the storage."""
    if not tensor.numel():
        return 0, 0
    size, first = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (reach + 1) * size


def _join(clock: Clock, other: Clock) -> None:
    for name, at in other.items():
        clock[name] = max(clock.get(name, 0), at)
