# SPDX-License-Identifier: Apache-2.0
"""The configuration of a cluster, from a TOML file::

  [controller]                               # all keys may be left out but database
  database = "/var/lib/hopsum/state.sqlite"
  listen = "127.0.0.1:4700"                  # service for workers and operators; HOST:PORT or unix:PATH
  metrics_listen = "127.0.0.1:4701"          # "" for none
  lease_s = 15.0                             # a member that is silent for so long is evicted
  heartbeat_s = 5.0                          # how often members are asked to say that they live
  reconcile_interval_s = 10.0                # how often a switch is compared with the database; 0 for never
  tls_certificate = "/etc/hopsum/server.pem" # both or none
  tls_key = "/etc/hopsum/server.key"
  tls_client_ca = "/etc/hopsum/clients.pem"
  tls_client_names = "/etc/hopsum/names"     # common names of certificates whose clients may call, one a line
  admin_token_file = "/etc/hopsum/admin.token"
  switch_token_file = "/etc/hopsum/switch.token"   # lets switches register that have this token
  log_level = "info"                         # debug, info, warning or error
  audit_log = "/var/lib/hopsum/audit.jsonl"  # who changed what

  [[switch]]
  name = "leaf1"
  driver = "native"                          # see devices
  address = "127.0.0.1:9559"                 # of its P4Runtime server
  device_id = 0
  mac = "02:00:00:00:00:fe"                  # of the aggregation service
  ip = "10.0.0.254"
  service_address = "127.0.0.1:47500"        # where workers send to, if not to `ip`
  slots = 2048
  election_id = 1                            # the highest of several controllers has the switch
  l2_forwarding = false                      # also carry what workers send to each other, see forwarding
  tls_ca = "/etc/hopsum/ca.pem"              # authority of the switch's certificate: its P4Runtime speaks TLS
  tls_certificate = "/etc/hopsum/server.pem" # of the controller as the switch's client; both or none
  tls_key = "/etc/hopsum/server.key"
  # program = "/opt/hopsum/hopsum.conf"      # driver "tofino": the build's .conf file, its P4Info beside it
  # loop_ports = [68, 196]                   # driver "tofino": what slots are spread over, see docs/tofino.md
  ports = [{port = 1, network = "10.0.0.0/24"}]      # driver "tofino": also speed_gbps = 100

  [[switch]]                                 # at which no worker stands: without ports
  name = "spine"
  driver = "native"
  address = "127.0.0.1:9560"
  mac = "02:00:00:00:00:fd"
  ip = "10.0.0.253"

  [[tenant]]                                 # makes jobs of its own, within quotas, see quotas
  name = "vision"
  token_file = "/etc/hopsum/vision.token"    # as admin_token_file
  max_jobs = 4                               # each may be left out: no bound
  max_slots = 1024
  max_tables = 4
  max_members = 64

  [[link]]                                   # makes trees of switches: a leaf and the spine above it, see links
  leaf = "leaf1"
  leaf_port = 9
  spine = "spine"
  spine_port = 1

A worker belongs to the port whose network has its address: the longest prefix, where several have.
A relative path, that of an address unix:PATH among them, is relative to the folder of the file.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from hopsum_controlplane.cluster.errors import ClusterConfigError
from hopsum_controlplane.cluster.links import LinkConfig, check_links, check_racks
from hopsum_controlplane.cluster.tenants import RESOURCES, TenantConfig
from hopsum_controlplane.devices.drivers import CONTROLLER_ELECTION_ID, check_target
from hopsum_controlplane.devices.tls import SwitchTls
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import MAX_PORT, MAX_UDP_PORT, SwitchEndpoint
from hopsum_wire import HOPSUM_UDP_PORT, MAX_SLOTS
from hopsum_wire.control.places import UNIX

MIN_LEASE_S, MAX_LEASE_S = 1.0, 86400.0
LOG_LEVELS = ("debug", "info", "warning", "error")
_MIN_HEARTBEAT_S = 0.1
_MAX_ELECTION_ID = (1 << 63) - 1


@dataclass(frozen=True)
class PortRule:
    """Workers with addresses of `network` are behind switch port `port`.

    The driver of a hardware switch brings a port with `speed_gbps` up.
    """

    port: int
    network: IPv4Network
    speed_gbps: int | None = None

    def __str__(self) -> str:
        """Return `NETWORK at port N`."""
        return f"{self.network} at port {self.port}"


@dataclass(frozen=True)
class SwitchConfig:
    """One switch: how it is reached, the address of its service, the networks behind its ports.

    `driver` names a target, `address` its P4Runtime server. `service_address` is the (IPv4 address, UDP port) that
    workers send to, None for the service's own. `slots` is how many of its slots may be used. Of several controllers
    the one with the highest `election_id`, 1 .. 2^63 - 1, has the switch. With `l2_forwarding` it is its workers'
    Ethernet switch as well, see `hopsum_controlplane.cluster.forwarding`. `program` is the compiler's output, for a
    driver whose program is not installed with this package. Slots are spread over `loop_ports`, the program's default
    one if there are none. `registered` switches came by themselves, and are in no file. Without `tls` its P4Runtime is
    in the clear.
    """

    name: str
    driver: str
    address: str
    device_id: int
    endpoint: SwitchEndpoint
    ports: tuple[PortRule, ...]
    service_address: tuple[str, int] | None = None
    slots: int = MAX_SLOTS
    election_id: int = CONTROLLER_ELECTION_ID[0]
    l2_forwarding: bool = False
    program: Path | None = None
    loop_ports: tuple[int, ...] = ()
    registered: bool = False
    tls: SwitchTls | None = None

    @property
    def service(self) -> tuple[str, int]:
        """Return where workers send to: IPv4 address and UDP port."""
        return self.service_address or (self.endpoint.ip, HOPSUM_UDP_PORT)

    def port_of(self, ip: IPv4Address) -> int | None:
        """Return the switch port of a worker's address, None when no rule has it."""
        rule = self.rule_of(ip)
        return None if rule is None else rule.port

    def rule_of(self, ip: IPv4Address, but: int | None = None) -> PortRule | None:
        """Return the rule of a worker's address, those of port `but` left out; None when none has it."""
        having = [rule for rule in self.ports if ip in rule.network and rule.port != but]
        return max(having, key=lambda rule: rule.network.prefixlen) if having else None

    @property
    def speeds_gbps(self) -> dict[int, int]:
        """Return the speeds of the ports that have one."""
        return {rule.port: rule.speed_gbps for rule in self.ports if rule.speed_gbps is not None}

    def check(self) -> None:
        """Raise ControlPlaneError naming the first thing that is wrong."""
        if not self.name:
            raise _wrong("a switch without a name", "give it one")
        try:
            check_target(self.driver, self.device_id, self.program, bool(self.loop_ports or self.speeds_gbps))
        except ControlPlaneError as error:
            raise _wrong(f"switch {self.name!r}: {error.what}", error.hint) from error
        if not 1 <= self.election_id <= _MAX_ELECTION_ID:
            raise _wrong(f"switch {self.name!r}: election_id {self.election_id}", f"it is 1 .. {_MAX_ELECTION_ID}")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise _wrong(f"switch {self.name!r}: {self.slots} slots", f"a switch has 1 .. {MAX_SLOTS}")
        self.endpoint.check()
        networks = [rule.network for rule in self.ports]
        for rule in self.ports:
            if not 0 <= rule.port <= MAX_PORT:
                raise _wrong(f"switch {self.name!r}: port {rule.port}", f"ports are 0 .. {MAX_PORT}")
            if networks.count(rule.network) > 1:
                raise _wrong(f"switch {self.name!r}: network {rule.network} at several ports", "give each network once")
            if rule.speed_gbps not in (None, self.speeds_gbps.get(rule.port)):
                raise _wrong(f"switch {self.name!r}: port {rule.port} with several speeds", "give the port one speed")


@dataclass(frozen=True)
class ClusterConfig:
    """A controller: its switches and their links, its database, where it listens, and its times in seconds."""

    switches: tuple[SwitchConfig, ...]
    database: Path
    links: tuple[LinkConfig, ...] = ()
    tenants: tuple[TenantConfig, ...] = ()
    listen: str = "127.0.0.1:4700"
    metrics_listen: str = "127.0.0.1:4701"
    lease_s: float = 15.0
    heartbeat_s: float = 5.0
    reconcile_interval_s: float = 10.0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_names: Path | None = None
    admin_token_file: Path | None = None
    switch_token_file: Path | None = None
    log_level: str = "info"
    audit_log: Path | None = None

    def switch(self, name: str) -> SwitchConfig:
        """Return the switch of this name. Raises ClusterConfigError when there is none."""
        for switch in self.switches:
            if switch.name == name:
                return switch
        raise _wrong(f"no switch {name!r}", _nearest(name, [switch.name for switch in self.switches]))

    @property
    def spines(self) -> tuple[str, ...]:
        """Return the switches that have leaves, in the order of the links."""
        return tuple(dict.fromkeys(link.spine for link in self.links))

    def below(self, spine: str) -> tuple[LinkConfig, ...]:
        """Return the links of a spine to its leaves, in their order, or none for another switch."""
        return tuple(link for link in self.links if link.spine == spine)

    def check(self) -> None:
        """Raise ControlPlaneError naming the first thing that is wrong."""
        if not self.switches and self.switch_token_file is None:
            hint = "write a table [[switch]] for each, or give switch_token_file, so that switches can register"
            raise _wrong("no switches", hint)
        for switch in self.switches:
            switch.check()
        for what in ("name", "endpoint"):
            values = [getattr(switch, what) for switch in self.switches]
            if len(set(values)) < len(values):
                raise _wrong(f"several switches with one {what}: {', '.join(map(str, values))}", "give each its own")
        self._check_links()
        self._check_tenants()
        if not MIN_LEASE_S <= self.lease_s <= MAX_LEASE_S:
            raise _wrong(f"lease_s {self.lease_s:g}", f"it is {MIN_LEASE_S:g} .. {MAX_LEASE_S:g} seconds")
        if not _MIN_HEARTBEAT_S <= self.heartbeat_s <= self.lease_s / 2:
            hint = f"it is {_MIN_HEARTBEAT_S:g} .. {self.lease_s / 2:g}: one may be lost within a lease"
            raise _wrong(f"heartbeat_s {self.heartbeat_s:g} with lease_s {self.lease_s:g}", hint)
        if self.reconcile_interval_s < 0:
            raise _wrong(f"reconcile_interval_s {self.reconcile_interval_s:g}", "it is seconds, 0 for never")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise _wrong("only one of tls_certificate and tls_key", "give both or none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise _wrong("tls_client_ca without tls_certificate", "give certificate and key too")
        if self.tls_client_names is not None and self.tls_client_ca is None:
            raise _wrong("tls_client_names without tls_client_ca", "names are in clients' certificates: give it too")
        if self.log_level not in LOG_LEVELS:
            raise _wrong(f"log_level {self.log_level!r:.80}", f"it is one of {', '.join(LOG_LEVELS)}")

    def _check_tenants(self) -> None:
        names = [tenant.name for tenant in self.tenants]
        for tenant in self.tenants:
            tenant.check()
            if names.count(tenant.name) > 1:
                raise _wrong(f"several tenants {tenant.name!r}", "give each a name of its own")
            if self.admin_token_file is None:
                hint = "give admin_token_file: without one, whoever reaches the service is an administrator"
                raise _wrong(f"tenant {tenant.name!r}, and no administrator's token", hint)

    def _check_links(self) -> None:
        check_links(self.links, [switch.name for switch in self.switches])
        for switch in self.switches:
            if not switch.ports and switch.name not in self.spines:
                raise _wrong(f"switch {switch.name!r} has no ports", "say which network stands behind which port")
        networks = {switch.name: {rule.network: rule.port for rule in switch.ports} for switch in self.switches}
        check_racks(self.links, networks)


def load_config(path: Path) -> ClusterConfig:
    """Read a configuration file and check it. Raises ControlPlaneError naming the file, the key and what would fit."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterConfigError(
            f"configuration {path} cannot be read: {error}", hint="see the documentation of the controller"
        ) from error
    try:
        config = _cluster(document, path.absolute().parent)
        config.check()
    except ControlPlaneError as error:
        raise ClusterConfigError(error.what, where=str(path), hint=error.hint) from error
    return config


def parse_address(text: str) -> tuple[str, int]:
    """Return an IPv4 address and a UDP port of `A.B.C.D:PORT`. Raises ClusterConfigError for other texts."""
    ip, _, port = text.rpartition(":")
    try:
        address, number = IPv4Address(ip), int(port)
    except ValueError:
        raise _wrong(f"{text!r} is not an IPv4 address and a port", "write A.B.C.D:PORT") from None
    if not 1 <= number <= MAX_UDP_PORT:
        raise _wrong(f"{text!r}: port {number}", f"ports are 1 .. {MAX_UDP_PORT}")
    return str(address), number


def _cluster(document: Mapping[str, Any], folder: Path) -> ClusterConfig:
    _only_known(document, ("controller", "switch", "link", "tenant"), "")
    controller = _table(document.get("controller", {}), "[controller]")
    tables = ("switches", "links", "tenants")
    kinds: dict[str, type] = {each.name: _kind(each.type) for each in fields(ClusterConfig) if each.name not in tables}
    values = _within(folder, _take(controller, kinds, "[controller]", required=("database",)))
    for name in ("switch", "link", "tenant"):
        if not isinstance(document.get(name, []), list):
            raise _wrong(f"[{name}] is one table", f"write [[{name}]], once for each {name}")
    switches = tuple(
        _switch(entry, folder, f"[[switch]] {number}") for number, entry in enumerate(document.get("switch", []))
    )
    links = tuple(_link(entry, f"[[link]] {number}") for number, entry in enumerate(document.get("link", [])))
    tenants = tuple(
        _tenant(entry, folder, f"[[tenant]] {number}") for number, entry in enumerate(document.get("tenant", []))
    )
    return ClusterConfig(switches, links=links, tenants=tenants, **values)


def _tenant(entry: Any, folder: Path, where: str) -> TenantConfig:
    quotas: dict[str, type] = {f"max_{resource}": int for resource in RESOURCES}
    kinds = {"name": str, "token_file": Path, **quotas}
    return TenantConfig(**_within(folder, _take(_table(entry, where), kinds, where, ("name", "token_file"))))


def _link(entry: Any, where: str) -> LinkConfig:
    kinds = {"leaf": str, "leaf_port": int, "spine": str, "spine_port": int}
    return LinkConfig(**_take(_table(entry, where), kinds, where, kinds))


def _within(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a table with paths, and those of addresses unix:PATH, relative to a folder."""
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = folder / value
        elif name in _ADDRESSES and value.startswith(UNIX):
            values[name] = f"{UNIX}{folder / value.removeprefix(UNIX)}"
    return values


_ADDRESSES = ("listen", "address")


def _switch(entry: Any, folder: Path, where: str) -> SwitchConfig:
    kinds = {**dict.fromkeys(("name", "driver", "address", "mac", "ip", "service_address"), str), "device_id": int}
    required = ("name", "driver", "address", "mac", "ip")
    values = _within(folder, _take(_table(entry, where), {**kinds, **_MORE_OF_SWITCH}, where, required))
    service_address = values.pop("service_address", None)
    endpoint = SwitchEndpoint(mac=values.pop("mac"), ip=values.pop("ip"))
    ports = tuple(_port(rule, f"{where} ports {number}") for number, rule in enumerate(values.pop("ports", [])))
    values["loop_ports"] = _numbers(values.pop("loop_ports", []), f"{where} loop_ports")
    address = None if service_address is None else parse_address(service_address)
    tls = _tls([values.pop(f"tls_{name}", None) for name in ("ca", "certificate", "key")], where)
    parts: dict[str, Any] = {"endpoint": endpoint, "ports": ports, "service_address": address, "tls": tls}
    return SwitchConfig(**{"device_id": 0, **values}, **parts)


def _tls(files: list[Path | None], where: str) -> SwitchTls | None:
    ca, certificate, key = files
    if (certificate is None) != (key is None):
        raise _wrong(f"{where}: only one of tls_certificate and tls_key", "give both or none")
    if ca is None and certificate is not None:
        raise _wrong(f"{where}: tls_certificate without tls_ca", "give the authority of the switch's certificate too")
    return None if ca is None else SwitchTls(ca, certificate, key)


_MORE_OF_SWITCH: dict[str, type] = {
    "slots": int, "election_id": int, "l2_forwarding": bool, "program": Path, "ports": list,
    "tls_ca": Path, "tls_certificate": Path, "tls_key": Path, "loop_ports": list,
}  # fmt: skip


def _port(rule: Any, where: str) -> PortRule:
    kinds = {"port": int, "network": str, "speed_gbps": int}
    values = _take(_table(rule, where), kinds, where, ("port", "network"))
    try:
        network = IPv4Network(values["network"])
    except ValueError as error:
        raise _wrong(f"{where}: network {values['network']!r}: {error}", "write A.B.C.0/24") from None
    return PortRule(values["port"], network, values.get("speed_gbps"))


def _numbers(values: list[Any], where: str) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(f"{where}: {value!r:.80}", "it is a list of integers")
    return tuple(values)


def _take(table: Mapping[str, Any], kinds: Mapping[str, type], where: str, required: Iterable[str]) -> dict[str, Any]:
    """Return the values of a table, each of its kind; a path is written as a text, a float may be written as an int."""
    _only_known(table, kinds, where)
    for name in required:
        if name not in table:
            raise _wrong(f"{where} has no {name}", f"it needs {', '.join(required)}")
    taken: dict[str, Any] = {}
    for name, value in table.items():
        kind = kinds[name]
        written: tuple[type, ...] = {Path: (str,), float: (int, float)}.get(kind, (kind,))
        if not isinstance(value, written) or isinstance(value, bool) != (kind is bool):
            words = " or ".join(_WORDS[each] for each in written)
            raise _wrong(f"{where} {name} = {value!r:.80}", f"it is {words}")
        taken[name] = kind(value)
    return taken


_WORDS = {str: "a text", int: "an integer", float: "a number", bool: "true or false", list: "a list"}
_KINDS = {"str": str, "float": float, "Path": Path, "Path | None": Path}


def _kind(annotation: Any) -> type:
    return _KINDS[annotation]


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{where} is {value!r:.80}", "it is a table")
    return value


def _only_known(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = list(known)
    for name in table:
        if name not in names:
            raise _wrong(f"{where or 'the file'} has an unknown key {name!r}", _nearest(name, names))


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _wrong(what: str, hint: str) -> ClusterConfigError:
    return ClusterConfigError(what, hint=hint)
