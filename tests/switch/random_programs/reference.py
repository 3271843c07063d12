# SPDX-License-Identifier: Apache-2.0
"""bmv2 as the reference: one switch, which is given one case after another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p4.v1.p4runtime_pb2 import Update

from ..programs import bmv2
from ..server.controller import Controller
from .cases import Case

Outputs = Sequence[tuple[int, bytes]]


class Reference:
    """A running bmv2 with its controller."""

    def __init__(self, switch: bmv2.Bmv2, controller: Controller) -> None:
        self._switch, self._controller = switch, controller

    def outputs(self, case: Case) -> list[Outputs]:
        """Return what each frame of a case brings out, sorted."""
        self._controller.set_pipeline("VERIFY_AND_COMMIT", p4info=case.info, program=_padded(case.program))
        for update in case.writes:
            self._controller.write(update)
        found: list[Outputs] = [sorted(self._switch.process(port, frame)) for port, frame in case.frames]
        for update in case.writes:  # groups outlive the program
            if update.entity.HasField("packet_replication_engine_entry"):
                self._controller.write(Update(type=Update.DELETE, entity=update.entity))
        return found


def _padded(program: bytes) -> bytes:
    """Fill header types up to whole bytes, as p4c does with metadata. A bmv2 with assertions aborts without that."""
    document = json.loads(program)
    for each in document["header_types"]:
        bits = sum(field[1] for field in each["fields"] if isinstance(field[1], int))
        if bits % 8:
            each["fields"].append(["_padding", -bits % 8, False])
    return json.dumps(document).encode()


@contextmanager
def running(folder: Path) -> Iterator[Reference]:
    """Run bmv2; its log goes to `folder`."""
    with bmv2.running(folder) as switch, Controller(switch.address, bmv2.DEVICE_ID) as controller:
        yield Reference(switch, controller.become_primary())
