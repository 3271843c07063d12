# SPDX-License-Identifier: Apache-2.0
"""A Tofino 1 or 2 switch behind a BF Runtime server. Never run against a switch: there was none to be had.

What is written here follows the public sources of the switch software (p4lang/open-p4studio, SDE 9.13.4):

- a push replaces the program and resets the chip: tables, registers, ports and queues start from nothing;
- BF Runtime keeps no cookie. The cookie is a part of the program's name, which the server returns;
- a push also sets up front ports with a speed, loop ports, and the two queues of each loop port (docs/tofino.md, order
  and loss). The entries of the table `loop` are written last. While the last of them is missing, the switch has no
  cookie, so that a set-up that broke off is made again;
- BF Runtime has no election: the client that bound to the program first has the switch while its session lasts.

Ports are device ports of 9 bits. No register is read or cleared: only the tag of a slot's copy says what is valid.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hopsum_controlplane.bfruntime.bfrt_encoding import GROUPS, NODES, BfrtEncoding, make_update
from hopsum_controlplane.bfruntime.bfrt_messages import ALL_PIPES, CLASSES, UpdateType, new_message
from hopsum_controlplane.bfruntime.bfrt_schema import BfrtSchema
from hopsum_controlplane.bfruntime.bfrt_session import BfrtSession
from hopsum_controlplane.bfruntime.chip import (
    CHIPS,
    QUEUE_DECIDED,
    QUEUE_UNDECIDED,
    TOFINO,
    ChipSetup,
    TofinoFacts,
    guaranteed_cells,
    loop_entries,
    pipe_of,
    port_data,
)
from hopsum_controlplane.devices.device import CONTROLLER_ELECTION_ID, Capabilities, Device, PipelineConfig
from hopsum_controlplane.entries import (
    CounterValue,
    Delete,
    Insert,
    Modify,
    MulticastGroup,
    TableEntry,
    Update,
)
from hopsum_controlplane.errors import ControlPlaneError, FailedUpdate, SessionLostError, WriteError
from hopsum_controlplane.p4info import read_program
from hopsum_controlplane.switch_channel import RefusedUpdate
from hopsum_controlplane.switch_tls import SwitchTls
from hopsum_wire import Op

_log: Final = logging.getLogger(__name__)
OPS: Final = (Op.LOOKUP_ADD8, Op.ADD8, Op.ADD32, Op.OR, Op.MAX32)
_P4INFO_PATTERN: Final = "*.p4info.txtpb"
_KINDS: Final = {Insert: UpdateType.INSERT, Modify: UpdateType.MODIFY, Delete: UpdateType.DELETE}


@dataclass(frozen=True)
class TofinoPipeline(PipelineConfig):
    """The Tofino program, and the set-up of its ports. `device_config` is a serialised ForwardingPipelineConfig."""

    setup: ChipSetup = field(default_factory=ChipSetup)

    @property
    def cookie(self) -> int:
        """Return the number of program and set-up together: a changed set-up is another program, which starts empty."""
        return PipelineConfig(self.device_config + self.setup.text().encode(), self.p4info).cookie


class TofinoDevice(Device):
    """A Tofino 1 or 2 switch. The program says which, by its P4Info.

    Opening waits for the server up to `connect_timeout_s`. Each call has `rpc_timeout_s`, pushing a program
    `push_timeout_s`. `owner` is the client's number, and 0 means 1. Raises SessionLostError when there is no server or
    a client with this number is connected, and NotPrimaryError when another client has the program. `election_id` is
    taken and not used: BF Runtime has no election. A context manager that closes.
    """

    capabilities = Capabilities("tofino", ops=OPS)
    write_updates = 4096
    """Updates of one RPC: no part of a batch should take longer than an RPC may."""

    def __init__(
        self,
        address: str,
        device_id: int = 0,
        *,
        election_id: tuple[int, int] = CONTROLLER_ELECTION_ID,
        connect_timeout_s: float = 10.0,
        rpc_timeout_s: float = 10.0,
        push_timeout_s: float = 120.0,
        owner: int = 0,
        tls: SwitchTls | None = None,
    ) -> None:
        self._rpc_timeout_s, self._push_timeout_s = rpc_timeout_s, push_timeout_s
        self._session = BfrtSession(address, device_id, owner or 1, connect_timeout_s, tls)
        self.where = self._session.where
        self._cookie: int | None = None
        self._encoding: BfrtEncoding | None = None
        try:
            self._bind()
        except BaseException:
            self._session.close()
            raise

    @property
    def encoding(self) -> BfrtEncoding:
        """Return the encoding of the running program's tables. Raises ControlPlaneError when none of ours runs."""
        if self._encoding is None:
            raise ControlPlaneError("the switch runs no program of ours", where=self.where, hint="push one")
        return self._encoding

    def write(self, updates: Sequence[Update]) -> None:
        """Write one batch, as Device.write says, in parts."""
        parts = [self._encode(each) for each in updates]
        failures: list[FailedUpdate] = []
        at = 0
        while at < len(updates):
            stop, count = at, 0
            while stop < len(updates) and (stop == at or count + len(parts[stop]) <= self.write_updates):
                count += len(parts[stop])
                stop += 1
            failures += self._write_part(updates, parts, at, stop)
            at = stop
        if failures:
            hint = (
                "the other updates of the batch are installed"
                if len(failures) < len(updates)
                else "look at the log of the switch"
            )
            raise WriteError(updates, failures, where=self.where, hint=hint)

    def read_table(self, table: str) -> list[TableEntry]:
        found = self._read([self.encoding.encode_query(table)])
        return [self.encoding.decode_entry(entry) for entry in found if not entry.is_default_entry]

    def read_groups(self) -> list[MulticastGroup]:
        groups, nodes = (self._read([self.encoding.encode_fixed_entry(name, {})]) for name in (GROUPS, NODES))
        return self.encoding.decode_groups(groups, nodes)

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        stop = self.encoding.p4info.counters[counter].size if count is None else start + count
        found = self._read([self.encoding.encode_counter_query(counter, index) for index in range(start, stop)])
        cells = dict(self.encoding.decode_counter(counter, entry) for entry in found)
        return [CounterValue(cells[index], 0) for index in range(start, stop)]

    def read_cookie(self) -> int | None:
        """Return the cookie of the program that runs, None if it is not ours, or its set-up is not complete.

        The switch is asked for the last entry of the set-up.
        """
        self._session.check()
        if self._cookie is None:
            return None
        # Tables `loop` of both chips have the same key.
        last = self.encoding.encode_entry(loop_entries(TOFINO, ())[-1])
        last.ClearField("data")
        return self._cookie if self._read([last]) else None

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        chip = chip_of(pipeline)
        setup = pipeline.setup if isinstance(pipeline, TofinoPipeline) else ChipSetup()
        config = CLASSES["ForwardingPipelineConfig"].FromString(pipeline.device_config)
        # BF Runtime keeps no cookie: the program's name carries it, and the server returns the name.
        config.p4_name = f"{config.p4_name}-{pipeline.cookie:016x}"
        self._session.check()
        # From here on the old program is gone, whether or not the push succeeds.
        self._encoding = self._cookie = None
        self._session.push(config, self._push_timeout_s)
        self._bind()
        self._set_up_ports(chip, setup)
        for port in dict.fromkeys(chip.used_loop_ports(setup.loop_ports)):
            self._set_up_queues(chip, port)
        # The loop entries come last: `read_cookie` takes the last of them as the sign that the set-up is complete.
        self.write([Insert(entry) for entry in loop_entries(chip, setup.loop_ports)])

    def close(self) -> None:
        self._session.close()

    def _bind(self) -> None:
        """Become the client of the program that runs, and learn its tables where it is ours."""
        config = self._session.read_config(self._push_timeout_s)
        if not config.config:
            return
        program = config.config[0]
        self._session.bind(program.p4_name, self._rpc_timeout_s)
        found = re.fullmatch(r".*-([0-9a-f]{16})", program.p4_name)
        if found is None:
            return
        try:
            self._encoding = BfrtEncoding(BfrtSchema(program.bfruntime_info, config.non_p4_config.bfruntime_info))
            self.program = read_program(self._encoding.p4info)
        except ControlPlaneError as error:
            raise ControlPlaneError(error.what, where=self.where, hint=error.hint) from error
        self._cookie = int(found[1], 16)

    def _set_up_ports(self, chip: TofinoFacts, setup: ChipSetup) -> None:
        entries = {port: port_data(chip, speed) for port, speed in setup.speeds_gbps.items()}
        for port in setup.loop_ports:
            if port not in chip.recirculating:
                entries[port] = port_data(chip, chip.loop_gbps[port], loop=True)
        found = [self.encoding.encode_fixed_entry("$PORT", {"$DEV_PORT": port}, data) for port, data in entries.items()]
        self._set([make_update(UpdateType.INSERT_OR_MODIFY, entry) for entry in found], f"ports {sorted(entries)}")

    def _set_up_queues(self, chip: TofinoFacts, port: int) -> None:
        """Serve the queue of decided packets of a loop port first, and give the queue room."""
        pipe = pipe_of(port)
        found = self._read([self.encoding.encode_fixed_entry("tm.port.cfg", {"dev_port": port})], pipe=pipe)
        if not found:
            what, hint = (
                f"loop port {port} is not there",
                f"give loop ports of pipes that the chip has, not of pipe {pipe}",
            )
            raise ControlPlaneError(what, where=self.where, hint=hint)
        values = self.encoding.decode_fixed_entry("tm.port.cfg", found[0])
        group, queues = values["pg_id"], values["egress_qid_queues"]
        if len(queues) <= QUEUE_UNDECIDED:
            what = f"loop port {port} has {len(queues)} queues, and the program uses {QUEUE_UNDECIDED + 1}"
            raise ControlPlaneError(what, where=self.where, hint="give the port more queues in the traffic manager")
        keys = [{"pg_id": group, "pg_queue": queues[number]} for number in (QUEUE_DECIDED, QUEUE_UNDECIDED)]
        room = {"guaranteed_cells": guaranteed_cells(chip, port), "tail_drop_enable": False}
        entries = [
            self.encoding.encode_fixed_entry("tm.queue.sched_cfg", keys[0], {"max_priority": "HIGH"}),
            self.encoding.encode_fixed_entry("tm.queue.sched_cfg", keys[1], {"max_priority": "LOW"}),
            self.encoding.encode_fixed_entry("tm.queue.buffer", keys[0], room),
        ]
        self._set([make_update(UpdateType.MODIFY, each) for each in entries], f"queues of loop port {port}", pipe=pipe)

    def _set(self, updates: Sequence[Any], what: str, *, pipe: int = ALL_PIPES) -> None:
        if updates and (refused := self._session.write(updates, self._rpc_timeout_s, pipe=pipe)):
            first = refused[0]
            said = f"{len(refused)} of {len(updates)} updates refused, the first with {first.code} {first.message!r}"
            hint = "look at the log of the switch; the program is pushed again at the next start"
            raise ControlPlaneError(f"{what}: {said}", where=self.where, hint=hint)

    def _read(self, entries: Iterable[Any], *, pipe: int = ALL_PIPES) -> list[Any]:
        return self._session.read(entries, self._rpc_timeout_s, pipe=pipe)

    def _encode(self, change: Update) -> list[Any]:
        """Return the updates of BF Runtime that make one of ours."""
        entity = change.entity
        if isinstance(entity, MulticastGroup):
            return self._encode_group(change, entity)
        if not isinstance(entity, TableEntry):
            raise ControlPlaneError(f"{entity}: a default action", where=self.where, hint="the program's own stays")
        encoded = self.encoding.encode_update(_KINDS[type(change)], entity)
        if isinstance(change, Delete):
            encoded.entity.table_entry.ClearField("data")
        return [encoded]

    def _encode_group(self, change: Update, group: MulticastGroup) -> list[Any]:
        """Return updates that leave no moment in which a group that stays has no nodes."""
        encoding, kind = self.encoding, _KINDS[type(change)]
        found = (
            encoding.decode_fixed_entry(GROUPS, entry)
            for entry in self._read([encoding.encode_fixed_entry(GROUPS, {})])
        )
        held = {values["$MGID"]: values.get("$MULTICAST_NODE_ID", []) for values in found}
        if isinstance(change, Insert) == (group.id in held):
            # The switch refuses this update, and the refusal names it.
            return [make_update(kind, encoding.encode_group(group.id, []))]
        old = held.get(group.id, [])
        gone = [make_update(UpdateType.DELETE, encoding.encode_node(number)) for number in old]
        if isinstance(change, Delete):
            return [make_update(kind, encoding.encode_group(group.id)), *gone]
        nodes = encoding.plan_nodes(group, old)
        # A node of a batch that broke off may be there.
        new = [
            make_update(UpdateType.INSERT_OR_MODIFY, encoding.encode_node(number, *node))
            for number, node in nodes.items()
        ]
        return [*new, make_update(kind, encoding.encode_group(group.id, list(nodes))), *gone]

    def _write_part(
        self, batch: Sequence[Update], parts: Sequence[Sequence[Any]], at: int, stop: int
    ) -> list[FailedUpdate]:
        """Write the updates at .. stop - 1 of a batch; return what was refused. Raises as Device.write does."""
        # One update of ours is several of BF Runtime's: a refusal of any of these refuses ours.
        places = [number for number in range(at, stop) for _ in parts[number]]
        sent = False
        try:
            self._session.check()
            sent = True
            refused = self._session.write([each for part in parts[at:stop] for each in part], self._rpc_timeout_s)
        except ControlPlaneError as error:
            if sent and isinstance(error, SessionLostError):
                text = f"Write of {len(batch)} updates ended without an answer: {error.what}"
                raise WriteError(batch, (), why=text, where=self.where, hint=error.hint) from None
            if not at:
                raise
            text = f"Write of {len(batch)} updates ended after {at}: {error.what}"
            raise WriteError(batch, (), why=text, where=self.where, hint=error.hint) from None
        first: dict[int, RefusedUpdate] = {}
        for each in refused:
            first.setdefault(places[each.position], each)
        return [FailedUpdate(number, batch[number], each.code, each.message) for number, each in first.items()]


def chip_of(pipeline: PipelineConfig) -> TofinoFacts:
    """Return the chip that a program is for. Raises ControlPlaneError when its architecture is another."""
    found = re.search(r'^ *arch: "(\w*)"', pipeline.p4info, re.MULTILINE)
    arch = found[1] if found else ""
    if arch not in CHIPS:
        hint = f"the Tofino program is of {' or '.join(CHIPS)}: see docs/tofino.md"
        raise ControlPlaneError(f"P4Info of architecture {arch!r}", hint=hint)
    return CHIPS[arch]


def add_port_setup(
    pipeline: PipelineConfig,
    ports: Iterable[int],
    loop_ports: tuple[int, ...],
    speeds_gbps: Mapping[int, int],
    switch: str = "",
) -> TofinoPipeline:
    """Combine a program with the set-up of its ports, and return both as one pipeline. The switch is not contacted.

    Logs a warning, with the name `switch`, if front ports can bring more than the loop ports carry. Raises
    ControlPlaneError for a program of another architecture, and for ports, loop ports or speeds that the chip does not
    have.
    """
    chip = chip_of(pipeline)
    chip.check_ports(ports)
    chip.check_loop_ports(loop_ports)
    chip.check_speeds(speeds_gbps)
    if (told := chip.overload_warning(speeds_gbps, loop_ports)) is not None:
        _log.warning("switch %r: %s", switch, told)
    return TofinoPipeline(pipeline.device_config, pipeline.p4info, ChipSetup(loop_ports, dict(speeds_gbps)))


def load_program(conf: Path) -> PipelineConfig:
    """Read the compiled Tofino program: the compiler's .conf file, its files, and the one P4Info in the same folder.

    Paths in the .conf file are absolute, or relative to its folder. Raises ControlPlaneError where a file is missing,
    or it describes something else than one program on one chip.
    """
    try:
        description = json.loads(conf.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _wrong(conf, f"cannot be read: {error}") from error
    p4infos = sorted(conf.parent.glob(_P4INFO_PATTERN))
    if len(p4infos) != 1:
        raise _wrong(conf, f"has {len(p4infos)} files {_P4INFO_PATTERN} in its folder, not one")
    try:
        return PipelineConfig(_pack(conf, description), p4infos[0].read_text(encoding="utf-8"))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _wrong(conf, f"describes no program as the compiler writes it: {error!r}") from error
    except OSError as error:
        raise _wrong(conf, f"names a file that cannot be read: {error}") from error


def _pack(conf: Path, description: Any) -> bytes:
    """Return the ForwardingPipelineConfig of a .conf file."""
    programs = [program for device in description["p4_devices"] for program in device["p4_programs"]]
    if len(programs) != 1:
        raise ValueError(f"{len(programs)} programs")
    (program,) = programs
    config = new_message("ForwardingPipelineConfig", p4_name=program["program-name"])
    config.bfruntime_info = _read(conf, program["bfrt-config"])
    for pipeline in program["p4_pipelines"]:
        profile = config.profiles.add(profile_name=pipeline["p4_pipeline_name"], pipe_scope=pipeline["pipe_scope"])
        profile.context, profile.binary = _read(conf, pipeline["context"]), _read(conf, pipeline["config"])
    return bytes(config.SerializeToString(deterministic=True))


def _read(conf: Path, name: str) -> bytes:
    return (conf.parent / name).read_bytes()


def _wrong(conf: Path, what: str) -> ControlPlaneError:
    hint = "give the .conf file of a complete build of the Tofino program (docs/tofino.md)"
    return ControlPlaneError(f"compiled program {conf}: {what}", hint=hint)
