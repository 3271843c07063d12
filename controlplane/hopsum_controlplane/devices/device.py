# SPDX-License-Identifier: Apache-2.0
"""The interface of a switch and the compiled program that runs on it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hopsum_controlplane.entries import CounterValue, MulticastGroup, TableEntry, Update
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.program import V1MODEL, Program
from hopsum_wire import Op

_COOKIE_BYTES = 8
CONTROLLER_ELECTION_ID = (1, 0)
"""An election id above p4runtime-shell's default."""


@dataclass(frozen=True)
class Capabilities:
    """The limits of a kind of switch.

    target: its name.
    max_window: packets that a worker should have in flight at most, None for as many as the job has slots.
    max_growth_bytes: bytes by which a frame may leave longer than it came, None for no limit.
    ops: operations of its program, in the order of their numbers.
    """

    target: str
    max_window: int | None = None
    max_growth_bytes: int | None = None
    ops: tuple[Op, ...] = tuple(Op)


@dataclass(frozen=True)
class PipelineConfig:
    """A compiled program.

    device_config: what the target takes to run it: the compiler's JSON for software switches, see their drivers for
        others.
    p4info: the compiler's P4Info in text form.
    """

    device_config: bytes
    p4info: str

    @classmethod
    def load(cls, json_path: Path, p4info_path: Path) -> PipelineConfig:
        """Read both files. Raises ControlPlaneError when one cannot be read, or the P4Info is no text."""
        try:
            return cls(json_path.read_bytes(), p4info_path.read_text())
        except OSError as error:
            raise ControlPlaneError(f"compiled program: {error}", hint="compile it first") from error
        except UnicodeDecodeError as error:
            hint = "give the P4Info in text format, as p4c writes it to FILE.txtpb"
            raise ControlPlaneError(f"compiled program: {p4info_path}: {error}", hint=hint) from error

    @property
    def cookie(self) -> int:
        """Return the number that identifies this program on a switch: 64 bits of a hash over both files, never 0."""
        digest = hashlib.sha256()
        for part in (self.device_config, self.p4info.encode()):
            digest.update(len(part).to_bytes(8, "big") + part)
        # A switch without a cookie reads as 0 through some servers.
        return int.from_bytes(digest.digest()[:_COOKIE_BYTES], "big") or 1


class Device(ABC):
    """One switch. Not thread-safe: the owner serialises the calls.

    All methods that talk to the switch raise ControlPlaneError with the switch's address in `where` when it
    does not answer in time, or refuses.
    """

    where: str
    capabilities: Capabilities
    program: Program = V1MODEL
    """The facts that builders need of the program that runs, or of the software switches where no program runs."""

    @abstractmethod
    def write(self, updates: Sequence[Update]) -> None:
        """Write one batch. The switch may apply its updates in any order.

        Raises WriteError when not every update was applied, and ControlPlaneError when nothing was sent.
        """

    @abstractmethod
    def read_table(self, table: str) -> list[TableEntry]:
        """Read all entries of a table, by its name or alias, without its default action."""

    @abstractmethod
    def read_groups(self) -> list[MulticastGroup]:
        """Read all multicast groups in ascending order of their ids."""

    @abstractmethod
    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        """Read `count` cells of a counter from index `start`, by default all up to its end."""

    @abstractmethod
    def read_cookie(self) -> int | None:
        """Read the cookie of the program that runs, or None when it has none, or no program runs."""

    @abstractmethod
    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Make the switch run `pipeline`. All its entries, registers and counters are lost (rule E1)."""

    @abstractmethod
    def close(self) -> None:
        """End the session with the switch. A second call does nothing. The entries on the switch stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ensure_pipeline(device: Device, pipeline: PipelineConfig) -> bool:
    """Push `pipeline` unless the switch runs it already. Return True if it was pushed.

    A push removes all entries from the switch, and so ends every generation there. Raises ControlPlaneError.
    """
    if device.read_cookie() == pipeline.cookie:
        return False
    device.set_pipeline_config(pipeline)
    return True
