# SPDX-License-Identifier: Apache-2.0
"""Switches for ptf: one context manager for each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hopsum_base.owned_folder import OwnedFolder
from hopsum_topologies.bmv2_process import Bmv2Switch, bmv2_unavailable
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace

Program = tuple[Path, Path]
"""A compiled program: p4c's JSON, and its P4Info."""


@dataclass(frozen=True)
class PtfTarget:
    """A running switch as ptf sees it: ports, the platform that reaches them, the namespace to run in.

    `address` is that of P4Runtime. `interfaces` has the names for ptf's option --interface, by port.
    """

    name: str
    address: str
    device_id: int
    interfaces: Mapping[int, str]
    platform_arguments: Sequence[str] = ()
    namespace: str | None = None
    skips: Mapping[str, str] = field(default_factory=dict)
    """The reasons of cases that are not run, by case. Such a case tests a feature that the target's program lacks."""


@contextmanager
def run_native(program: Program, ports: Sequence[int], extra: Sequence[str] = ()) -> Iterator[PtfTarget]:
    """Run the embedded switch for the block with AF_UNIX ports, and yield it as ptf's target: no root, no interfaces.

    `extra` are more arguments of its command. Raises TopologyError when the switch does not start.
    """
    with OwnedFolder("ptf") as folder:
        sockets = {port: folder / str(port) for port in ports}
        with NativeSwitch(*program, unix=sockets, extra=extra) as switch:
            yield PtfTarget(
                name="native",
                address=switch.address,
                device_id=switch.device_id,
                interfaces={port: str(path) for port, path in sockets.items()},
                platform_arguments=("--platform-dir", str(Path(__file__).parent), "--platform", "unix_ports"),
            )


@contextmanager
def run_bmv2(program: Program, ports: Sequence[int], extra: Sequence[str] = ()) -> Iterator[PtfTarget]:
    """Run simple_switch_grpc for the block with veth pairs in a namespace of its own, and yield it as ptf's target.

    Needs root. It has no program: tests push one, and `program` is not used. Raises TopologyError when bmv2 cannot run
    here, or when `extra` has arguments, which are the embedded switch's.
    """
    if (reason := bmv2_unavailable()) is not None:
        raise TopologyError(reason)
    if extra:
        raise TopologyError(f"{' '.join(extra)}: bmv2 does not know this; use --target native")
    with (
        _veths(ports) as (namespace, switch_ends, test_ends),
        Bmv2Switch(switch_ends, namespace=namespace) as switch,
    ):
        yield PtfTarget("bmv2", switch.address, switch.device_id, test_ends, namespace=namespace.name)


SWITCHES: Final[Mapping[str, Callable[..., AbstractContextManager[PtfTarget]]]] = {
    "native": run_native,
    "bmv2": run_bmv2,
}
"""The functions that start a switch, by the name of the target."""


@contextmanager
def _veths(ports: Sequence[int]) -> Iterator[tuple[Namespace, dict[int, str], dict[int, str]]]:
    """Make a namespace with a veth pair for each port. Yield it, the switch's ends and ptf's ends by port."""
    with Namespace() as namespace:
        pairs = {port: namespace.add_veth(f"switch{port}", f"ptf{port}") for port in ports}
        lefts, rights = ({port: pair[end] for port, pair in pairs.items()} for end in (0, 1))
        yield namespace, lefts, rights
