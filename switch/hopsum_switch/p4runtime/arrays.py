# SPDX-License-Identifier: Apache-2.0
"""CounterEntry, MeterEntry and RegisterEntry: cells of arrays, one by one or all at once.

The caller holds the data plane's gate. A write that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from p4.v1.p4runtime_pb2 import CounterEntry, MeterEntry, RegisterEntry, Update

from hopsum_switch.p4runtime.p4info import CounterInfo, MeterInfo, RegisterInfo
from hopsum_switch.p4runtime.pipeline import RunningPipeline
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_switch.p4runtime.translate import (
    counter_from_proto,
    counter_to_proto,
    invalid,
    meter_from_proto,
    meter_to_proto,
    store_refusals,
)
from hopsum_switch.p4runtime.values import decode, encode

_Entry: TypeAlias = CounterEntry | MeterEntry | RegisterEntry
_Array: TypeAlias = CounterInfo | MeterInfo | RegisterInfo


def write_counter(target: RunningPipeline, update: int, message: CounterEntry) -> None:
    """Set one cell, or all cells if the index is left out. Without data nothing changes. Raises P4RuntimeError."""
    counter = target.pipeline.p4info.counter(message.counter_id)
    cells = _cells(update, message, counter)
    if not message.HasField("data"):
        return
    value = counter_from_proto(message.data)
    with store_refusals():
        for index in cells:
            target.engine.counters.write(counter.name, index, value)


def read_counters(target: RunningPipeline, query: CounterEntry) -> Iterator[CounterEntry]:
    """Yield the CounterEntry messages that `query` selects.

    Raises P4RuntimeError: no such counter or cell.
    """
    info = target.pipeline.p4info
    counters = [info.counter(query.counter_id)] if query.counter_id else info.counters.values()
    for counter in counters:
        for index in _selected(query, counter):
            message = CounterEntry(counter_id=counter.id)
            message.index.index = index
            message.data.CopyFrom(counter_to_proto(target.engine.counters.read(counter.name, index)))
            yield message


def write_meter(target: RunningPipeline, update: int, message: MeterEntry) -> None:
    """Configure one cell, or all cells if the index is left out. Without a config the colour is always green.

    Raises P4RuntimeError.
    """
    meter = target.pipeline.p4info.meter(message.meter_id)
    config = meter_from_proto(message.config) if message.HasField("config") else None
    for index in _cells(update, message, meter):
        with store_refusals():
            target.engine.meters.write(meter.name, index, config)


def read_meters(target: RunningPipeline, query: MeterEntry) -> Iterator[MeterEntry]:
    """Yield the MeterEntry messages that `query` selects.

    Raises P4RuntimeError: no such meter or cell.
    """
    info = target.pipeline.p4info
    for meter in [info.meter(query.meter_id)] if query.meter_id else info.meters.values():
        for index in _selected(query, meter):
            message = MeterEntry(meter_id=meter.id)
            message.index.index = index
            config = target.engine.meters.read(meter.name, index)
            if config is not None:
                message.config.CopyFrom(meter_to_proto(config))
            yield message


def write_register(target: RunningPipeline, update: int, message: RegisterEntry) -> None:
    """Set one cell, or all cells if the index is left out. Without data nothing changes. Raises P4RuntimeError."""
    register = target.pipeline.p4info.register(message.register_id)
    cells = _cells(update, message, register)
    _require_plain(register)
    if not message.HasField("data"):
        return
    if message.data.WhichOneof("data") != "bitstring":
        raise invalid(f"register {register.name} holds bit<{register.width}>, not {message.data.WhichOneof('data')}")
    value = decode(message.data.bitstring, register.width, register.name)
    with store_refusals():
        for index in cells:
            target.engine.registers.write(register.name, index, value)


def read_registers(target: RunningPipeline, query: RegisterEntry) -> Iterator[RegisterEntry]:
    """Yield the RegisterEntry messages that `query` selects.

    Raises P4RuntimeError: no such register or cell.
    """
    info = target.pipeline.p4info
    registers = [info.register(query.register_id)] if query.register_id else info.registers.values()
    for register in registers:
        _require_plain(register)
        for index in _selected(query, register):
            message = RegisterEntry(register_id=register.id)
            message.index.index = index
            message.data.bitstring = encode(target.engine.registers.read(register.name, index))
            yield message


def _cells(update: int, message: _Entry, array: _Array) -> range:
    if update != Update.MODIFY:
        raise invalid(f"the cells of {array.name} always exist: they can be modified only")
    return _selected(message, array)


def _selected(message: _Entry, array: _Array) -> range:
    if not message.HasField("index"):
        return range(array.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"{array.name}: index {index} is negative")
    if index >= array.size:
        raise P4RuntimeError(RpcCode.OUT_OF_RANGE, f"{array.name}: index {index} is outside 0..{array.size - 1}")
    return range(index, index + 1)


def _require_plain(register: RegisterInfo) -> None:
    if not register.width:
        raise P4RuntimeError(
            RpcCode.UNIMPLEMENTED,
            f"register {register.name} holds something else than bit<W>, which cannot be read or written here",
        )
