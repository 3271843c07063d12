# SPDX-License-Identifier: Apache-2.0
"""A job of workers on loopback with the oracle as its switch, its membership file, and ways to spoil either."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsum_cli.diagnosis import Patience
from hopsum_oracle.aggregator import Aggregator
from hopsum_topologies.free_port import free_port
from hopsum_wire import HOPSUM_BYTES, WIRE_VERSION, Header

from .server import LOCALHOST, UdpSwitch, job_for

GENERATION, SLOTS = 41, 8
TABLE = tuple(range(16))
PATIENT = Patience(answer_s=60.0, refusal_s=0.05, settle_s=0.05)
"""For what answers: it does so at once, or when the machine lets it."""
BRIEF = replace(PATIENT, answer_s=0.4)
"""For what is silent, however long it is asked."""


class PickySwitch(UdpSwitch):
    """Hears what `hears` makes of a header, nothing where that is None. Serves until closed."""

    def __init__(self, aggregator: Aggregator, hears: Callable[[Header], Header | None]) -> None:
        super().__init__(aggregator)
        self._hears = hears

    def _answer(self, data: bytes, host: str, port: int) -> None:
        heard = self._hears(Header.unpack(data))
        if heard is not None:
            super()._answer(heard.pack() + data[HOPSUM_BYTES:], host, port)


def membership(workers: list[tuple[str, int]], switch: tuple[str, int], **changes: Any) -> dict[str, Any]:
    def endpoint(address: tuple[str, int]) -> dict[str, Any]:
        return {"ip": address[0], "udp_port": address[1]}

    listed = [{"rank": rank, **endpoint(at), "send_to": endpoint(switch)} for rank, at in enumerate(workers)]
    document = {"job": "digits", "generation": GENERATION, "slots": SLOTS, "window": SLOTS, "quorum": len(workers)}
    tables = {"table": list(TABLE), "table16": None, "wire_version": WIRE_VERSION}
    return {**document, **tables, "switch": endpoint(switch), "workers": listed, **changes}


class Job:
    """`workers` ranks at free ports of loopback; the switch knows the job unless `known` is False."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        workers: int = 2,
        *,
        known: bool = True,
        switch_slots: int = SLOTS,
        switch_generation: int = GENERATION,
        hears: Callable[[Header], Header | None] = lambda header: header,
        **changes: Any,
    ) -> None:
        self.aggregator = Aggregator()
        self.switch = stack.enter_context(PickySwitch(self.aggregator, hears))
        self.addresses = [(LOCALHOST, free_port(socket.SOCK_DGRAM)) for _ in range(workers)]
        if known:
            self.aggregator.add_job(
                job_for(self.addresses, generation=switch_generation, slots=switch_slots, table=TABLE)
            )
        self.document = membership(self.addresses, self.switch.address, **changes)
        self.path = folder / "membership.json"
        self.write()

    def write(self) -> str:
        self.path.write_text(json.dumps(self.document))
        return str(self.path)
