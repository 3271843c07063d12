# SPDX-License-Identifier: Apache-2.0
"""The forwarding pipeline: a compiled program with its P4Info. One program is saved and one runs."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from p4.v1.p4runtime_pb2 import SetForwardingPipelineConfigRequest

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.engine import Engine
from hopsum_switch.errors import ProgramError
from hopsum_switch.p4runtime.idle_timeouts import IdleTimeouts
from hopsum_switch.p4runtime.p4info_index import MeterInfo, P4InfoField, P4InfoIndex, P4InfoMatchKind, TableInfo
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, decode, encode, invalid, unsupported
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.program import load_program
from hopsum_switch.program.ir import ProgramIR, TableIR


class PacketHeader:
    """The controller header of packet-ins or packet-outs: it packs its fields to bytes, and unpacks them."""

    def __init__(self, name: str, fields: tuple[P4InfoField, ...]) -> None:
        """Keep the fields, in order. Raises P4RuntimeError (INVALID_ARGUMENT): they are not a whole number of bytes."""
        self._name = name
        self._fields = fields
        self._bits = sum(field.width for field in fields)
        # As bmv2 requires: the frame begins on a byte.
        if self._bits % 8:
            raise invalid(
                f"P4Info: header {name} has {self._bits} bits, which is not a whole number of bytes: add padding"
            )

    def pack(self, metadata: Iterable[tuple[int, bytes]]) -> bytes:
        """Return the header's bytes for (field id, byte string) pairs.

        Raises P4RuntimeError: a field is missing, given twice, unknown or too large. The frame must not
        enter.
        """
        values = dict[int, bytes]()
        for number, value in metadata:
            if number in values:
                raise invalid(f"{self._name}: field {number} is given twice")
            values[number] = value
        header = 0
        for info in self._fields:
            if info.id not in values:
                raise invalid(f"{self._name}: field {info.id} ({info.name}) is missing")
            header = header << info.width | decode(values.pop(info.id), info.width, f"{self._name}.{info.name}")
        if values:
            raise invalid(f"{self._name}: it has no fields {sorted(values)}")
        return header.to_bytes(self._bits // 8, "big")

    def unpack(self, frame: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """Return the (field id, byte string) pairs at the start of `frame`, and the rest.

        Raises P4RuntimeError (OUT_OF_RANGE): the frame is shorter than the header.
        """
        size = self._bits // 8
        if len(frame) < size:
            raise P4RuntimeError(
                RpcCode.OUT_OF_RANGE, f"a frame of {len(frame)} bytes cannot hold header {self._name} of {size}"
            )
        header = int.from_bytes(frame[:size], "big")
        pairs, left = [], self._bits
        for info in self._fields:
            left -= info.width
            pairs.append((info.id, encode(header >> left & (1 << info.width) - 1)))
        return pairs, frame[size:]


# The actions of SetForwardingPipelineConfig:
#
# action              needs a config   effect
# ------------------------------------------------------------------------------------------------------------
# VERIFY              yes              none
# VERIFY_AND_SAVE     yes              Read and Write go to empty state of the new program, packets not yet
# COMMIT              no               packets go to the saved program with what has been written since
# VERIFY_AND_COMMIT   yes              both at once, with empty state, a saved program is forgotten
# RECONCILE...        -                refused by the service: state is never carried from program to program

EngineFactory = Callable[[ProgramIR], Engine]
_SHOWN_PROBLEMS = 10
_WITH_CONFIG = (
    SetForwardingPipelineConfigRequest.VERIFY,
    SetForwardingPipelineConfigRequest.VERIFY_AND_SAVE,
    SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
)


@dataclass(frozen=True)
class CheckedPipeline:
    """A program and its P4Info after `verify`: the two belong together, and the program runs here."""

    p4info: P4InfoIndex
    program: ProgramIR
    device_config: bytes
    cookie: int | None
    packet_in: PacketHeader
    packet_out: PacketHeader


class Notes(NamedTuple):
    """The data that a client attached to an entity, returned by reads."""

    controller_metadata: int = 0
    metadata: bytes = b""


NO_NOTES = Notes()


@dataclass
class RunningPipeline:
    """A pipeline with its state, on which Read and Write act. Guarded by the data plane's gate."""

    pipeline: CheckedPipeline
    engine: Engine
    table_notes: dict[tuple[str, int | None], Notes] = field(default_factory=dict)  # by table and handle
    # Multicast groups and clone sessions as they were written, by the field of their message and their number.
    replications: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    idle: IdleTimeouts = field(init=False)

    def __post_init__(self) -> None:
        self.idle = IdleTimeouts(self.engine.tables)


# Of p4.tmp.P4DeviceConfig, whose definition P4Runtime has dropped: `reassign` is number 1, `extras` 2.
_DEVICE_DATA = 3
_VARINT, _BYTES = 0, 2


def program_text(device_config: bytes) -> str:
    """Return the program's JSON text in a device config: the text alone, or a `p4.tmp.P4DeviceConfig` that wraps it.

    bmv2 takes both. p4lang's exercises send the wrapped form. Raises P4RuntimeError (INVALID_ARGUMENT): neither.
    """
    data = device_config
    try:
        # No field of the wrapper has a first byte that JSON text can begin with, but for white space.
        if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"[")):
            data = _device_data(data)
        return data.decode("utf-8-sig")
    except (UnicodeDecodeError, IndexError):
        raise invalid(
            f"the program cannot run here: the device config, {len(device_config)} bytes that begin with"
            f" 0x{device_config[:8].hex()}, is neither the JSON text that p4c-bm2-ss writes nor a p4.tmp.P4DeviceConfig"
            " with that text in device_data"
        ) from None


def _device_data(wrapper: bytes) -> bytes:
    """Return the last field `device_data` of a serialised P4DeviceConfig. Raises IndexError: it has none, or is cut."""
    found, position = None, 0
    while position < len(wrapper):
        tag, position = _varint(wrapper, position)
        number, position = _varint(wrapper, position)
        if tag & 7 == _BYTES:
            start, position = position, position + number
            found = wrapper[start:position] if tag >> 3 == _DEVICE_DATA else found
        elif tag & 7 != _VARINT:
            break
    if found is None or position != len(wrapper):
        raise IndexError
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    # Ten bytes at most, as in protobuf: without a bound, the time would grow with the square of what a client sends.
    for place, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise IndexError


def verify(p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int | None = None) -> CheckedPipeline:
    """Return the pipeline of a P4Info message and a compiled program (the JSON of p4c-bm2-ss, see `program_text`).

    Raises P4RuntimeError (INVALID_ARGUMENT or UNIMPLEMENTED): the program cannot run here, or the two do not belong
    together.
    """
    try:
        program = load_program(program_text(device_config))
    except ProgramError as error:
        raise invalid(f"the program cannot run here: {error}") from error
    info = P4InfoIndex(p4info)
    problems = list(mismatches(info, program))
    if problems:
        more = f" (and {len(problems) - _SHOWN_PROBLEMS} more)" if len(problems) > _SHOWN_PROBLEMS else ""
        raise invalid("P4Info and program do not belong together: " + "; ".join(problems[:_SHOWN_PROBLEMS]) + more)
    info.keep_tables(program.tables)
    headers = (PacketHeader(name, info.packet_header(name)) for name in ("packet_in", "packet_out"))
    return CheckedPipeline(info, program, device_config, cookie, *headers)


def requested_pipeline(request: SetForwardingPipelineConfigRequest) -> CheckedPipeline | None:
    """Verify the pipeline of a request, and return it, or None if the request commits the saved one.

    Raises P4RuntimeError: the request makes no sense, or its program cannot run here (see `verify`).
    """
    action, config = request.action, request.config
    if action == SetForwardingPipelineConfigRequest.COMMIT:
        if request.HasField("config"):
            raise invalid("COMMIT takes no config: it commits the saved one")
        return None
    if action == SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT:
        message = "RECONCILE_AND_COMMIT is not supported: use VERIFY_AND_COMMIT and write again"
        raise unsupported(message)
    if action not in _WITH_CONFIG:
        raise invalid(f"action {action} is unknown")
    if not request.HasField("config") or not config.HasField("p4info") or not config.p4_device_config:
        raise invalid("the config needs p4info and p4_device_config")
    cookie = config.cookie.cookie if config.HasField("cookie") else None
    return verify(config.p4info, config.p4_device_config, cookie)


class PipelineManager:
    """The saved and the running pipeline of one data plane. The owner serialises all calls but those of `make`."""

    def __init__(self, dataplane: Dataplane, make_engine: EngineFactory) -> None:
        self._dataplane = dataplane
        self._make_engine = make_engine
        self._saved: RunningPipeline | None = None
        self._running: RunningPipeline | None = None

    @property
    def running(self) -> RunningPipeline | None:
        """The pipeline that packets go through, or None before the first `commit`."""
        return self._running

    @property
    def current(self) -> RunningPipeline | None:
        """The pipeline of Read, Write and GetForwardingPipelineConfig: the saved one, else the running one or None."""
        return self._saved or self._running

    def make(self, pipeline: CheckedPipeline) -> RunningPipeline:
        """Make an engine for a pipeline, and return both with empty state. Nothing is saved. For any thread.

        Raises P4RuntimeError: the engine cannot run the program, or its state needs more memory than there is.
        """
        try:
            engine = self._make_engine(pipeline.program)
        except ProgramError as error:
            raise invalid(f"the program cannot run here: {error}") from error
        except MemoryError:
            told = "the program cannot run here: its registers, counters and meters need more memory than there is"
            raise P4RuntimeError(RpcCode.RESOURCE_EXHAUSTED, f"{told}: make them smaller") from None
        for table in pipeline.p4info.tables.values():
            if table.has_initial_entries:
                engine.tables[table.name].make_writable(table.size)
        return RunningPipeline(pipeline, engine)

    def save(self, target: RunningPipeline) -> None:
        """Let Read and Write refer to `target` only, until the next call. Packets still go to the running program."""
        self._saved = target

    def commit(self) -> None:
        """Let packets go through the saved pipeline from now on. Raises P4RuntimeError (NOT_FOUND): none is saved."""
        if self._saved is None:
            raise P4RuntimeError(RpcCode.NOT_FOUND, "no saved config: use VERIFY_AND_SAVE first, or VERIFY_AND_COMMIT")
        with self._dataplane.gate.control():
            # Under the gate: no packet meets half of a change. The counts of the data plane continue across programs.
            self._running, self._saved = self._saved, None
            self._running.engine.dropped = self._dataplane.dropped
            self._running.engine.faults = self._dataplane.faults
            self._dataplane.engine = self._running.engine


def mismatches(info: P4InfoIndex, program: ProgramIR) -> list[str]:
    """Return a message for each declaration of P4Info that the program lacks or has in another form.

    A table that the program lacks is one that p4c removed, since no packet comes to it, unless the program has a table
    that P4Info lacks: then the two are of different programs.
    """
    problems: list[str] = []
    declared = {table.name for table in info.tables.values()}
    # p4c writes tables into P4Info that it then removes as unreachable, so a missing table alone proves nothing.
    foreign = any(ir.keys and not ir.const_entries and name not in declared for name, ir in program.tables.items())
    for table in info.tables.values():
        ir = program.tables.get(table.name)
        if ir is not None:
            problems += _table_problems(info, table, ir)
        elif foreign:
            problems.append(f"no table {table.name}")
    for counter in info.counters.values():
        ir_counter = program.counters.get(counter.name)
        if ir_counter is None or ir_counter.table is not None or ir_counter.size != counter.size:
            problems.append(f"no counter {counter.name} of size {counter.size}")
    for meter in info.meters.values():
        ir_meter = program.meters.get(meter.name)
        if ir_meter is None or (ir_meter.size, ir_meter.counts_bytes) != (meter.size, meter.counts_bytes):
            problems.append(f"no meter {meter.name} of size {meter.size} in {_unit(meter)}")
    for digest in info.digests.values():
        ir_digest = program.digests.get(digest.name)
        if ir_digest is None or ir_digest.bits != digest.widths:
            problems.append(f"no digest {digest.name} of {' + '.join(map(str, digest.widths))} bits")
    for register in info.registers.values():
        ir_register = program.registers.get(register.name)
        if ir_register is None or ir_register.size != register.size or register.width not in (0, ir_register.bits):
            problems.append(f"no register {register.name} of {register.size} x {register.width} bits")
    return problems


def _unit(meter: MeterInfo) -> str:
    return "bytes" if meter.counts_bytes else "packets"


def _table_problems(info: P4InfoIndex, table: TableInfo, ir: TableIR) -> list[str]:
    if len(table.fields) != len(ir.keys):
        return [f"table {table.name} has {len(ir.keys)} key fields, not {len(table.fields)}"]
    problems = [f"table {table.name} uses {what}, which is not supported" for what in table.unsupported]
    for field_info, key in zip(table.fields, ir.keys, strict=True):
        # p4c writes optional keys as ternary into the JSON, and as optional into P4Info.
        kind = P4InfoMatchKind.TERNARY if field_info.kind is P4InfoMatchKind.OPTIONAL else field_info.kind
        if kind.value != key.kind.value or (field_info.width != key.bits and not field_info.translated):
            problems.append(
                f"key {key.name} of table {table.name} is {key.kind.value} bit<{key.bits}>,"
                f" not {field_info.kind.value} bit<{field_info.width}>"
            )
    if bool(table.direct_counter) and not ir.with_counters:
        problems.append(f"table {table.name} has no direct counter")
    if table.idle_timeouts and not ir.with_counters:
        problems.append(f"table {table.name} has no support_timeout")
    if table.direct_meter:
        meter = info.direct_meters[table.direct_meter]
        if ir.direct_meter is None or (ir.direct_meter.name, ir.direct_meter.counts_bytes) != (
            meter.name,
            meter.counts_bytes,
        ):
            problems.append(f"table {table.name} has no direct meter {meter.name} in {_unit(meter)}")
    for action_id in sorted(table.entry_actions | table.default_actions):
        action = info.actions[action_id]
        action_ir = ir.actions.get(action.name)
        widths = None if action_ir is None else [param.bits for param in action_ir.params]
        wanted = [
            bits if param.translated else param.width for param, bits in zip(action.params, widths or [], strict=False)
        ]
        if widths is None or len(widths) != len(action.params) or widths != wanted:
            problems.append(
                f"table {table.name} has no action {action.name}"
                f"({', '.join(f'bit<{param.width}> {param.name}' for param in action.params)})"
            )
    return problems
