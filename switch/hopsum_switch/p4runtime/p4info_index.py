# SPDX-License-Identifier: Apache-2.0
"""P4Info as the server uses it: objects by id, with their names, widths and limits."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from google.protobuf import text_format
from p4.config.v1 import p4types_pb2

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.p4runtime.status import invalid, unsupported

T = TypeVar("T")
_Sized: TypeAlias = "p4info_pb2.MatchField | p4info_pb2.Action.Param | p4info_pb2.ControllerPacketMetadata.Metadata"


class P4InfoMatchKind(enum.Enum):
    """The match kind of a key field."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


_MATCH_KINDS = {getattr(p4info_pb2.MatchField, kind.name): kind for kind in P4InfoMatchKind}
_BY_PRIORITY = {P4InfoMatchKind.TERNARY, P4InfoMatchKind.RANGE, P4InfoMatchKind.OPTIONAL}


class P4InfoField(NamedTuple):
    """An action parameter or a field of a packet-in or packet-out header."""

    id: int
    name: str
    width: int
    translated: bool  # a user-defined type: the control plane's width may differ from the program's


class MatchField(NamedTuple):
    """One field of a table's key, with its width in P4Info and its kind of match."""

    id: int
    name: str
    width: int
    translated: bool
    kind: P4InfoMatchKind


@dataclass(frozen=True)
class ActionInfo:
    """An action and its parameters, in the order of their declaration."""

    id: int
    name: str
    params: tuple[P4InfoField, ...]


@dataclass(frozen=True)
class TableInfo:
    """A table, its key fields in the order of their declaration, and its permitted actions and entries."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    const_default: bool
    is_const: bool
    has_initial_entries: bool
    size: int
    direct_counter: int  # id, 0 if there is none
    direct_meter: int  # id, 0 if there is none
    idle_timeouts: bool  # its entries may have them
    unsupported: tuple[str, ...]  # action profiles: named where used

    @property
    def needs_priority(self) -> bool:
        """Whether entries of the table need a priority: one of its keys is ternary, range or optional."""
        return any(field.kind in _BY_PRIORITY for field in self.fields)


@dataclass(frozen=True)
class CounterInfo:
    """A counter array, or (with `table` set to the table's id) a direct counter."""

    id: int
    name: str
    size: int
    table: int = 0


@dataclass(frozen=True)
class MeterInfo:
    """A meter array, or (with `table` set to the table's id) a direct meter."""

    id: int
    name: str
    size: int
    counts_bytes: bool
    table: int = 0


@dataclass(frozen=True)
class RegisterInfo:
    """A register array of plain integers. `width` is 0 for other element types, which cannot be read."""

    id: int
    name: str
    size: int
    width: int


class DigestShape(enum.Enum):
    """The packing of a digest's members."""

    STRUCT = "struct"
    TUPLE = "tuple"
    BITSTRING = "bitstring"


@dataclass(frozen=True)
class DigestInfo:
    """A digest. `widths` has the widths of its members in bits. All members are plain."""

    id: int
    name: str
    shape: DigestShape
    widths: tuple[int, ...]


class P4InfoObjects(dict[int, T]):
    """The objects of one kind in a P4Info, by id. Error messages name them by `kind`.

    Raises:
        P4RuntimeError: an id is 0 or used twice.
    """

    def __init__(self, kind: str, objects: Iterable[T]) -> None:
        super().__init__()
        self._kind = kind
        for item in objects:
            number = item.id  # type: ignore[attr-defined]
            if number == 0 or number in self:
                raise invalid(f"P4Info: id {number} is 0 or used twice: {item}")
            self[number] = item

    def find(self, number: int) -> T:
        """Return the object with this id. Raises P4RuntimeError (INVALID_ARGUMENT) if the P4Info has no such id."""
        if number not in self:
            raise invalid(f"{self._kind} id {number} is not in the P4Info")
        return self[number]

    def select(self, number: int) -> list[T]:
        """Return a list of the one object that `find` returns for an id, or of all for id 0, the wildcard of a Read."""
        return [self.find(number)] if number else list(self.values())


class P4InfoIndex:
    """The objects of one P4Info message by id. `message` is kept unchanged."""

    def __init__(self, message: p4info_pb2.P4Info) -> None:
        """Read `message`.

        Raises P4RuntimeError where the message contradicts itself, or declares something that is not supported.
        """
        self.message = message
        self.actions = P4InfoObjects("action", (_action(action) for action in message.actions))
        self.counters = P4InfoObjects(
            "counter", (CounterInfo(c.preamble.id, c.preamble.name, c.size) for c in message.counters)
        )
        self.direct_counters = P4InfoObjects(
            "direct counter",
            (CounterInfo(c.preamble.id, c.preamble.name, 0, c.direct_table_id) for c in message.direct_counters),
        )
        self.meters = P4InfoObjects("meter", (_meter(meter, meter.size) for meter in message.meters))
        self.direct_meters = P4InfoObjects(
            "direct meter", (_meter(meter, 0, meter.direct_table_id) for meter in message.direct_meters)
        )
        self.registers = P4InfoObjects("register", (_register(register) for register in message.registers))
        self.digests = P4InfoObjects("digest", (_digest(digest, message.type_info) for digest in message.digests))
        self.tables = P4InfoObjects(
            "table", (_table(table, self.direct_counters, self.direct_meters) for table in message.tables)
        )
        self._removed: dict[int, str] = {}
        self._headers = {
            header.preamble.name: tuple(_header_field(field, message) for field in header.metadata)
            for header in message.controller_packet_metadata
        }
        self._check_references()

    def table(self, table_id: int) -> TableInfo:
        """Return a table. Raises P4RuntimeError (INVALID_ARGUMENT): no such id, or the program has no such table."""
        if table_id in self._removed:
            message = f"table {self._removed[table_id]} is not in the program: p4c removed it, as no packet comes to it"
            raise invalid(message)
        return self.tables.find(table_id)

    def keep_tables(self, names: Collection[str]) -> None:
        """Forget the tables that are not among `names`: those that the compiler left out of the program."""
        self._removed = {number: table.name for number, table in self.tables.items() if table.name not in names}
        # A client still knows the ids from its P4Info, so `table` refuses them by name.
        for number in self._removed:
            del self.tables[number]

    def packet_header(self, name: str) -> tuple[P4InfoField, ...]:
        """Return the fields of header `packet_in` or `packet_out`, or no fields if the program has no such header."""
        return self._headers.get(name, ())

    def _check_references(self) -> None:
        for table in self.tables.values():
            unknown = (table.entry_actions | table.default_actions) - self.actions.keys()
            if unknown:
                raise invalid(
                    f"P4Info: table {table.name} refers to action ids {sorted(unknown)}, which are not declared"
                )


def parse_p4info(text: str) -> p4info_pb2.P4Info:
    """Read a P4Info message in text format.

    Raises P4RuntimeError where it is not P4Info text. The message has the place.
    """
    message = p4info_pb2.P4Info()
    try:
        # A newer p4c may write fields that these bindings do not have.
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise invalid(f"not a P4Info in text format: {error}") from error
    except RecursionError:
        raise invalid("not a P4Info in text format: its messages are nested too deeply") from None
    return message


def _field(field: _Sized) -> P4InfoField:
    if not field.bitwidth:
        raise unsupported(f"P4Info: {field.name} has no bit width: strings are not supported")
    return P4InfoField(field.id, field.name, field.bitwidth, field.HasField("type_name"))


def _header_field(field: p4info_pb2.ControllerPacketMetadata.Metadata, info: p4info_pb2.P4Info) -> P4InfoField:
    # Not by [], which would add an entry to a map of protobuf.
    new_type = info.type_info.new_types.get(field.type_name.name)
    if new_type is not None and new_type.HasField("translated_type"):
        raise unsupported(
            f"P4Info: {field.name} of a packet-in or packet-out header has a translated type, whose width in the"
            " data plane P4Info does not tell"
        )
    return _field(field)


def _action(action: p4info_pb2.Action) -> ActionInfo:
    return ActionInfo(action.preamble.id, action.preamble.name, tuple(_field(param) for param in action.params))


def _meter(meter: p4info_pb2.Meter | p4info_pb2.DirectMeter, size: int, table: int = 0) -> MeterInfo:
    counts_bytes = meter.spec.unit == p4info_pb2.MeterSpec.BYTES
    return MeterInfo(meter.preamble.id, meter.preamble.name, size, counts_bytes, table)


def _register(register: p4info_pb2.Register) -> RegisterInfo:
    bitstring = register.type_spec.bitstring
    plain = register.type_spec.HasField("bitstring") and bitstring.HasField("bit")
    return RegisterInfo(
        register.preamble.id, register.preamble.name, register.size, bitstring.bit.bitwidth if plain else 0
    )


def _digest(digest: p4info_pb2.Digest, types: p4types_pb2.P4TypeInfo) -> DigestInfo:
    name, spec = digest.preamble.name, digest.type_spec
    shape = spec.WhichOneof("type_spec")
    if shape == "struct":
        members = [member.type_spec for member in types.structs[spec.struct.name].members]
    elif shape == "tuple":
        members = list(spec.tuple.members)
    else:
        members = [spec]
    widths = [_plain_width(member) for member in members]
    if shape not in {each.value for each in DigestShape} or 0 in widths:
        raise unsupported(f"P4Info: digest {name} is not a struct or a tuple of bit<> and int<>, nor one such value")
    return DigestInfo(digest.preamble.id, name, DigestShape(shape), tuple(widths))


def _plain_width(spec: p4types_pb2.P4DataTypeSpec) -> int:
    """Return the bits of a bit<> or int<>, or 0 for other types."""
    if spec.WhichOneof("type_spec") != "bitstring":
        return 0
    kind = spec.bitstring.WhichOneof("type_spec")
    return spec.bitstring.bit.bitwidth if kind == "bit" else spec.bitstring.int.bitwidth if kind == "int" else 0


def _match_field(field: p4info_pb2.MatchField, table: str) -> MatchField:
    kind = _MATCH_KINDS.get(field.match_type)
    if kind is None:
        raise unsupported(
            f"P4Info: table {table}: key field {field.name} matches by"
            f" {field.other_match_type or 'nothing known'}; known are"
            f" {', '.join(kind.value for kind in P4InfoMatchKind)}"
        )
    # A field of type error or enum: only the program has the width.
    if not field.bitwidth and not field.HasField("type_name"):
        return MatchField(field.id, field.name, 0, True, kind)
    return MatchField(*_field(field), kind)


def _table(
    table: p4info_pb2.Table, direct_counters: dict[int, CounterInfo], direct_meters: dict[int, MeterInfo]
) -> TableInfo:
    scopes = {ref.id: ref.scope for ref in table.action_refs}
    counters = [number for number in table.direct_resource_ids if number in direct_counters]
    meters = [number for number in table.direct_resource_ids if number in direct_meters]
    others = [number for number in table.direct_resource_ids if number not in direct_counters | direct_meters]
    unsupported = [f"direct resource {number}" for number in others]
    if table.implementation_id:
        unsupported.append(f"action profile {table.implementation_id}")
    return TableInfo(
        id=table.preamble.id,
        name=table.preamble.name,
        fields=tuple(_match_field(field, table.preamble.name) for field in table.match_fields),
        entry_actions=frozenset(i for i, scope in scopes.items() if scope != p4info_pb2.ActionRef.DEFAULT_ONLY),
        default_actions=frozenset(i for i, scope in scopes.items() if scope != p4info_pb2.ActionRef.TABLE_ONLY),
        const_default=table.const_default_action_id != 0,
        is_const=table.is_const_table,
        # P4Runtime's own field since 1.4: older bindings lack it.
        has_initial_entries=getattr(table, "has_initial_entries", False) and not table.is_const_table,
        size=table.size,
        direct_counter=counters[0] if counters else 0,
        direct_meter=meters[0] if meters else 0,
        idle_timeouts=table.idle_timeout_behavior == p4info_pb2.Table.NOTIFY_CONTROL,
        unsupported=tuple(unsupported),
    )
