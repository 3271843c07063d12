# SPDX-License-Identifier: Apache-2.0
"""A Tofino switch as Stratum serves it over P4Runtime. Never run against Stratum or a Tofino: there was none to be had.

What is written here follows Stratum's sources (github.com/stratum/stratum, commit f8f7130 of July 2024):

- `p4_device_config` is a serialised BfPipelineConfig (stratum/hal/lib/barefoot/bf.proto): the program's name,
  bfrt.json, and for each pipeline its name, context.json, the binary and the pipes that it runs in. Stratum's own
  bf_pipeline_builder (stratum/hal/bin/barefoot) makes it of a .conf file and what that names; so does `load_program`;
- a device id is a node's of Stratum's chassis configuration, and 0 is refused (stratum/hal/lib/common/p4_service.cc);
- roles are known by name; without one a client has full access (stratum/lib/p4runtime/sdn_controller_manager.cc);
- multicast groups hold replicas in the integer form of ports, with instances of 16 bits, and are read by wildcard
  (bfrt_pre_manager.cc); counters are read cell by cell (bfrt_counter_manager.cc): what `P4RuntimeDevice` does;
- a Stratum that restarts runs the program that it had by itself, with its cookie and without entries
  (p4_service.cc): the cookie says nothing then, and the audit after a new session finds that its jobs are over;
- counters and registers must be the standard ones in the P4Info (p4c's --p4runtime-force-std-externs): Stratum's builds
  of its own programs say so too.

Ports are the chip's device ports, of 9 bits, unless the chassis configuration translates them. No register is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from hopsum_controlplane.devices.base import Capabilities, PipelineConfig
from hopsum_controlplane.devices.p4runtime import P4RuntimeDevice
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire import Op

OPS: Final = (Op.LOOKUP_ADD8, Op.ADD8, Op.ADD32, Op.OR, Op.MAX32)
_LOOP_PORTS: Final = {"tna": (68, 192, 196, 324, 448, 452), "t2na": (6, 128, 256, 384)}
"""By the P4Info's architecture: LOOP_PORTS of p4/tna/target.p4, the device ports that the program can loop through."""
_BYTES: Final = 2  # the wire type of protobuf
_P4INFO_PATTERN: Final = "*.p4info.txtpb"


class TofinoDevice(P4RuntimeDevice):
    """A Tofino 1 or 2 switch; the program says which by its P4Info.

    A job's lookup table is tens of thousands of entries, so a batch is written in parts: gRPC takes 4 MiB in one
    message, and no part should take longer than an RPC may.
    """

    capabilities = Capabilities("tofino", ops=OPS)
    write_updates = 4096

    def __init__(self, address: str, device_id: int = 1, **options: Any) -> None:
        """Open as P4RuntimeDevice. Raises ControlPlaneError also for device id 0, which Stratum does not have."""
        check_device_id(device_id)
        super().__init__(address, device_id, **options)


def check_device_id(device_id: int) -> None:
    """Raise ControlPlaneError for the id that no node of Stratum's has."""
    if device_id < 1:
        raise ControlPlaneError(f"device id {device_id}", hint="Stratum's begin at 1: see its chassis configuration")


def check_ports(pipeline: PipelineConfig, ports: Iterable[int]) -> None:
    """Raise ControlPlaneError for the first device port at which the program cannot serve a worker.

    A frame from a loop port is one of the program's own.
    """
    found = re.search(r'^ *arch: "(\w*)"', pipeline.p4info, re.MULTILINE)
    arch = found[1] if found else ""
    if arch not in _LOOP_PORTS:
        hint = f"the Tofino program is of {' or '.join(_LOOP_PORTS)}: see docs/tofino.md"
        raise ControlPlaneError(f"P4Info of architecture {arch!r}", hint=hint)
    loops = _LOOP_PORTS[arch]
    hint = f"workers stand at front ports of any pipe; loop ports are {', '.join(map(str, loops))}"
    for port in ports:
        if port in loops:
            raise ControlPlaneError(f"port {port} is one that the program loops through", hint=hint)


def load_program(conf: Path) -> PipelineConfig:
    """Read what the compiler made of the Tofino program: its .conf file, and the P4Info that lies beside it.

    Paths in the .conf file are absolute, or relative to its folder. Raises ControlPlaneError where a file is missing,
    or it describes something else than one program on one chip.
    """
    try:
        description = json.loads(conf.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _wrong(conf, f"cannot be read: {error}") from error
    p4infos = sorted(conf.parent.glob(_P4INFO_PATTERN))
    if len(p4infos) != 1:
        raise _wrong(conf, f"has {len(p4infos)} files {_P4INFO_PATTERN} beside it, not one")
    try:
        return PipelineConfig(_pack(conf, description), p4infos[0].read_text(encoding="utf-8"))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _wrong(conf, f"describes no program as bf_pipeline_builder knows it: {error!r}") from error
    except OSError as error:
        raise _wrong(conf, f"names a file that cannot be read: {error}") from error


def _pack(conf: Path, description: Any) -> bytes:
    """Return the BfPipelineConfig of a .conf file."""
    programs = [program for device in description["p4_devices"] for program in device["p4_programs"]]
    if len(programs) != 1:
        raise ValueError(f"{len(programs)} programs")
    (program,) = programs
    message = _field(1, program["program-name"].encode()) + _field(2, _read(conf, program["bfrt-config"]))
    for pipeline in program["p4_pipelines"]:
        profile = _field(1, pipeline["p4_pipeline_name"].encode())
        profile += _field(2, _read(conf, pipeline["context"])) + _field(3, _read(conf, pipeline["config"]))
        profile += _field(4, b"".join(_varint(pipe) for pipe in pipeline["pipe_scope"]))
        message += _field(3, profile)
    return message


def _read(conf: Path, name: str) -> bytes:
    return (conf.parent / name).read_bytes()


def _field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf's wire format that holds bytes, a text, a message or packed numbers."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _wrong(conf: Path, what: str) -> ControlPlaneError:
    hint = "give the .conf file of a complete build of the Tofino program (docs/tofino.md)"
    return ControlPlaneError(f"compiled program {conf}: {what}", hint=hint)
