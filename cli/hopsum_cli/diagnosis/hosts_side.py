# SPDX-License-Identifier: Apache-2.0
"""The checks of one host before a job by hosts://, on which nothing runs yet. Nothing leaves the host.

check     fails when                                                          not made unless these pass
settings  a setting or the URL is malformed                                   -
packages  torch, gRPC or the switch's packages are not installed              settings
kernels   the codec's kernels cannot be kept: each start compiles them        settings
address   there is none for this rank, or its interface is down               settings
mtu       the interface is too narrow for a packet                            address
ports     free ports of the address cannot be opened, or do not answer        address
gso       the kernel mangles datagrams that are sent together                 ports
buffer    the kernel grants too small a receive buffer                        settings
switch    an embedded switch does not start there                             ports, packages
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hopsum.codec.backends import compiled_is_wanted
from hopsum.config import DEFAULT_CODEC, Config, ConfigError, resolve
from hopsum.connection.hosts_url import query_of_hosts
from hopsum.connection.open_agent import codec_of
from hopsum.connection.url import split_url
from hopsum.errors import HopsumError
from hopsum.hosts.children import Children, start_switch
from hopsum.hosts.host_address import INTERFACE_VARIABLE, MASTER_VARIABLE, choose_address
from hopsum.hosts.reach import ReachEcho, gso_arrives, require_reachable
from hopsum.transport.offload import probe_offload
from hopsum_base import interfaces
from hopsum_cli.diagnosis import host_checks
from hopsum_cli.diagnosis.rows import CheckRow, DiagnosisReport, Status, failed, passed, skipped
from hopsum_wire.payload import PACKET_BYTES

_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "settings": (),
    "packages": ("settings",),
    "kernels": ("settings",),
    "address": ("settings",),
    "mtu": ("address",),
    "ports": ("address",),
    "gso": ("ports",),
    "buffer": ("settings",),
    "switch": ("ports", "packages"),
}
_PACKAGES: Final = ("torch", "grpc", "google.protobuf")
_WINDOW: Final = 256
"""Results on their way to a worker where round trips are short."""
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def examine_host(url: str, answer_s: float) -> DiagnosisReport:
    """Make the checks of this host for a job by hosts://, by the settings of a worker in this terminal.

    It may compile the codec's loops, opens sockets, and starts an embedded switch and ends it. Errors are rows of the
    report.

    Args:
        url: with scheme hosts.
        answer_s: patience with an answer, in seconds.
    """
    return _HostExamination(url, answer_s).run()


class _HostExamination:
    """The findings of earlier checks that later ones need."""

    config: Config
    ip: str

    def __init__(self, url: str, answer_s: float) -> None:
        self._url, self._answer_s = url, answer_s
        self.report = DiagnosisReport(f"this host, {os.uname().nodename}, for a job by {url}")

    def run(self) -> DiagnosisReport:
        """Make the checks, each unless one that it needs did not pass."""
        for check, needs in _NEEDS.items():
            lacking = [need for need in needs if self.report[need].status is not Status.PASS]
            made: Callable[[], CheckRow] = getattr(self, f"_{check}")
            reason = f"nothing to be learnt without {lacking[0]}" if lacking else ""
            self.report.rows.append(skipped(check, reason) if lacking else made())
        return self.report

    def _settings(self) -> CheckRow:
        try:
            config = resolve({"url": self._url})
            query_of_hosts(config, split_url(config))
        except ConfigError as error:
            return failed("settings", str(error), "write hosts://, and see to HOPSUM_... in the environment")
        self.config = replace(config, codec=config.codec or DEFAULT_CODEC)
        told = f"codec {self.config.codec}, lease_s {config.lease_s:g}, deadline_s {config.deadline_s:g}"
        return passed("settings", told, {"codec": self.config.codec})

    def _packages(self) -> CheckRow:
        missing = [name for name in _PACKAGES if not _is_there(name)]
        if missing:
            told = f"{', '.join(missing)} cannot be imported"
            return failed("packages", told, "pip install 'hopsum[hosts]' here, as on every host", {"missing": missing})
        return passed("packages", "torch and gRPC are installed")

    def _kernels(self) -> CheckRow:
        if not compiled_is_wanted() or not _is_there("numba"):
            return passed(
                "kernels", "numpy encodes and decodes", advice="pip install numba: it takes a tenth of the time"
            )
        told: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
        # The only place where a cache that is no use is told.
        log = logging.getLogger("hopsum.codec.backends.jit")
        log.addHandler(handler)
        began = time.monotonic()
        try:
            codec_of(self.config, 2)
        except HopsumError as error:
            return failed("kernels", str(error), "see to the settings codec, codec_options and backend")
        finally:
            log.removeHandler(handler)
        if told:
            return failed("kernels", "; ".join(told), "make room in that folder, or set NUMBA_CACHE_DIR to another one")
        took_s = time.monotonic() - began
        return passed("kernels", f"ready after {took_s:.1f} s; later starts load them", {"seconds": round(took_s, 3)})

    def _address(self) -> CheckRow:
        try:
            self.ip = choose_address(self.config.ip, os.environ)
        except ConfigError as error:
            return failed("address", str(error), f"set {INTERFACE_VARIABLE} to the interface between the hosts")
        interface = interfaces.interface_of(self.ip)
        where = f"{self.ip} on {interface.name}" if interface else self.ip
        facts = {"ip": self.ip, "interface": interface.name if interface else None}
        told = f"{where}, {self._why()}"
        if interface is not None and not interface.up:
            return failed("address", f"{told}, which is down", f"ip link set dev {interface.name} up", facts)
        advice = ""
        if self.ip.startswith("127."):
            advice = (
                "other hosts do not reach a loopback address: set MASTER_ADDR as torchrun does, or "
                f"{INTERFACE_VARIABLE} to the interface between the hosts"
            )
        return passed("address", told, facts, advice=advice)

    def _why(self) -> str:
        """Return the reason why a rank takes this address, in the order of `choose_address`."""
        if self.config.ip:
            return "the setting ip"
        if names := os.environ.get(INTERFACE_VARIABLE):
            return f"of {INTERFACE_VARIABLE}={names}"
        if master := os.environ.get(MASTER_VARIABLE):
            return f"the source of the way to {MASTER_VARIABLE} {master}"
        return f"since neither {MASTER_VARIABLE} nor {INTERFACE_VARIABLE} is set"

    def _mtu(self) -> CheckRow:
        interface = interfaces.interface_of(self.ip)
        if interface is None:
            return skipped("mtu", f"no interface has {self.ip} by itself")
        facts = {"mtu_bytes": interface.mtu_bytes, "needed_bytes": PACKET_BYTES}
        told = f"{interface.mtu_bytes} bytes on {interface.name} for packets of up to {PACKET_BYTES}"
        if interface.mtu_bytes >= PACKET_BYTES:
            return passed("mtu", told, facts)
        fix = f"ip link set dev {interface.name} mtu 1500, on all hosts"
        return failed("mtu", f"{told}: they go in IP fragments, singly", fix, facts)

    def _ports(self) -> CheckRow:
        try:
            with ReachEcho(self.ip) as echo:
                require_reachable(self.ip, {0: echo.place}, try_s=self._answer_s)
        except (ConfigError, OSError) as error:
            fix = "look for a firewall rule of this host (nft list ruleset, iptables -L)"
            return failed("ports", str(error), fix)
        low, high = _RANGE.read_text(encoding="ascii").split()
        told = f"UDP and TCP at free ports of {self.ip} answer; the kernel gives {low} to {high}"
        advice = f"let UDP and TCP at ports {low} to {high} pass between the hosts: tried when the ranks meet"
        return passed("ports", told, {"low": int(low), "high": int(high)}, advice=advice)

    def _gso(self) -> CheckRow:
        if self.config.gso == "off":
            return skipped("gso", "gso=off")
        if not probe_offload().segment:
            return passed("gso", "this kernel does not send datagrams together: single ones do")
        with ReachEcho(self.ip) as echo:
            arrive = gso_arrives(self.ip, {0: echo.place}, try_s=self._answer_s)
        if arrive:
            return passed("gso", "datagrams that are sent together (UDP_SEGMENT) arrive here")
        fix = "set gso='off' (HOPSUM_GSO=off) on this host; a newer kernel may mend it"
        return failed("gso", "this kernel mangles datagrams that are sent together (UDP_SEGMENT)", fix)

    def _buffer(self) -> CheckRow:
        return host_checks.check_buffer(_WINDOW)

    def _switch(self) -> CheckRow:
        children, began = Children(), time.monotonic()
        try:
            started = start_switch(children, self.ip, "192.0.2.1", gso="off" if self.config.gso == "off" else "auto")
            with socket.create_connection((self.ip, int(started.grpc.rpartition(":")[2])), self._answer_s):
                pass
        except (HopsumError, OSError) as error:
            return failed("switch", str(error), "pip install 'hopsum[hosts]' here; see what it printed")
        finally:
            children.close()
        took_s = time.monotonic() - began
        facts: dict[str, Any] = {"seconds": round(took_s, 3)}
        return passed("switch", f"an embedded switch started at {self.ip} and ended, in {took_s:.1f} s", facts)


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
