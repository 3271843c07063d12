# SPDX-License-Identifier: Apache-2.0
"""The chips that there is a model of: names of files and addresses, as the model's register and memory maps have them.

The testbed's ports are in pipe 0, and the loop port is in pipe 1. On Tofino 1 the default, 68, will not do: the model
keeps a frame that comes back there in a queue that the harness's `wait` does not see. On Tofino 2 it does so with all
loop ports: there the harness wires the port to itself, as a cable would. The first eight ports of Tofino 2's pipes are
no front ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The exception of this package.


class ModelError(Exception):
    """The harness complained or ended, or an entry, a group or a name is impossible for it."""


@dataclass(frozen=True)
class ModelChip:
    """One chip. Addresses of memory count rows of 16 bytes, those of registers bytes."""

    name: str
    """Of the program that was compiled for it."""
    title: str
    """Its name in sentences."""
    harness: str
    """The name that the model's build gives its simple_test_harness."""
    assembled: str
    """The environment variable that names the folder with the assembler's files."""
    nodes: int
    """The nodes of the replication engine."""
    group_table: int
    """Pipe 0's table of groups of the replication engine."""
    pipe_sets: tuple[int, ...]
    """By pipe, the ingress deparser's table of pipes whose replication engines look a group up."""
    groups_in_word: int
    """Groups in a register of that table."""
    pipe_set_bits: int
    """Bits of each there."""
    first_port: int
    """The port that the testbed's port 0 is."""
    loop_port: int
    loop_control: tuple[int, int] | None
    """The register that makes the loop port one, and its value. None: the harness wires the port to itself."""

    @property
    def binary(self) -> str:
        """Return the name of the file that the assembler writes into the folder of context.json."""
        return f"{self.name}.bin"


TOFINO: Final = ModelChip(
    name="tofino",
    title="Tofino 1",
    harness="tofino_test_harness",
    assembled="HOPSUM_TOFINO_ASSEMBLED",
    nodes=0x6100000000,
    group_table=0x6100100000,
    pipe_sets=tuple(0x2000000 + pipe * 0x800000 + 0x780000 + 0x40000 + 0x20000 + 0x10000 for pipe in range(4)),
    groups_in_word=8,
    pipe_set_bits=4,
    first_port=0,
    loop_port=192,
    # four channels: on, and back to ingress
    loop_control=(0x2000000 + 0x800000 + 0x700000 + 0x3C000 + 0x1000 + 0x18, 0xF << 16 | 1),
)
TOFINO2: Final = ModelChip(
    name="tofino2",
    title="Tofino 2",
    harness="jbay_test_harness",
    assembled="HOPSUM_TOFINO2_ASSEMBLED",
    nodes=0x6700400000,
    group_table=0x6600000000,
    pipe_sets=tuple(0x4000000 + pipe * 0x1000000 + 0xC00000 + 0x100000 for pipe in range(4)),
    groups_in_word=4,
    pipe_set_bits=5,
    first_port=8,
    loop_port=128,
    loop_control=None,
)
MODEL_CHIPS: Final = {"tofino_model": TOFINO, "tofino2_model": TOFINO2}
"""The chip of each target of the data-plane cases."""
