# SPDX-License-Identifier: Apache-2.0
"""Numbers and records at addresses, as kernels of numba read and fill them. Only who compiles kernels imports this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

from hopsum_base.records import R, record_bytes, record_dtype

# numba ships no types, and `import_module` keeps mypy from looking into it.
_numba: Any = import_module("numba")
types: Any = _numba.types

N = TypeVar("N", int, float)


class Numbers(Protocol[N]):
    """Numbers in memory, as a kernel has them at an address. Nothing checks an index."""

    def __getitem__(self, index: int) -> N: ...

    def __setitem__(self, index: int, value: N) -> None: ...


def _pointer_to(kind: Any) -> Any:
    """Return an intrinsic that makes a value of a pointer's type of an address."""

    @_numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def point(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return kind(types.int64), generate

    return point


integers_at: Callable[[int], Numbers[int]] = _pointer_to(types.CPointer(types.int64))
"""This and the next ones: return what a kernel reads and fills at an address, as numbers of that type."""
bits_at: Callable[[int], Numbers[int]] = _pointer_to(types.CPointer(types.uint64))
words_at: Callable[[int], Numbers[int]] = _pointer_to(types.CPointer(types.uint32))
shifts_at: Callable[[int], Numbers[int]] = _pointer_to(types.CPointer(types.int32))
octets_at: Callable[[int], Numbers[int]] = _pointer_to(types.CPointer(types.uint8))
doubles_at: Callable[[int], Numbers[float]] = _pointer_to(types.CPointer(types.float64))
floats_at: Callable[[int], Numbers[float]] = _pointer_to(types.CPointer(types.float32))


def record_at(cls: type[R]) -> Callable[[int], R]:
    """Return an intrinsic that finds such a record at an address, which a kernel reads and fills by its fields."""
    given: Callable[[int], R] = _pointer_to(_numba.from_dtype(record_dtype(cls)))
    return given


def record_in(cls: type[R]) -> Callable[[int, int], R]:
    """Return an intrinsic that finds one of such records, which lie one behind the other from an address on."""
    found, size = _numba.from_dtype(record_dtype(cls)), record_bytes(cls)

    @_numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def at(_: Any, first: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            before = builder.mul(arguments[1], context.get_constant(types.int64, size))
            address = builder.add(arguments[0], before)
            return builder.inttoptr(address, context.get_value_type(signature.return_type))

        return found(types.int64, types.int64), generate

    given: Callable[[int, int], R] = at
    return given
