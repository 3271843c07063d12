# SPDX-License-Identifier: Apache-2.0
"""A program to machine code for this processor, and machine code to a function that can be called."""

from __future__ import annotations

import ctypes
import hashlib
import platform
from collections.abc import Callable
from functools import cache as cache_result
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from ..program.ir import ProgramIR
from .cache import CodeCache
from .pipeline import header_bytes, write_program
from .scope import Unit
from .unsupported import refuse

OPTIMISATION = 2

# mcjit looks for symbols of the process; the code names memcpy, memset and memcmp of the C library.
Run = Callable[[int, int], None]


class Code(NamedTuple):
    """The parts of a compiled program that the engine needs. `keep` owns the memory of the function."""

    run: Run
    address: int  # of `run`
    unit: Unit
    header_bytes: int
    keep: object


def compile_program(program: ProgramIR, cache: CodeCache | None = None) -> Code:
    """Compile a program, or load it from the cache, and make it callable.

    Raises UnsupportedError where only the interpreter runs the program. The message names the construct.
    """
    initialise()
    try:
        return _compiled(Unit(program), cache)
    except RecursionError:
        raise refuse("nesting", program.name) from None


def _compiled(unit: Unit, cache: CodeCache | None) -> Code:
    key = (
        unit.program.digest,
        _sources(),
        llvm.get_host_cpu_name(),
        features(),
        llvmlite.__version__,
        platform.machine(),
    )
    code = None if cache is None else cache.load(key)
    if code is None:
        code = _compile(unit)
        if cache is not None:
            cache.save(key, code)
    return _load(code, unit)


def _compile(unit: Unit) -> bytes:
    write_program(unit)
    return translate(str(unit.module), machine())


@cache_result
def _sources() -> str:
    """Return a digest of all inputs that determine the code of a program."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(__file__).parents[1] / "program"):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def initialise() -> None:
    """Prepare LLVM for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def features() -> str:
    """Return the features of this processor, as LLVM names them."""
    found: str = llvm.get_host_cpu_features().flatten()
    return found


def machine() -> Any:
    """Return LLVM's target machine of this processor."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features(),
        opt=OPTIMISATION,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def translate(text: str, target: Any) -> bytes:
    """Return an object file of LLVM's text of a module."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = target.triple, str(target.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    code: bytes = target.emit_object(module)
    return code


def load(code: bytes) -> Any:
    """Return an object file's linker, which gives addresses of functions and owns their memory."""
    linker = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
    linker.add_object_file(llvm.ObjectFileRef.from_data(code))
    linker.finalize_object()
    return linker


def _load(code: bytes, unit: Unit) -> Code:
    linker = load(code)
    address = linker.get_function_address("run")
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    return Code(run, address, unit, header_bytes(unit), linker)
