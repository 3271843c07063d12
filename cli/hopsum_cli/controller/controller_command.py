# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum controller`, and its life between `ready` and a signal."""

from __future__ import annotations

import argparse
import logging
import select
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from hopsum_base.process_end import bound_end, die_with_parent
from hopsum_base.service_manager import ServiceManager
from hopsum_base.tls_server import ServerCredentials
from hopsum_base.token_files import AdminToken
from hopsum_base.units import whole
from hopsum_controlplane.cluster import ClusterConfig, StateStore, load_config
from hopsum_controlplane.cluster.cluster_config import SwitchConfig
from hopsum_controlplane.cluster.switch_inventory import MayRemove
from hopsum_controlplane.errors import ControlPlaneError, StoreLockedError
from hopsum_controlplane.service.controller_process import (
    ConfigReloader,
    ControllerHealth,
    RunningController,
    raise_open_files_limit,
    run_controller,
)
from hopsum_controlplane.service.grpc_service import read_safeguards
from hopsum_controlplane.service.log_format import FORMATS, configure_logging, set_level

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# systemd advises to report at half of WatchdogSec; a third leaves room for one report that comes late.
BEATS_PER_WATCHDOG: Final = 3
STANDBY_S: Final = 0.5
"""Seconds between two attempts of a standby to lock the database."""
_log: Final = logging.getLogger(__name__)
_EPILOG: Final = """\
When it serves, it prints `page URL` and `metrics URL`, unless there are none, and
`ready listen=ADDRESS switches=NAME,...` on stdout. It retries a switch that does not answer, which delays no other
switch. SIGTERM and SIGINT end it: the entries stay on the switches, jobs continue, and a controller with the same
database adopts them. A second signal ends it at once, which the database survives too.

SIGHUP reloads certificates, keys, administrators' tokens and log_level of the configuration, for new connections and
calls; open connections continue. The log names other changed keys, which need a restart. A wrong configuration changes
nothing.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum controller",
        description="Run the controller: jobs, slots and leases on the switches of a configuration.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE.toml",
        help="configuration of the cluster, see docs/operating.md",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read the configuration, its files and the database, print the meaning, and exit",
    )
    parser.add_argument(
        "--remove-existing",
        action="store_true",
        help="show what the switches have that this controller's database does not, another program included, and ask "
        "whether that is to be removed",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="wait while another controller has the database, and serve as soon as it has ended",
    )
    parser.add_argument("--yes", action="store_true", help="answer yes to what --remove-existing asks")
    parser.add_argument(
        "--die-with-parent",
        type=whole(0, (1 << 31) - 1),
        metavar="PID",
        help="stop when the thread of process PID that started this process ends, also if it has already",
    )
    parser.add_argument(
        "--log", choices=FORMATS, default="text", help="format of the log on stderr (default %(default)s)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run a controller until SIGTERM or SIGINT, or only check its configuration. Return 0, or 1 after an error.

    It logs to stderr, and prints a line on stdout when it serves. For the main thread.
    """
    options = build_parser().parse_args(arguments)
    log = configure_logging(form=options.log, level="info")
    if options.die_with_parent is not None:
        die_with_parent(options.die_with_parent)
    try:
        config = load_config(options.config)
        # The log is set up before the file is read, for the errors of reading it.
        set_level(config.log_level)
        if options.check:
            print(_checked(config))
            return 0
        # Clients must not be able to take the descriptors that switches and database need.
        raise_open_files_limit()
        _serve(config, options)
    except ControlPlaneError as error:
        if options.log == "json":
            _log.error("%s", error)
        else:
            # The reason of the end is the last line.
            log.flush()
            print(f"hopsum controller: error: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(config: ClusterConfig, options: argparse.Namespace) -> None:
    # Signals are taken before anything is started: one that comes during the start ends it in order.
    signals, manager = SignalQueue(_SIGNALS), ServiceManager()
    try:
        with ExitStack() as stack:
            found = _enter(stack, config, options, signals, manager)
            if found is None:
                return
            config, controller = found
            if controller.page_url:
                print(f"page {controller.page_url}", flush=True)
                print(f"metrics {controller.metrics_url}", flush=True)
            switches = ",".join(switch.name for switch in config.switches)
            # A line for programs that start a controller: at this moment it takes calls.
            print(f"ready listen={controller.address} switches={switches}", flush=True)
            manager.ready(f"listens at {controller.address}")
            reloading = ConfigReloader(options.config, config, controller.service)
            while (number := _next_signal(signals, manager, controller.health)) is signal.SIGHUP:
                # systemd's order: RELOADING before the work, READY after it, or `systemctl reload` waits for ever.
                manager.reloading()
                reloading.reload()
                manager.ready(f"listens at {controller.address}")
            manager.stopping()
            _log.info("%s: ending; jobs continue", "" if number is None else number.name)
            signals.close()
            # A second signal ends it at once, which the database survives.
            bound_end()
    finally:
        signals.close()


def _enter(
    stack: ExitStack,
    config: ClusterConfig,
    options: argparse.Namespace,
    signals: SignalQueue,
    manager: ServiceManager,
) -> tuple[ClusterConfig, RunningController] | None:
    """Begin to serve. A standby waits for the database before. Returns None when a signal ends the wait."""
    waits = False
    while True:
        try:
            return config, stack.enter_context(run_controller(config, may_remove=removal_question(options)))
        except StoreLockedError:
            if not options.standby:
                raise
        if not waits:
            waits = True
            _log.info("standby: another controller has database %s", config.database)
            # A standby that waits is ready for its service manager: it does what it was started for.
            print("standby", flush=True)
            manager.ready("standby: another controller has the database")
        # The lock of the database cannot be waited for: SQLite's is tried again.
        number = _next_signal(signals, manager, None, STANDBY_S)
        if number is signal.SIGHUP:
            config = _read_again(config, options)
        elif number is not None:
            _log.info("%s: the standby ends", number.name)
            return None


def _read_again(config: ClusterConfig, options: argparse.Namespace) -> ClusterConfig:
    """Read the configuration of a standby again. Return the one from before where the file does not fit."""
    try:
        found = load_config(options.config)
        read_safeguards(found)
    except ControlPlaneError as error:
        _log.error("SIGHUP: %s; nothing has changed", error)
        return config
    set_level(found.log_level)
    _log.info("SIGHUP: read %s again", options.config)
    return found


def removal_question(options: argparse.Namespace) -> MayRemove | None:
    """Return the question of --remove-existing, None without the option.

    The question prints the entries that would be removed from a switch, and asks at the terminal. Its answer is True
    with --yes, and False, with an error in the log, without a terminal.
    """
    if not options.remove_existing:
        return None

    def may_remove(switch: str, what: Sequence[str]) -> bool:
        print(f"switch {switch} has, and the database has not:", *what, sep="\n  ", file=sys.stderr, flush=True)
        if options.yes:
            _log.warning("switch %s: removes %d of these (--yes)", switch, len(what), extra={"switch": switch})
            return True
        # A service has no terminal: without an answer nothing is removed.
        if not sys.stdin.isatty():
            what_next = "switch %s: nothing is removed: answer at a terminal, or give --yes"
            _log.error(what_next, switch, extra={"switch": switch})
            return False
        print("Remove all of it? It ends the jobs that use it. [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return may_remove


def _next_signal(
    signals: SignalQueue, manager: ServiceManager, health: ControllerHealth | None, within_s: float | None = None
) -> signal.Signals | None:
    """Wait for a signal, for some seconds or for ever. Return None when none came.

    Meanwhile a service manager with a watchdog is told that the controller works, while it does.
    """
    beat_s = None if manager.watchdog_s is None else manager.watchdog_s / BEATS_PER_WATCHDOG
    waits_s = [each for each in (beat_s, within_s) if each is not None]
    while (found := signals.wait(min(waits_s, default=None))) is None:
        # A controller that hangs does not report, so that the watchdog ends it, and its lock with it.
        if health is not None and (why := health.why_not_healthy()):
            _log.error("not healthy: %s", why)
        else:
            manager.alive()
        if within_s is not None:
            return None
    return found


class SignalQueue:
    """Receives signals from construction until `close`, in their order. It is for the main thread.

    A signal that the main thread blocks ends the process when another thread does not block it, as threads of
    libraries may. So nothing is blocked here: the interpreter's handler writes each signal's number to a socket.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._read, write = socket.socketpair()
        # The interpreter's handler must not block when nobody reads: a full socket loses repetitions only.
        write.setblocking(False)
        self._write: socket.socket | None = write
        self._handlers: dict[signal.Signals, Any] = {each: signal.signal(each, _nothing) for each in numbers}
        self._wakeup = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)

    def wait(self, within_s: float | None = None) -> signal.Signals | None:
        """Wait for the next signal, and return it, or None when none came within `within_s` seconds.

        Without `within_s` the wait has no limit.
        """
        while select.select([self._read], (), (), within_s)[0]:
            number = signal.Signals(self._read.recv(1)[0])
            if number in self._handlers:
                return number
        return None

    def close(self) -> None:
        """Restore the earlier handlers of the signals, and close the sockets. Harmless when it is closed."""
        write, self._write = self._write, None
        if write is not None:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            write.close()
            self._read.close()


def _nothing(number: int, frame: object) -> None:
    """Do nothing: the number is in the socket already."""


def _checked(config: ClusterConfig) -> str:
    """Do what a start does before it serves, and change nothing. Return what the configuration means.

    Raises ControlPlaneError as a start does.
    """
    found = read_safeguards(config)
    lines = [config_text(config, found.admin_tokens)]
    try:
        StateStore.count_jobs(config.database)
    except StoreLockedError:
        # The case while the controller serves, before its SIGHUP.
        lines.append("a controller serves with the database: it was not read")
    if found.tls is not None and (notice := ServerCredentials(found.tls, ControlPlaneError).expiry_warning()):
        lines.append(notice)
    return "\n".join(lines)


def config_text(config: ClusterConfig, tokens: Sequence[AdminToken]) -> str:
    """Return lines of text that describe a configuration and name its administrators, without their tokens."""
    lines = [
        f"database {config.database}",
        f"listens at {config.listen} {_tls(config)}; who makes jobs needs {_asks(config, tokens)}",
        f"page and metrics at {config.metrics_listen or 'no address'}",
        f"leases of {config.lease_s:g} s, heartbeats every {config.heartbeat_s:g} s, "
        f"audits every {config.reconcile_interval_s:g} s; logs from level {config.log_level}",
    ]
    for switch in config.switches:
        lines += _switch(switch)
    for spine in config.spines:
        lines.append(f"tree of {', '.join(link.leaf for link in config.links_below(spine))}, then {spine}")
        lines += [f"  {link}" for link in config.links_below(spine)]
    return "\n".join(lines)


def _tls(config: ClusterConfig) -> str:
    if config.tls_certificate is None:
        return "without TLS"
    clients = f", for clients with a certificate of {config.tls_client_ca}" if config.tls_client_ca else ""
    clients += f" and a name in {config.tls_client_names}" if config.tls_client_names else ""
    return f"with TLS, as {config.tls_certificate}{clients}"


def _asks(config: ClusterConfig, tokens: Sequence[AdminToken]) -> str:
    if not tokens:
        return "no token"
    names = ", ".join(each.name for each in tokens)
    return f"a token in {config.admin_token_file} ({len(tokens)}: {names})"


def _switch(switch: SwitchConfig) -> list[str]:
    ip, port = switch.service
    who = f"workers send to {ip}:{port}; {', '.join(map(str, switch.ports))}"
    tls = "" if switch.tls is None else f", with TLS, of {switch.tls.ca}, as {switch.tls.certificate or 'nobody'}"
    return [
        f"switch {switch.name}: {switch.driver} at {switch.address}, device {switch.device_id}{tls}",
        f"  {switch.slots} slots; {who if switch.ports else 'no worker is connected to it'}",
    ]
