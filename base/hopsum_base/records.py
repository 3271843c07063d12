# SPDX-License-Identifier: Apache-2.0
"""Records: memory that Python and machine code both read and write by the names of its fields.

A record is a C struct (ctypes). Python reads a field as an attribute; a kernel gets the record by its address
(`record_kernels.record_at`) and reads the same attribute. This file imports no numba, which takes a second.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import numpy as np

Int64 = Annotated[int, ctypes.c_int64]
UInt64 = Annotated[int, ctypes.c_uint64]
Int32 = Annotated[int, ctypes.c_int32]
Int16 = Annotated[int, ctypes.c_int16]
Float64 = Annotated[float, ctypes.c_double]
Bool = Annotated[bool, ctypes.c_bool]
Address = Annotated[int, ctypes.c_int64]
"""The address of memory that somebody else keeps alive. 0: there is none."""

if TYPE_CHECKING:

    class Record:
        """A struct of named fields, all 0 at first."""
else:
    # For a type checker a Structure has every attribute, and a misspelt one would pass.
    class Record(ctypes.Structure):
        """A struct of named fields, all 0 at first."""

        # Without a dict, an assignment to a field that does not exist is an error.
        __slots__ = ()


R = TypeVar("R", bound=Record)


def record(cls: type[R]) -> type[R]:
    """Class decorator: give a subclass of `Record` the C fields of its annotations, and return it.

    An annotation is one of Int64, UInt64, Int32, Int16, Float64, Bool and Address, or another record. The class needs
    `__slots__ = ()`.
    """
    hints = get_type_hints(cls, include_extras=True)
    fields = [(name, *getattr(hint, "__metadata__", (hint,))) for name, hint in hints.items()]
    given: Any = cls
    given._fields_ = fields
    return cls


def records(cls: type[R], count: int) -> Sequence[R]:
    """Return so many records, all 0, that lie one behind the other in memory."""
    kind: Any = cls
    made: Sequence[R] = (kind * count)()
    return made


def record_address(memory: Record | Sequence[Record]) -> int:
    """Return the address of a record, or of the first of `records`. It is valid while the object lives."""
    given: Any = memory
    return ctypes.addressof(given)


def record_bytes(cls: type[Record]) -> int:
    """Return the size of a record in bytes."""
    given: Any = cls
    return ctypes.sizeof(given)


def offset_of(cls: type[Record], field: str) -> int:
    """Return the offset of a field in a record, in bytes."""
    offset: int = getattr(cls, field).offset
    return offset


def record_copy(memory: R) -> R:
    """Return a record with the same values in memory of its own."""
    kind: Any = type(memory)
    made: R = kind.from_buffer_copy(memory)
    return made


def record_dtype(cls: type[Record]) -> np.dtype[np.void]:
    """Return the names, types and offsets of the fields as numpy has them."""
    given: Any = cls
    found: np.dtype[np.void] = np.dtype(given)
    return found
