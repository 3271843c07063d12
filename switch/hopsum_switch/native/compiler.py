# SPDX-License-Identifier: Apache-2.0
"""A program to machine code for this processor, and machine code to a function that can be called."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Sequence
from functools import cache as cache_result
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from ..program.ir import ConditionalIR, Jump, JumpIfZero, ProgramIR
from .function_scope import Unit
from .only_interpreted import unsupported_error
from .program_code import header_bytes, write_program

# Compiled programs on disk.
#
# The cache holds code that will run in this process, so its folder and files must belong to the user and be writable
# by nobody else. Other folders and files are ignored, and also files that are cut or changed. An unusable cache costs
# a compilation, never an error.

_MAGIC = b"hopsum-switch-code-1\n"
_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Return the user's cache folder for compiled programs, which may not exist. Raises RuntimeError: no home."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hopsum-switch"


def default_cache() -> CodeCache | None:
    """Return the cache in the user's cache folder, or None where the user has no home."""
    try:
        return CodeCache(default_folder())
    except RuntimeError:
        return None


class CodeCache:
    """A cache of object files in a folder, keyed by their inputs. No method raises for files that cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, key: Sequence[str]) -> bytes | None:
        """Return the code that was saved under a key, or None: it is missing, damaged, or writable by others."""
        try:
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return None
            # O_NOFOLLOW, and tests on the open descriptor: nobody can exchange the file between test and read.
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not self._is_private(os.fstat(descriptor), stat.S_ISREG):
                    return None
                content = file.read()
        except OSError:
            return None
        digest, code = content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES], content[len(_MAGIC) + _DIGEST_BYTES :]
        if not content.startswith(_MAGIC) or not code or hashlib.sha256(code).digest() != digest:
            return None
        return code

    def save(self, key: Sequence[str], code: bytes) -> None:
        """Save code under a key, in place of an earlier one. Do nothing if the folder cannot be trusted or written."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return
            descriptor, name = tempfile.mkstemp(dir=self._folder)  # mode 0600
            try:
                with open(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(code).digest() + code)
                # A rename is atomic: processes that compile the same program at once each see a whole file.
                os.replace(name, self._path(key))
            except OSError:
                os.unlink(name)
                raise

    def _path(self, key: Sequence[str]) -> Path:
        parts = b"".join(hashlib.sha256(part.encode()).digest() for part in key)
        return self._folder / f"{hashlib.sha256(parts).hexdigest()}.o"

    @staticmethod
    def _is_private(status: os.stat_result, is_kind: object) -> bool:
        assert callable(is_kind)
        mine = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return mine and bool(is_kind(status.st_mode))


OPTIMISATION = 2
# LLVM simplifies a chain of branches one by one, and aborts the whole process at the 1,000th round.
MAX_BRANCHES = 800
# The time to compile grows faster than the square of a stack: 3 s for 128 elements, 9 s for 256, 60 s for 512.
MAX_ELEMENTS = 128

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
    """Return a program as callable machine code, from the cache, else compiled (for seconds) and saved there.

    Raises UnsupportedError where only the interpreter runs the program. The message names the construct.
    """
    _refuse_large(program)
    initialise()
    unit = Unit(program)
    key = (
        unit.program.digest,
        _sources(),
        llvm.get_host_cpu_name(),
        features(),
        llvmlite.__version__,
        platform.machine(),
    )
    # Everything that decides the code is in the key: program, sources of the compiler, processor, LLVM.
    code = None if cache is None else cache.load(key)
    if code is None:
        code = _compile(unit)
        if cache is not None:
            cache.save(key, code)
    return _load(code, unit)


def _compile(unit: Unit) -> bytes:
    write_program(unit)
    return compile_module(str(unit.module), target_machine())


def _refuse_large(program: ProgramIR) -> None:
    sizes = [("the parser", len(program.parser.states))]
    for control in (program.ingress, program.egress):
        actions = {action.id: action for action in control.runnable()}
        jumps = sum(isinstance(op, Jump | JumpIfZero) for action in actions.values() for op in action.body)
        # No table counts: a search keeps its neighbours apart.
        conditions = sum(isinstance(node, ConditionalIR) for node in control.nodes.values())
        sizes.append((control.name, conditions + jumps))
    for name, size in sizes:
        if size > MAX_BRANCHES:
            raise unsupported_error("many branches", f"{size} in {name}")
    for stack in program.stacks.values():
        if len(stack.headers) > MAX_ELEMENTS:
            raise unsupported_error("many elements", f"{len(stack.headers)} in {stack.name}")


@cache_result
def _sources() -> str:
    """Return a digest of all inputs that determine the code of a program."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(__file__).parents[1] / "program"):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def initialise() -> None:
    """Prepare LLVM for this processor. The other functions need it. Further calls do nothing."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def features() -> str:
    """Return the features of this processor, as LLVM names them."""
    found: str = llvm.get_host_cpu_features().flatten()
    return found


def target_machine() -> Any:
    """Return a new target machine of LLVM for this processor."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features(),
        opt=OPTIMISATION,
        reloc="pic",
        # Position-independent: the object file is cached on disk and loaded at any address.
        codemodel="jitdefault",
        jit=True,
    )


def compile_module(text: str, target: Any) -> bytes:
    """Compile LLVM's text of a module for a target machine (see `target_machine`), and return the object file."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = target.triple, str(target.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    code: bytes = target.emit_object(module)
    return code


def link_object(code: bytes) -> Any:
    """Link an object file into memory. Return the linker, which has the functions' addresses and owns their memory."""
    linker = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    linker.add_object_file(llvm.ObjectFileRef.from_data(code))
    linker.finalize_object()
    return linker


def _load(code: bytes, unit: Unit) -> Code:
    linker = link_object(code)
    address = linker.get_function_address("run")
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    return Code(run, address, unit, header_bytes(unit), linker)
