# SPDX-License-Identifier: Apache-2.0
"""The compilation of the numba backend: by the first call, without the interpreter lock, and kept in numba's cache.

numba ships no types, and finds a cache stale by the file of the kernel alone: parts stand in the kernel's file.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numba
import numpy as np
from numba.core import cgutils, codegen, compiler, compiler_lock
from numba.np import arrayobj

from hopsum.codec.backends import NotCompiledError, is_only_cached
from hopsum.codec.backends.vector_code import Builder, Context, Kind, Made, Value
from hopsum_base.record_kernels import types

F = TypeVar("F", bound=Callable[..., Any])
_numba: Any = numba
_compiling: Any = compiler_lock.global_compiler_lock
if TYPE_CHECKING:
    # For a type checker the numbers of a kernel are Python's.
    u8 = i8 = i16 = u16 = i32 = u32 = i64 = u64 = int
    f32 = f64 = float
else:
    u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64
    i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
    f32, f64 = np.float32, np.float64

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}
"""Of all machine code. Python's errors of a division by zero, which there is nowhere, take compile time."""
_log: Final = logging.getLogger(__name__)
_warned: Final[set[str]] = set()
"""The folders of numba's cache that a warning has named."""


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a part, which LLVM optimises and emits in the kernels that have the part, and only there."""

    # numba would do both for each part too, with all that the part calls: a fifth of the compile time.
    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    # numba would write the address of Python's globals into the machine code. No part reads them.
    codegen = SimpleNamespace(set_env=lambda *_: None)


class _PartCompiler(compiler.Compiler):  # type: ignore[misc]
    """The compiler of parts: their code goes into a `_PartLibrary`."""

    def __init__(self, typing: Any, target: Any, _: Any, *given: Any) -> None:
        super().__init__(typing, target, _PartLibrary(target.codegen(), "part"), *given)


def inner(function: F) -> F:
    """Compile a part of kernels, for whatever types they pass. Python must not call it."""
    # Only kernels call a part. The functions by which Python and C would call it take a fifth of the compile time.
    options = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _PartCompiler}
    compiled: F = _numba.njit(**options)(function)
    return compiled


def _use_temporary_cache() -> bool:
    """Let numba keep machine code in a folder of this user's among the temporary ones, once for all processes.

    Return whether there is one that nobody else can write to: numba runs what it finds.
    """
    folder = Path(tempfile.gettempdir()) / f"hopsum-kernels-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return False
    _numba.config.CACHE_DIR = str(folder)
    return True


def _warn_of_cache(compiled: Any, error: Exception) -> None:
    """Log once for each folder that its cache is no use."""
    folder = str(compiled._cache.cache_path)
    if folder not in _warned:
        _warned.add(folder)
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _log.warning(
            "numba's cache in %s is no use (%s): this process compiles without it; make room there, or delete it",
            folder,
            reason,
        )


class LazyKernel:
    """A kernel that its first call compiles for its one signature, or loads from the cache. Any thread may call.

    A kernel takes seconds to compile and a codec needs few of them. `make_codec` calls all that its codec needs.
    """

    def __init__(self, function: Callable[..., None], signature: Kind) -> None:
        # numba keeps functions of one name in one index: processes that write it at once would mix up their code.
        function.__qualname__ += "".join(f"-{cell.cell_contents}" for cell in function.__closure__ or ())
        self._function, self._signature = function, signature
        self._compiled: Callable[..., None] | None = None
        # Replaced by the machine code itself, which a caller can then call without a call of Python in between.
        self.run: Callable[..., None] = lambda *arguments: self.compile()(*arguments)

    def __call__(self, *arguments: Any) -> None:
        self.run(*arguments)

    def compile(self) -> Callable[..., None]:
        """Return the machine code, compiled or loaded from the cache now if it was not before.

        Raises:
            NotCompiledError: in a block of `only_cached`, and the cache does not have it.
        """
        # numba's own lock, taken first: another thread may compile a function that this one needs.
        with _compiling:
            if self._compiled is None:
                self._compiled = self._cached() or self._made(_numba.njit(**_OPTIONS)(self._function))
            self.run = self._compiled
            return self._compiled

    def _cached(self) -> Callable[..., None] | None:
        """Return the machine code of the cache, or compile it and keep it there. None where the cache is no use."""
        try:
            found = _numba.njit(cache=True, **_OPTIONS)(self._function)
        except RuntimeError:
            # numba finds no folder that it may write to.
            if not _use_temporary_cache():
                return None
            found = _numba.njit(cache=True, **_OPTIONS)(self._function)
        try:
            return self._found(found) if is_only_cached() else self._made(found)
        except NotCompiledError:
            raise
        except Exception as error:
            # Whatever it was: a file cut off by a full disk or a power loss, no space, no right. A fault of the kernel
            # itself comes again without the cache.
            _warn_of_cache(found, error)
            return None

    def _found(self, compiled: Any) -> Callable[..., None]:
        """Return the machine code of the cache. Raises NotCompiledError if it is not there."""

        def refuse(*_: Any) -> None:
            raise NotCompiledError(self._function.__qualname__)

        # numba asks its cache first, and then its compiler.
        compiled._compiler.compile = refuse
        try:
            return self._made(compiled)
        finally:
            del compiled._compiler.compile

    def _made(self, compiled: Any) -> Callable[..., None]:
        compiled.compile(self._signature)
        compiled.disable_compile()
        made: Callable[..., None] = compiled
        return made

    @cached_property
    def address(self) -> int:
        """The address of the machine code, for `call_at`, valid for the life of the process.

        The first use compiles or loads the code. Raises as `compile` does.
        """
        compiled: Any = self.compile()
        found = compiled.overloads[tuple(compiled.signatures[0])]
        address: int = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)
        return address


def kernel(*arguments: Kind) -> Callable[[Callable[..., None]], LazyKernel]:
    """Return a decorator that makes a LazyKernel of a function, for arguments of these types of numba."""
    return lambda function: LazyKernel(function, types.void(*arguments))


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def fetch_add(_: Context, array: Kind, index: Kind, value: Kind) -> Made:
    """Add to an element of an int64 array, atomically over threads, and return what it was."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "monotonic")

    return types.int64(array, types.int64, types.int64), generate


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def call_at(_: Context, address: Kind, arguments: Kind) -> Made:
    """Call a compiled kernel, which returns nothing, by its address. Nothing checks the types of the arguments."""

    # By address: a call by name would compile the kernel once more, into its caller.
    def generate(context: Context, builder: Builder, signature: Kind, values: Sequence[Value]) -> Value:
        kinds = tuple(signature.args[1])
        target = context.call_conv.get_function_type(types.none, kinds).as_pointer()
        each = cgutils.unpack_tuple(builder, values[1], len(kinds))
        context.call_conv.call_function(builder, builder.inttoptr(values[0], target), types.none, kinds, each)
        return context.get_dummy_value()

    return types.void(address, arguments), generate


def _array(context: Context, builder: Builder, kind: Kind, data: Value, shape: Sequence[Value]) -> Value:
    """Return an array of numba over memory that the array does not own."""
    array = context.make_array(kind)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [size] if len(shape) == 1 else [builder.mul(shape[1], size), size]
    arrayobj.populate_array(array, data, shape, strides, size, None)
    return array._getvalue()


@_numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def scratch(_: Context, count: Kind, element: Kind) -> Made:
    """Return an array of a constant number of elements on the stack, not filled, until the kernel returns."""

    # np.empty is compiled anew for every type of elements, and references of its arrays are counted.
    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        size = count.literal_value
        data = cgutils.alloca_once(builder, context.get_data_type(element.dtype), size)
        data.align = 64
        return _array(context, builder, signature.return_type, data, [context.get_constant(types.intp, size)])

    return filled(element.dtype, 1)(count, element), generate


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def array_at(_: Context, address: Kind, shape: Kind, element: Kind) -> Made:
    """Return the array of a shape, a tuple of one or two numbers, that begins at an address."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = builder.inttoptr(arguments[0], context.get_data_type(element.dtype).as_pointer())
        return _array(context, builder, signature.return_type, data, cgutils.unpack_tuple(builder, arguments[1]))

    return filled(element.dtype, len(shape))(types.int64, types.UniTuple(types.int64, len(shape)), element), generate


def read(dtype: Kind, axes: int) -> Kind:
    """Return numba's type of a contiguous array of so many axes that is read. Writable arrays convert to it."""
    return types.Array(dtype, axes, "C", readonly=True)


def filled(dtype: Kind, axes: int = 2) -> Kind:
    """Return numba's type of a contiguous array of so many axes that is filled."""
    return types.Array(dtype, axes, "C")
