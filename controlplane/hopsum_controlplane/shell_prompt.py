# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell on a switch that is running."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hopsum_controlplane.devices.p4runtime_session import wait_for_server
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.switch_tls import SwitchTls

if TYPE_CHECKING:
    from p4runtime_sh.p4runtime import P4RuntimeClient

# Below every controller: looks and does not touch. A higher one than the controller's takes the switch over.
SHELL_ELECTION_ID = (0, 1)


def open_shell(
    address: str,
    device_id: int = 0,
    *,
    election_id: tuple[int, int] = SHELL_ELECTION_ID,
    pipeline: tuple[Path, Path] | None = None,
    tls: SwitchTls | None = None,
    connect_timeout_s: float = 5.0,
) -> None:
    """Open p4runtime-shell's prompt on the switch at `address` and return when its user leaves.

    No program is pushed unless `pipeline` (JSON, P4Info) is given, which takes everything off the switch and
    needs an election id above the controller's.
    Call it in the main thread of an interactive process: the shell keeps its state in module globals.
    Raises ControlPlaneError when p4runtime-shell is not installed, or there is no session.
    """
    arguments = ["p4runtime-sh", "--grpc-addr", address, "--device-id", str(device_id)]
    arguments += ["--election-id", f"{election_id[0]},{election_id[1]}"]
    if tls is not None:
        arguments += ["--ssl", "--cacert", str(tls.ca)]
        if tls.certificate is not None:
            arguments += ["--cert", str(tls.certificate), "--private-key", str(tls.key)]
    if pipeline is not None:
        json, p4info = pipeline
        arguments += ["--config", f"{p4info},{json}"]
    where = f"switch {device_id} at {address}"
    if find_spec("p4runtime_sh") is None:
        # It pins protobuf and grpcio of other times than the rest.
        hint = "in an environment of its own, pip install 'hopsum[shell]'"
        raise ControlPlaneError("p4runtime-shell is not installed", where=where, hint=hint)
    # The shell leaves a running thread behind when nobody answers, so ask first.
    wait_for_server(address, where, connect_timeout_s, tls)
    # Imports IPython, which takes a second.
    from p4runtime_sh import shell

    _run(shell, arguments, where)


def _run(shell: ModuleType, arguments: list[str], where: str) -> None:
    """Run the shell's main with `arguments`: it reads sys.argv, and leaves by sys.exit on errors."""
    before, sys.argv = sys.argv, arguments
    try:
        shell.main()
    except SystemExit as error:
        raise ControlPlaneError(
            "p4runtime-shell gave up, its log says why",
            where=where,
            hint="check the device id, that a program runs there, and that nobody uses this election id",
        ) from error
    finally:
        sys.argv = before
        _tear_down(getattr(shell, "client", None))


def _tear_down(client: P4RuntimeClient | None) -> None:
    # The shell's own tear_down deletes the channel, so this one may come second.
    if client is not None and hasattr(client, "channel"):
        client.tear_down()
