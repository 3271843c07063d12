# SPDX-License-Identifier: Apache-2.0
"""The v1model architecture around a program's blocks. `interp.v1model` has its rules.

`run` takes the address of the control block. It processes frames until all are done or the output buffers
may be too small for the outputs of the next frame. It writes the number of processed frames to the block.
"""

from __future__ import annotations

from llvmlite import ir

from ..program.frame_budget import control_has_loop, parser_cycles
from ..program.ir import ChecksumIR
from ..program.ir_expressions import FieldIR
from .calculation_code import compute
from .control_code import write_control
from .frame_code import HeaderAccess
from .function_scope import I1, I32, I64, PTR, CellRef, FunctionScope, Unit, Value, word
from .memory_layout import ControlWord, Word, words_for
from .only_interpreted import unsupported_error
from .operation_code import DROP_PORT, Operations, add_steps_taken, is_spent, write_budget
from .parser_code import write_parser

# instance_type as bmv2 numbers it. Clones, resubmits and recirculations run in the interpreter only.
INSTANCE_NORMAL = 0
INSTANCE_REPLICATION = 5
# No frame is longer. The word stays positive when a length is subtracted from it.
NO_LIMIT = 1 << 62
# The filter of existing ports has a bit for each of these, 8 KiB.
MAX_PORTS = 1 << 16
MAX_GROUPS = 1 << 16
# On x86-64 and arm64. A wrong value would cost speed, not correctness.
CACHE_LINE_BYTES = 64

_QUEUEING = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")


def write_program(unit: Unit) -> None:
    """Write all functions of a program. `run` is the one to call. Raises: UnsupportedError."""
    for name, field in unit.program.standard.items():
        if field.signed or field.bits > 64:
            raise unsupported_error("standard metadata", name)
    for header in unit.program.headers.values():
        if header.variable is not None:
            raise unsupported_error("varbit", header.variable.field.qualified)
    write_parser(unit)
    _write_verify(unit)
    write_control(unit, "ingress", unit.program.ingress)
    write_control(unit, "egress", unit.program.egress)
    _write_deparser(unit)
    _write_emit(unit)
    _write_process(unit)
    _write_run(unit)


def header_bytes(unit: Unit) -> int:
    """Return the largest number of bytes that the deparser adds to the unparsed bytes."""
    return sum(header.bits // 8 for header in unit.program.deparser.order)


class _Metadata:
    """Writer of the architecture's metadata. Fields that a program lacks are skipped."""

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope
        self._operations = Operations(scope)

    def find(self, name: str, group: str = "standard_metadata") -> FieldIR | None:
        return self._scope.unit.program.standard.get(f"{group}.{name}")

    def set(self, name: str, value: Value | int, group: str = "standard_metadata") -> None:
        field = self.find(name, group)
        if field is not None:
            self._operations.store_word(field, word(value) if isinstance(value, int) else value)

    def get(self, name: str, group: str = "standard_metadata") -> Value:
        """Return a field, or 0 if the program lacks it."""
        field = self.find(name, group)
        return word(0) if field is None else self._scope.load(self._scope.field_pointer(field), 0)

    def set_queueing(self, now: Value) -> None:
        if all(self.find(name, "queueing_metadata") is not None for name in _QUEUEING):
            for name in _QUEUEING:
                self.set(name, now if name == "enq_timestamp" else 0, "queueing_metadata")


def _applies(scope: FunctionScope, checksum: ChecksumIR) -> Value:
    if checksum.condition is None:
        return ir.Constant(I1, 1)
    scope.where = checksum.name
    return Operations(scope).integers.condition(checksum.condition)


def _write_verify(unit: Unit) -> None:
    """Write `verify`: whether all checksums that apply are right."""
    scope = FunctionScope(unit, unit.declare("verify", I64, [PTR, PTR]))
    builder, wrong = scope.builder, scope.variable(word(0))
    for checksum in unit.program.checksums:
        if not checksum.verify:
            continue
        applies = builder.and_(scope.is_valid(checksum.header), _applies(scope, checksum))
        with scope.when(applies):
            integers = Operations(scope).integers
            place = scope.layout.field(checksum.target)
            stored = CellRef(scope.readable(checksum.target), place)
            # One bit more than the field: a signed field may hold values up to 2**bits - 1.
            value = integers.low(stored, 64 * words_for(place.bits + 1))
            computed = integers.resize(compute(scope, checksum.calculation), value.type.width, signed=False)
            differs = builder.zext(builder.icmp_unsigned("!=", computed, value), I64)
            builder.store(builder.or_(builder.load(wrong, typ=I64), differs), wrong)
    builder.ret(builder.load(wrong, typ=I64))


def _write_deparser(unit: Unit) -> None:
    """Write `deparse`: update checksums, write the frame at the third argument, return its length."""
    scope = FunctionScope(unit, unit.declare("deparse", I64, [PTR, PTR, PTR]))
    builder, target = scope.builder, scope.args
    for checksum in unit.program.checksums:
        if checksum.update:
            with scope.when(_applies(scope, checksum)):
                Operations(scope).store_word(checksum.target, compute(scope, checksum.calculation))
    length = scope.variable(word(0))
    for header in unit.program.deparser.order:
        with scope.when(scope.is_valid(header)):
            at = builder.load(length, typ=I64)
            fields = [(scope.field_pointer(field), field.bits) for field in header.fields]
            HeaderAccess(scope).emit(fields, scope.byte(target, at))
            builder.store(builder.add(at, word(header.bits // 8)), length)
    # The unparsed rest follows the headers. truncate() cuts the frame, so the copy takes what is left below the limit.
    at, data = builder.load(length, typ=I64), scope.get(Word.DATA)
    rest = builder.sub(scope.get(Word.RECEIVED), data)
    limit = scope.get(Word.LIMIT)
    room = builder.select(builder.icmp_unsigned(">", limit, at), builder.sub(limit, at), word(0))
    source = scope.byte(builder.inttoptr(scope.get(Word.FRAME), PTR), data)
    scope.copy(scope.byte(target, at), source, scope.minimum(rest, room))
    builder.ret(scope.minimum(builder.add(at, rest), limit))


def _write_emit(unit: Unit) -> None:
    """Write `emit`: run egress on a packet for the port in the third argument and append the frame."""
    scope = FunctionScope(unit, unit.declare("emit", ir.VoidType(), [PTR, PTR, I64]))
    builder, meta, port = scope.builder, _Metadata(scope), scope.function.args[2]
    leave = scope.block("leave")
    _leave_if_spent(scope, leave, loops=control_has_loop(unit.program.egress))  # by an earlier copy
    now = scope.shared(ControlWord.NOW)
    _leave_if(scope, builder.icmp_unsigned("!=", meta.get("priority", "intrinsic_metadata"), word(0)), leave)
    meta.set_queueing(now)
    meta.set("egress_global_timestamp", now, "intrinsic_metadata")
    meta.set("egress_port", port)
    # Anything but the drop port: a program that drops in egress sets that itself.
    meta.set("egress_spec", DROP_PORT + 1)
    meta.set("packet_length", scope.get(Word.LENGTH))
    builder.call(unit.functions["egress"], [scope.state, scope.control])
    _leave_if_spent(scope, leave, loops=control_has_loop(unit.program.egress))
    _leave_if(scope, builder.icmp_unsigned("==", meta.get("egress_spec"), word(DROP_PORT)), leave)
    used, number = scope.shared(ControlWord.OUT_USED), scope.shared(ControlWord.OUTPUTS)
    target = scope.byte(scope.address(ControlWord.OUT), used)
    length = builder.call(unit.functions["deparse"], [scope.state, scope.control, target])
    # The port is tested last: egress of a copy for a port that does not exist counts and writes registers as any other.
    _leave_if(scope, builder.not_(_exists(scope, port)), leave)
    values = {
        ControlWord.OUT_PORTS: port,
        ControlWord.OUT_LENGTHS: length,
        ControlWord.OUT_SOURCES: scope.shared(ControlWord.DONE),
    }
    for array, value in values.items():
        scope.store(value, scope.address(array), number)
    scope.store(builder.add(used, length), scope.control, ControlWord.OUT_USED)
    scope.store(builder.add(number, word(1)), scope.control, ControlWord.OUTPUTS)
    builder.branch(leave)
    scope.start(leave)
    builder.ret_void()


def _leave_if(scope: FunctionScope, condition: Value, leave: Value) -> None:
    following = scope.block("stay")
    scope.builder.cbranch(condition, leave, following)
    scope.start(following)


def _leave_if_spent(scope: FunctionScope, leave: Value, *, loops: bool) -> None:
    """Drop a frame that has no steps left. Write no code where the last block has no loops."""
    if loops:
        _leave_if(scope, is_spent(scope), leave)


def _exists(scope: FunctionScope, port: Value) -> Value:
    """Return whether a port is in the filter."""
    builder = scope.builder
    result = scope.variable(word(1))
    present = scope.shared(ControlWord.FILTER)
    with scope.when(builder.icmp_unsigned("!=", present, word(0))):
        builder.store(word(0), result)
        with scope.when(builder.icmp_unsigned("<", port, word(MAX_PORTS))):
            bits = scope.load(builder.inttoptr(present, PTR), builder.lshr(port, word(6)))
            bit = builder.lshr(bits, builder.and_(port, word(63)))
            builder.store(builder.and_(bit, word(1)), result)
    return builder.icmp_unsigned("!=", builder.load(result, typ=I64), word(0))


def _write_process(unit: Unit) -> None:
    """Write `process`: one frame, prepared in the packet's state, for the ingress port in the third argument."""
    scope = FunctionScope(unit, unit.declare("process", ir.VoidType(), [PTR, PTR, I64]))
    builder, meta, layout = scope.builder, _Metadata(scope), scope.layout
    both, leave = [scope.state, scope.control], scope.block("leave")
    # The words before are set by `run` for each frame. Lazy regions are cleared by their first access.
    scope.clear_state(len(Word), layout.cleared_words)
    for header in unit.program.headers.values():
        if header.metadata:
            scope.set_valid(header, 1)
    meta.set("ingress_port", scope.function.args[2])
    meta.set("packet_length", scope.get(Word.RECEIVED))
    meta.set("ingress_global_timestamp", scope.shared(ControlWord.NOW), "intrinsic_metadata")
    builder.call(unit.functions["parse"], both)
    _leave_if_spent(scope, leave, loops=bool(parser_cycles(unit.program.parser)))
    scope.set(Word.DATA, scope.get(Word.POSITION))
    wrong = builder.call(unit.functions["verify"], both)
    meta.set("parser_error", scope.get(Word.ERROR))
    meta.set("checksum_error", wrong)
    builder.call(unit.functions["ingress"], both)
    _leave_if_spent(scope, leave, loops=control_has_loop(unit.program.ingress))
    scope.set(Word.EXITED, 0)
    # Replication has precedence over egress_spec, also over a drop in ingress, as in bmv2.
    group = meta.get("mcast_grp", "intrinsic_metadata")
    several, single = scope.block("several"), scope.block("single")
    builder.cbranch(builder.icmp_unsigned("!=", group, word(0)), several, single)
    scope.start(single)
    port = meta.get("egress_spec")
    _leave_if(scope, builder.icmp_unsigned("==", port, word(DROP_PORT)), leave)
    meta.set("instance_type", INSTANCE_NORMAL)
    builder.call(unit.functions["emit"], [*both, port])
    builder.branch(leave)
    scope.start(several)
    _leave_if(scope, builder.icmp_unsigned(">=", group, word(MAX_GROUPS)), leave)
    _replicate(unit, scope, meta, group)
    builder.branch(leave)
    scope.start(leave)
    builder.ret_void()


def _replicate(unit: Unit, scope: FunctionScope, meta: _Metadata, group: Value) -> None:
    """Emit one copy per replica. Fields of invalid headers are 0 in copies, and copies are not cut."""
    builder, layout = scope.builder, scope.layout
    meta.set("instance_type", INSTANCE_REPLICATION)
    for header in unit.program.headers.values():
        first, words = layout.span(header)
        region = layout.header_region(header)
        if region is not None:  # to be cleared again when it is needed
            flags = [scope.load(scope.state, at) for at in (region.flag, layout.valid(header))]
            scope.store(builder.and_(*flags), scope.state, region.flag)
        elif not header.metadata and words:
            with scope.when(builder.not_(scope.is_valid(header))):
                scope.clear(scope.at(scope.state, first), 8 * words)
    scope.set(Word.LIMIT, NO_LIMIT)
    packed = scope.load(scope.address(ControlWord.GROUPS), group)
    first_replica, count = builder.lshr(packed, word(32)), builder.and_(packed, word(0xFFFFFFFF))
    kept = scope.address(ControlWord.REPLICA)
    # Egress may change the state, and each replica begins with the state of the end of ingress. Only words that some
    # egress writes are kept and restored.
    _copy_changing(scope, kept, scope.state)
    rid = meta.find("egress_rid", "intrinsic_metadata")
    with scope.repeat(count) as index:
        at = builder.shl(builder.add(first_replica, index), word(1))
        replicas = scope.address(ControlWord.REPLICAS)
        port, instance = scope.load(replicas, at), scope.load(replicas, builder.add(at, word(1)))
        with scope.when(builder.icmp_unsigned("!=", index, word(0))):
            _copy_changing(scope, scope.state, kept)
        if rid is not None:
            masked = builder.and_(instance, word((1 << rid.bits) - 1))
            scope.store(masked, scope.state, layout.field(rid).offset)
        builder.call(unit.functions["emit"], [scope.state, scope.control, port])


def _copy_changing(scope: FunctionScope, target: Value, source: Value) -> None:
    """Copy the parts of a packet's state that egress can change."""
    layout = scope.layout
    scope.copy_words(target, source, layout.changing_words)
    for region in layout.changing_regions:
        scope.copy(scope.at(target, region.first), scope.at(source, region.first), 8 * region.words)


def _prefetch(scope: FunctionScope, number: Value) -> None:
    """Prefetch the header bytes of a frame, if the frame exists."""
    builder = scope.builder
    with scope.when(builder.icmp_unsigned("<", number, scope.shared(ControlWord.COUNT))):
        start = builder.add(scope.shared(ControlWord.FRAMES), scope.load(scope.address(ControlWord.OFFSETS), number))
        length = scope.load(scope.address(ControlWord.LENGTHS), number)
        most = sum(header.bits // 8 for header in scope.unit.program.headers.values() if not header.metadata)
        wanted = scope.minimum(length, word(most))
        # The headers of the next frame arrive in the cache while this frame runs.
        lines = builder.lshr(builder.add(wanted, word(CACHE_LINE_BYTES - 1)), word(6))
        prefetch = scope.unit.intrinsic("llvm.prefetch.p0", ir.VoidType(), [PTR, I32, I32, I32])
        with scope.repeat(lines) as index:
            line = scope.byte(builder.inttoptr(start, PTR), builder.shl(index, word(6)))
            builder.call(prefetch, [line, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])


def _loops(unit: Unit) -> bool:
    """Return whether anything in a program takes steps."""
    program = unit.program
    return bool(parser_cycles(program.parser)) or control_has_loop(program.ingress) or control_has_loop(program.egress)


def _write_run(unit: Unit) -> None:
    """Write `run`, the loop over the frames of a batch."""
    scope = FunctionScope(unit, unit.declare("run", ir.VoidType(), [PTR, PTR], public=True))
    builder = scope.builder
    head, body, end = (scope.block(name) for name in ("head", "body", "end"))
    builder.branch(head)
    scope.start(head)
    # Stop after the last frame.
    number = scope.shared(ControlWord.DONE)
    more, check = builder.icmp_unsigned("<", number, scope.shared(ControlWord.COUNT)), scope.block("check")
    builder.cbranch(more, check, end)
    # Stop where the outputs of the frame might not fit: a frame that has begun cannot be interrupted.
    scope.start(check)
    length = scope.load(scope.address(ControlWord.LENGTHS), number)
    copies = scope.shared(ControlWord.MAX_COPIES)
    needed = builder.mul(copies, builder.add(length, word(header_bytes(unit))))
    bytes_left = builder.sub(scope.shared(ControlWord.OUT_CAPACITY), scope.shared(ControlWord.OUT_USED))
    records_left = builder.sub(scope.shared(ControlWord.OUT_RECORDS), scope.shared(ControlWord.OUTPUTS))
    fits = builder.and_(
        builder.icmp_unsigned("<=", needed, bytes_left), builder.icmp_unsigned("<=", copies, records_left)
    )
    builder.cbranch(fits, body, end)
    # Set the state of the frame, and run it while the next frame is fetched into the cache.
    scope.start(body)
    offset = scope.load(scope.address(ControlWord.OFFSETS), number)
    start = {
        Word.RECEIVED: length,
        Word.POSITION: word(0),
        Word.LENGTH: length,
        Word.LIMIT: word(NO_LIMIT),
        Word.EXITED: word(0),
        Word.FRAME: builder.add(scope.shared(ControlWord.FRAMES), offset),
        Word.DATA: word(0),
    }
    for which, value in start.items():
        scope.set(which, value)
    loops = _loops(unit)
    if loops:
        write_budget(scope)
    _prefetch(scope, builder.add(number, word(1)))
    port = scope.load(scope.address(ControlWord.PORTS), number)
    builder.call(unit.functions["process"], [scope.state, scope.control, port])
    scope.store(builder.add(scope.shared(ControlWord.DONE), word(1)), scope.control, ControlWord.DONE)
    # Stop after many steps in loops, so that a call takes a bounded time.
    if loops:
        builder.cbranch(add_steps_taken(scope), head, end)
    else:
        builder.branch(head)
    scope.start(end)
    builder.ret_void()
