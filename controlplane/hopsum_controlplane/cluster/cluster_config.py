# SPDX-License-Identifier: Apache-2.0
"""The configuration of a cluster, from a TOML file. docs/reference/configuration.md has the keys and their defaults.

A worker belongs to the port whose network has its address: the longest prefix, where several have. Links make trees of
depth two, a spine and the leaves below it::

    workers --- leaf1 --9-----1-- spine --2-----9-- leaf2 --- workers

A worker of a tree belongs to the leaf whose ports have its address, the leaf's port towards the spine left out. A
relative path, that of an address unix:PATH among them, is relative to the folder of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from hopsum_base.shown import name_hint
from hopsum_controlplane.devices.device import CONTROLLER_ELECTION_ID
from hopsum_controlplane.devices.drivers import check_target
from hopsum_controlplane.errors import ClusterConfigError, ControlPlaneError
from hopsum_controlplane.job_spec import MAX_PORT, MAX_UDP_PORT, SwitchEndpoint
from hopsum_controlplane.switch_tls import SwitchTls
from hopsum_wire import HOPSUM_UDP_PORT, MAX_SLOTS
from hopsum_wire.control import UNIX

MIN_LEASE_S, MAX_LEASE_S = 1.0, 86400.0
LOG_LEVELS = ("debug", "info", "warning", "error")
_MIN_HEARTBEAT_S = 0.1
_MAX_ELECTION_ID = (1 << 63) - 1


@dataclass(frozen=True)
class PortRule:
    """A rule of a switch port: workers with addresses of `network` are at switch port `port`.

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
    """The configuration of one switch. Nothing is checked before `check` is called.

    driver: kind of the switch, see devices. address, device_id: P4Runtime server and device.
    ports: one rule per network of workers. slots: number of slots that jobs may use.
    service_address: destination of the workers' datagrams. None: `endpoint` and the standard UDP port.
    election_id: 1 to 2^63 - 1. The controller with the highest one is the primary.
    l2_forwarding: whether the switch also forwards the workers' other Ethernet frames, see cluster.forwarding.
    program: compiler output, for a driver without an installed program.
    loop_ports: internal ports of the slots, by default the chip's first.
    tls: TLS files of the P4Runtime session, None for an unencrypted session.
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
    tls: SwitchTls | None = None

    @property
    def service(self) -> tuple[str, int]:
        """Return the IPv4 address and UDP port to which workers send."""
        return self.service_address or (self.endpoint.ip, HOPSUM_UDP_PORT)

    def rule_of(self, ip: IPv4Address, but: int | None = None) -> PortRule | None:
        """Return the rule of the longest network that has a worker's address, None without one.

        The rules of port `but` are left out.
        """
        # The port towards the spine may have a network too: its workers are at another leaf.
        having = [rule for rule in self.ports if ip in rule.network and rule.port != but]
        return max(having, key=lambda rule: rule.network.prefixlen) if having else None

    @property
    def speeds_gbps(self) -> dict[int, int]:
        """Return the speeds of the ports that have one, in Gbit/s, by port."""
        return {rule.port: rule.speed_gbps for rule in self.ports if rule.speed_gbps is not None}

    def check(self) -> None:
        """Raise ControlPlaneError for the first value that is wrong. No file is read, and no switch is asked."""
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
class LinkConfig:
    """A link between two switches, by name: the leaf's port towards the spine, and the spine's towards the leaf."""

    leaf: str
    leaf_port: int
    spine: str
    spine_port: int

    def __str__(self) -> str:
        """Return `LEAF port N to SPINE port M`."""
        return f"{self.leaf} port {self.leaf_port} to {self.spine} port {self.spine_port}"

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return switch and port of both ends, the leaf's first."""
        return (self.leaf, self.leaf_port), (self.spine, self.spine_port)


@dataclass(frozen=True)
class ClusterConfig:
    """The configuration of a controller and its switches. Nothing is checked before `check` is called.

    database: file of the database. links: make trees of switches.
    listen, metrics_listen: addresses of the service and of page and metrics, the latter empty for none.
    lease_s: seconds that a member of a job may be silent, unless the job says. heartbeat_s: the time between two
        heartbeats of a worker. reconcile_interval_s: the time between two audits of a switch, 0 for none.
    tls_certificate, tls_key: of the service, None for no TLS. tls_client_ca: authority of clients' certificates, None
        where clients need none. tls_client_names: file with the names that certificates may have, None for any.
    admin_token_file: file with the administrators' tokens, None where callers need none.
    """

    switches: tuple[SwitchConfig, ...]
    database: Path
    links: tuple[LinkConfig, ...] = ()
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
    log_level: str = "info"

    def switch(self, name: str) -> SwitchConfig:
        """Return the switch of this name. Raises ClusterConfigError when there is none."""
        for switch in self.switches:
            if switch.name == name:
                return switch
        raise _wrong(f"no switch {name!r}", name_hint(name, [switch.name for switch in self.switches]))

    @property
    def spines(self) -> tuple[str, ...]:
        """Return the names of the switches that have leaves, in the order of the links."""
        return tuple(dict.fromkeys(link.spine for link in self.links))

    def links_below(self, spine: str) -> tuple[LinkConfig, ...]:
        """Return the links of a spine to its leaves, in their order, an empty tuple for another switch."""
        return tuple(link for link in self.links if link.spine == spine)

    def check(self) -> None:
        """Raise ControlPlaneError for the first value that is wrong, of this, its switches or its links.

        No file is read, and no switch is asked.
        """
        if not self.switches:
            raise _wrong("no switches", "write a table [[switch]] for each")
        for switch in self.switches:
            switch.check()
        for what in ("name", "endpoint"):
            values = [getattr(switch, what) for switch in self.switches]
            if len(set(values)) < len(values):
                raise _wrong(f"several switches with one {what}: {', '.join(map(str, values))}", "give each its own")
        _check_links(self.links, [switch.name for switch in self.switches])
        for switch in self.switches:
            if not switch.ports and switch.name not in self.spines:
                raise _wrong(f"switch {switch.name!r} has no ports", "give each port its network of workers")
        networks = {switch.name: {rule.network: rule.port for rule in switch.ports} for switch in self.switches}
        _check_racks(self.links, networks)
        if not MIN_LEASE_S <= self.lease_s <= MAX_LEASE_S:
            raise _wrong(f"lease_s {self.lease_s:g}", f"it is {MIN_LEASE_S:g} .. {MAX_LEASE_S:g} seconds")
        # Two heartbeats fit into a lease, so that one may be lost.
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


def _check_links(links: Iterable[LinkConfig], switches: Collection[str]) -> None:
    """Raise ClusterConfigError naming the first link that does not fit the switches, or the links before it."""
    taken: dict[tuple[str, int], LinkConfig] = {}
    above: dict[str, LinkConfig] = {}
    below: dict[str, LinkConfig] = {}
    for link in links:
        for name, port in link.ends:
            if name not in switches:
                raise _wrong(f"link {link}: no switch {name!r}", name_hint(name, switches))
            if not 0 <= port <= MAX_PORT:
                raise _wrong(f"link {link}: port {port} of {name}", f"ports are 0 .. {MAX_PORT}")
        if link.leaf == link.spine:
            raise _wrong(f"link {link}: a switch linked to itself", "a link is between a leaf and a spine")
        for end in link.ends:
            if end in taken:
                raise _wrong(f"link {link}: {end[0]} port {end[1]} has the link {taken[end]}", "a port has one link")
            taken[end] = link
        if link.leaf in above:
            hint = f"a leaf has one link, to one spine; it has {above[link.leaf]}"
            raise _wrong(f"link {link}: leaf {link.leaf!r} has two spines, or two links to one", hint)
        above[link.leaf] = below[link.spine] = link
    for name in above:
        if name in below:
            what = f"switch {name!r} is a leaf ({above[name]}) and a spine ({below[name]})"
            raise _wrong(what, "a tree has two levels, leaves and a spine: no switch is both")


def _check_racks(links: Iterable[LinkConfig], networks: Mapping[str, Mapping[IPv4Network, int]]) -> None:
    """Raise ClusterConfigError when two leaves of a spine have one network. `networks` gives ports by switch."""
    found: dict[tuple[str, IPv4Network], str] = {}
    for link in links:
        for network, port in networks[link.leaf].items():
            if port == link.leaf_port:
                continue
            other = found.setdefault((link.spine, network), link.leaf)
            if other != link.leaf:
                what = f"network {network} is behind {other} and behind {link.leaf}, both below {link.spine}"
                raise _wrong(what, "a worker is connected to one leaf: give each network once")


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
    """Return IPv4 address and UDP port (1 .. 65535) of `A.B.C.D:PORT`. Raises ClusterConfigError for other texts."""
    ip, _, port = text.rpartition(":")
    try:
        address, number = IPv4Address(ip), int(port)
    except ValueError:
        raise _wrong(f"{text!r} is not an IPv4 address and a port", "write A.B.C.D:PORT") from None
    if not 1 <= number <= MAX_UDP_PORT:
        raise _wrong(f"{text!r}: port {number}", f"ports are 1 .. {MAX_UDP_PORT}")
    return str(address), number


# ---- the shape of the file ----------------------------------------------------------------------------


def _table(kind: type, but: Collection[str] = (), **more: Any) -> Any:
    """Make the shape of a table: a key for each field of a dataclass but some, and `more` keys as (type, default).

    A key without a default is required. msgspec refuses what has another shape, and `_refusal` says so in words.
    """
    types = get_type_hints(kind)
    keys: list[Any] = []
    for each in fields(kind):
        if each.name not in (*but, *more):
            keys.append((each.name, types[each.name], *(() if each.default is MISSING else (each.default,))))
    keys += [(name, *given) for name, given in more.items()]
    return msgspec.defstruct(kind.__name__, keys, forbid_unknown_fields=True, kw_only=True)


_OPTIONAL_PATH: Final = (Path | None, None)
_Port: Any = _table(PortRule)
_Link: Any = _table(LinkConfig)
_Switch: Any = _table(
    SwitchConfig,
    but=("endpoint", "tls"),
    device_id=(int, 0),
    mac=(str,),
    ip=(str,),
    ports=(list[_Port], []),
    service_address=(str | None, None),
    tls_ca=_OPTIONAL_PATH,
    tls_certificate=_OPTIONAL_PATH,
    tls_key=_OPTIONAL_PATH,
)
_Controller: Any = _table(ClusterConfig, but=("switches", "links"))
_File: Any = msgspec.defstruct(
    "_File",
    [("controller", _Controller), ("switch", list[_Switch], []), ("link", list[_Link], [])],
    forbid_unknown_fields=True,
)
_SHAPES: Final = {"controller": _Controller, "switch": _Switch, "ports": _Port, "link": _Link}
_WORDS: Final = {
    "str": "a text", "int": "an integer", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


def _cluster(document: Mapping[str, Any], folder: Path) -> ClusterConfig:
    for name in document:
        if name not in _File.__struct_fields__:
            raise _wrong(f"the file has an unknown key {name!r}", name_hint(name, _File.__struct_fields__))
    document = {"controller": {}, **document}

    def convert(kind: type, value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
        return folder / value if kind is Path else IPv4Network(value)

    try:
        file = msgspec.convert(document, _File, dec_hook=convert)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), document) from error
    controller = msgspec.structs.asdict(file.controller)
    controller["listen"] = _within(folder, file.controller.listen)
    switches = tuple(_switch(each, folder, f"[[switch]] {number}") for number, each in enumerate(file.switch))
    links = tuple(LinkConfig(**msgspec.structs.asdict(each)) for each in file.link)
    return ClusterConfig(switches, links=links, **controller)


def _switch(table: Any, folder: Path, where: str) -> SwitchConfig:
    values = msgspec.structs.asdict(table)
    endpoint = SwitchEndpoint(values.pop("mac"), values.pop("ip"))
    values["address"] = _within(folder, table.address)
    values["ports"] = tuple(PortRule(**msgspec.structs.asdict(each)) for each in table.ports)
    if table.service_address is not None:
        values["service_address"] = parse_address(table.service_address)
    ca, certificate, key = (values.pop(f"tls_{name}") for name in ("ca", "certificate", "key"))
    if (certificate is None) != (key is None):
        raise _wrong(f"{where}: only one of tls_certificate and tls_key", "give both or none")
    if ca is None and certificate is not None:
        raise _wrong(f"{where}: tls_certificate without tls_ca", "give the authority of the switch's certificate too")
    tls = None if ca is None else SwitchTls(ca, certificate, key)
    return SwitchConfig(endpoint=endpoint, tls=tls, **values)


def _within(folder: Path, address: str) -> str:
    """Return an address, one of unix:PATH with its path relative to a folder."""
    if address.startswith(UNIX):
        return f"{UNIX}{folder / address.removeprefix(UNIX)}"
    return address


def _refusal(told: str, document: Mapping[str, Any]) -> ClusterConfigError:
    """Say in the words of the file what msgspec refuses: the key, its value, and what would fit."""
    told, _, path = told.partition(" - at `$")
    value: Any = document
    shape: Any = _File
    where = ""
    for name, number in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name or int(number)]
        shape = _SHAPES.get(name, shape)
        if name in ("switch", "link"):
            where = f"[[{name}]]"
        elif name == "controller":
            where = "[controller]"
        else:
            where += f" {name or number}"
    named = re.search(r"field `(\w+)`", told)
    keys = list(shape.__struct_fields__)
    if named and "unknown" in told:
        return _wrong(f"{where} has an unknown key {named[1]!r}", name_hint(named[1], keys))
    if named:
        required = [each.name for each in msgspec.structs.fields(shape) if each.required]
        return _wrong(f"{where} has no {named[1]}", f"it needs {', '.join(required)}")
    if told.startswith("Expected `array`") and where in ("[[switch]]", "[[link]]"):
        name = where.strip("[]")
        return _wrong(f"[{name}] is one table", f"write [[{name}]], once for each {name}")
    expected = re.match(r"Expected `(\w+)", told)
    if expected:
        return _wrong(f"{where} = {value!r:.80}", f"it is {_WORDS.get(expected[1], expected[1])}")
    return _wrong(f"{where} = {value!r:.80}: {told}", "write A.B.C.0/24")


def _wrong(what: str, hint: str) -> ClusterConfigError:
    return ClusterConfigError(what, hint=hint)
