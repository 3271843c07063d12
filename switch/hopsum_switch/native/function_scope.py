# SPDX-License-Identifier: Apache-2.0
"""A function under construction: its builder, its pointer arguments, and the locations of values.

LLVM values have no Python types of their own here (`Value`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from ..program.ir import ProgramIR
from ..program.ir_expressions import FieldIR, FieldRef, HeaderIR, IntType, ParamRef
from .memory_layout import PIECE_WORDS, ControlWord, Region, StoredInteger, Word, layout_of

Value = Any

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
PTR = ir.PointerType()
VECTOR = ir.VectorType(I64, 8)


class CellRef:
    """The value of a register cell, or of other memory, as an expression leaf."""

    def __init__(self, pointer: Value, place: StoredInteger) -> None:
        self.pointer = pointer
        self.place = place
        self.type = IntType(place.bits + place.signed, place.signed)


def word(value: int) -> Value:
    """Return a 64-bit constant: `value` modulo 2**64."""
    return ir.Constant(I64, value & (1 << 64) - 1)


class Unit:
    """The LLVM module of one program, under construction. `functions` has its functions by name."""

    def __init__(self, program: ProgramIR) -> None:
        self.program = program
        self.layout = layout_of(program)
        self.module = ir.Module(name="program")
        self.functions: dict[str, Value] = {}

    def declare(self, name: str, result: Value, arguments: list[Value], *, public: bool = False) -> Value:
        """Add and return a function whose pointer arguments do not overlap. `public`: visible outside the module."""
        function = ir.Function(self.module, ir.FunctionType(result, arguments), name)
        if not public:
            function.linkage = "internal"
        function.attributes.add("nounwind")
        for argument in function.args:
            if argument.type == PTR:
                # State, control block and action arguments are separate arrays, so LLVM may keep fields in registers
                # across stores.
                argument.add_attribute("noalias")
        self.functions[name] = function
        return function

    def intrinsic(self, name: str, result: Value, arguments: list[Value]) -> Value:
        """Return an intrinsic, or a function of the C library, by its full name. The first call declares it."""
        if name not in self.functions:
            self.functions[name] = ir.Function(self.module, ir.FunctionType(result, arguments), name)
        return self.functions[name]

    def constant_array(self, name: str, values: list[int], bits: int) -> Value:
        """Return a constant array of integers of `bits` bits. A known `name` returns the array of the first call."""
        if name not in self.module.globals:
            kind = ir.ArrayType(ir.IntType(bits), len(values))
            array = ir.GlobalVariable(self.module, kind, name)
            array.linkage, array.global_constant = "internal", True
            array.initializer = ir.Constant(kind, values)
        return self.module.globals[name]


class FunctionScope:
    """One function: `state` and `control` are its first two arguments, `args` the arguments of an action.

    Methods write code at the builder's place. The values that they return exist when that code runs.
    """

    def __init__(self, unit: Unit, function: Value, params: tuple[StoredInteger, ...] = ()) -> None:
        self.unit = unit
        self.layout = unit.layout
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.state, self.control = function.args[0], function.args[1]
        self.args = function.args[2] if len(function.args) > 2 else None
        self.params = params
        self.where = function.name
        self._in_memory: dict[Value, set[int]] = {}  # block -> flags of the regions that it knows to be in memory

    def at(self, base: Value, words: int | Value) -> Value:
        """Return the address that lies a number of words after `base`."""
        offset = word(words) if isinstance(words, int) else words
        return self.builder.gep(base, [offset], source_etype=I64)

    def byte(self, base: Value, offset: int | Value) -> Value:
        """Return the address that lies a number of bytes after `base`."""
        offset = word(offset) if isinstance(offset, int) else offset
        return self.builder.gep(base, [offset], source_etype=I8)

    def load(self, base: Value, words: int | Value) -> Value:
        """Write a load of the word `words` words after `base`. Return the loaded value."""
        return self.builder.load(self.at(base, words), typ=I64, align=8)

    def store(self, value: Value, base: Value, words: int | Value) -> None:
        """Write a store of `value` into the word `words` words after `base`."""
        self.builder.store(value, self.at(base, words), align=8)

    def get(self, which: Word) -> Value:
        """Write a load of a word of the packet's state. Return the loaded value."""
        return self.load(self.state, int(which))

    def set(self, which: Word, value: Value | int) -> None:
        """Write a store into a word of the packet's state."""
        self.store(word(value) if isinstance(value, int) else value, self.state, int(which))

    def shared(self, which: ControlWord | int) -> Value:
        """Write a load of a word of the control block. Return the loaded value."""
        return self.load(self.control, int(which))

    def address(self, which: ControlWord | int) -> Value:
        """Write a load of a word of the control block. Return it as a pointer."""
        return self.builder.inttoptr(self.shared(which), PTR)

    def is_valid(self, header: HeaderIR) -> Value:
        """Write a test of a header's validity. Return an i1 value, true for a valid header."""
        return self.builder.icmp_unsigned("!=", self.load(self.state, self.layout.valid(header)), word(0))

    def make_valid(self, header: HeaderIR) -> None:
        """Write code that makes a header valid, and the other members of its union invalid."""
        for sibling in self.unit.program.siblings(header):
            self.set_valid(sibling, 0)
        self.set_valid(header, 1)

    def set_valid(self, header: HeaderIR, flag: int) -> None:
        """Write code that sets a header's validity, 0 or 1. The caller sets or clears all fields for a 1."""
        self.store(word(flag), self.state, self.layout.valid(header))
        region = self.layout.header_region(header)
        # All fields of a header that becomes valid are set or cleared by the caller, so its region is in memory.
        if flag and region is not None:
            self.store(word(1), self.state, region.flag)

    def field_pointer(self, field: FieldIR) -> Value:
        """Return the address of a field that is known to be in memory, as those of valid headers are."""
        return self.at(self.state, self.layout.field(field).offset)

    def readable(self, field: FieldIR) -> Value:
        """Write code that clears a field that had no value yet. Return the field's address, to read from."""
        region = self.layout.region(field)
        if region is not None:
            self._bring(region)
        return self.field_pointer(field)

    def target(self, field: FieldIR) -> Value:
        """Return the address of a field, to store a whole value. The caller calls `written` after the store."""
        region = self.layout.region(field)
        if region is not None and not region.whole_field:
            self._bring(region)
        return self.field_pointer(field)

    def written(self, field: FieldIR) -> None:
        """Write code that marks a field as stored, after the caller's store at `target`."""
        region = self.layout.region(field)
        if region is not None and region.whole_field:
            self.store(word(1), self.state, region.flag)

    def _bring(self, region: Region) -> None:
        """Clear a region unless it is in memory."""
        # Within one block a region is brought once. What another block knows does not hold here.
        known = self._in_memory.get(self.builder.block, set())
        if region.flag in known:
            return
        absent = self.builder.icmp_unsigned("==", self.load(self.state, region.flag), word(0))
        with self.builder.if_then(absent, likely=False):
            self.clear(self.at(self.state, region.first), 8 * region.words)
            self.store(word(1), self.state, region.flag)
        self._in_memory[self.builder.block] = known | {region.flag}

    def leaf(self, expr: FieldRef | ParamRef | CellRef) -> tuple[Value, StoredInteger]:
        """Return address and shape of the value that a leaf of an expression names, to read from (see `readable`)."""
        if isinstance(expr, CellRef):
            return expr.pointer, expr.place
        if isinstance(expr, FieldRef):
            return self.readable(expr.field), self.layout.field(expr.field)
        place = self.params[expr.index]
        return self.at(self.args, place.offset), place

    def copy(self, target: Value, source: Value, size: int | Value) -> None:
        """Write a copy of `size` bytes between memory that does not overlap."""
        memcpy = self.unit.intrinsic("llvm.memcpy.p0.p0.i64", ir.VoidType(), [PTR, PTR, I64, I1])
        size = word(size) if isinstance(size, int) else size
        self.builder.call(memcpy, [target, source, size, ir.Constant(I1, 0)])

    def clear(self, target: Value, size: int) -> None:
        """Write code that sets `size` bytes from an address on to 0."""
        memset = self.unit.intrinsic("llvm.memset.p0.i64", ir.VoidType(), [PTR, I8, I64, I1])
        self.builder.call(memset, [target, ir.Constant(I8, 0), word(size), ir.Constant(I1, 0)])

    def clear_state(self, first: int, end: int) -> None:
        """Write code that clears words `first` to `end` - 1 of the packet's state, both multiples of PIECE_WORDS."""
        for at in range(first, end, PIECE_WORDS):
            self.builder.store(ir.Constant(VECTOR, None), self.at(self.state, at), align=64)

    def copy_words(self, target: Value, source: Value, words: Iterable[int]) -> None:
        """Write a copy of single words, by their numbers, from one packet's state to another."""
        # The loads are atomic to stay single: most words were just stored one by one, and a processor that loads
        # several of them at once first waits until all its stores have reached the cache.
        for at in words:
            value = self.builder.load_atomic(self.at(source, at), "monotonic", 8, typ=I64)
            self.store(value, target, at)

    def variable(self, value: Value) -> Value:
        """Write a new local word that starts with `value`. Return its address."""
        with self.builder.goto_entry_block():
            # In the entry block: LLVM promotes such words to registers, and a loop does not allocate again.
            pointer = self.builder.alloca(I64)
        self.builder.store(value, pointer)
        return pointer

    def minimum(self, left: Value, right: Value) -> Value:
        """Write code for the smaller of two unsigned words. Return the value."""
        return self.builder.select(self.builder.icmp_unsigned("<", left, right), left, right)

    def block(self, name: str) -> Value:
        """Return a new block at the end of the function. The builder stays at its place."""
        return self.function.append_basic_block(name)

    def start(self, block: Value) -> None:
        """Move the builder to the end of a block."""
        self.builder.position_at_end(block)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Write the code of the `with` block so that it runs only if a condition holds."""
        with self.builder.if_then(condition):
            yield

    @contextmanager
    def repeat(self, count: Value) -> Iterator[Value]:
        """Emit a loop around the code that the `with` block emits. Yield the index, which runs from 0 to count - 1."""
        builder = self.builder
        before, head, body, end = builder.block, self.block("head"), self.block("body"), self.block("end")
        builder.branch(head)
        self.start(head)
        index = builder.phi(I64)
        index.add_incoming(word(0), before)
        builder.cbranch(builder.icmp_unsigned("<", index, count), body, end)
        self.start(body)
        yield index
        index.add_incoming(builder.add(index, word(1)), builder.block)
        builder.branch(head)
        self.start(end)
