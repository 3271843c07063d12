# SPDX-License-Identifier: Apache-2.0
"""The TOML file with what is wrong in it named, the page of settings, and the Grafana dashboard."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field, fields
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import SwitchEndpoint
from hopsum_controlplane.cluster import ClusterConfig, PortRule, SwitchConfig, load_config
from hopsum_controlplane.errors import ClusterConfigError
from hopsum_controlplane.web.prometheus_metrics import FAMILIES, PREFIX
from hopsum_wire import HOPSUM_UDP_PORT

from ...support.pages import DOCS, blocks

WHOLE = """
[controller]
database = "/var/lib/state.sqlite"
listen = "unix:/run/hopsum.sock"
metrics_listen = ""
lease_s = 30
heartbeat_s = 7.5
reconcile_interval_s = 0
tls_certificate = "/etc/server.pem"
tls_key = "/etc/server.key"
tls_client_ca = "/etc/ca.pem"
admin_token_file = "/etc/admin.token"

[[switch]]
name = "leaf1"
driver = "native"
address = "127.0.0.1:9559"
device_id = 3
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
service_address = "127.0.0.1:47500"
slots = 512
election_id = 9
l2_forwarding = true
ports = [{port = 1, network = "10.0.0.0/24"}, {port = 2, network = "10.0.0.128/25"}]
"""
SHORT = """
[controller]
database = "state.sqlite"
[[switch]]
name = "leaf1"
driver = "bmv2"
address = "127.0.0.1:9559"
mac = "02:00:00:00:00:fe"
ip = "10.0.0.254"
ports = [{port = 1, network = "0.0.0.0/0"}]
"""


def load(tmp_path: Path, text: str) -> ClusterConfig:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return load_config(path)


def test_a_whole_file(tmp_path: Path) -> None:
    switch = SwitchConfig(
        name="leaf1",
        driver="native",
        address="127.0.0.1:9559",
        device_id=3,
        endpoint=SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254"),
        ports=(PortRule(1, IPv4Network("10.0.0.0/24")), PortRule(2, IPv4Network("10.0.0.128/25"))),
        service_address=("127.0.0.1", 47500),
        slots=512,
        election_id=9,
        l2_forwarding=True,
    )
    assert load(tmp_path, WHOLE) == ClusterConfig(
        switches=(switch,),
        database=Path("/var/lib/state.sqlite"),
        listen="unix:/run/hopsum.sock",
        metrics_listen="",
        lease_s=30.0,
        heartbeat_s=7.5,
        reconcile_interval_s=0.0,
        tls_certificate=Path("/etc/server.pem"),
        tls_key=Path("/etc/server.key"),
        tls_client_ca=Path("/etc/ca.pem"),
        admin_token_file=Path("/etc/admin.token"),
    )
    assert switch.service == ("127.0.0.1", 47500)
    found = [switch.rule_of(IPv4Address(each)) for each in ("10.0.0.127", "10.0.0.128", "10.0.1.0")]
    # The rule of port 2 has the longer prefix.
    assert [rule and rule.port for rule in found] == [1, 2, None]


def test_a_short_file(tmp_path: Path) -> None:
    found = load(tmp_path, SHORT)
    assert (found.lease_s, found.heartbeat_s, found.switches[0].slots) == (15.0, 5.0, 2048)
    assert found.switches[0].service == ("10.0.0.254", HOPSUM_UDP_PORT)
    with pytest.raises(ClusterConfigError, match="no switch 'leaf'; did you mean leaf1"):
        found.switch("leaf")
    assert found.switch("leaf1") is found.switches[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lease_s", "leases_s", r"\[controller\] has an unknown key 'leases_s'; did you mean lease_s\?"),
        ("[[switch]]", "[[switches]]", "the file has an unknown key 'switches'; did you mean switch"),
        ("device_id = 3", "device = 3", r"\[\[switch\]\] 0 has an unknown key 'device'; did you mean device_id"),
        ("{port = 1,", "{prt = 1,", r"\[\[switch\]\] 0 ports 0 has an unknown key 'prt'; did you mean port\?"),
        ('name = "leaf1"', "", r"\[\[switch\]\] 0 has no name; it needs name, driver"),
        ('database = "/var/lib/state.sqlite"', "", r"\[controller\] has no database"),
        ("lease_s = 30", 'lease_s = "30"', r"\[controller\] lease_s = '30'; it is a number"),
        ("lease_s = 30", "lease_s = true", r"\[controller\] lease_s = True; it is a number"),
        ("lease_s = 30", "lease_s = 0.5", r"lease_s 0\.5; it is 1 \.\. 86400 seconds"),
        ("heartbeat_s = 7.5", "heartbeat_s = 16", r"heartbeat_s 16 with lease_s 30; it is 0\.1 \.\. 15"),
        ("reconcile_interval_s = 0", "reconcile_interval_s = -1", "interval_s -1; it is seconds, 0 for never"),
        ('tls_key = "/etc/server.key"', "", "only one of tls_certificate and tls_key"),
        ('"127.0.0.1:47500"', '"127.0.0.1"', "'127.0.0.1' is not an IPv4 address and a port"),
        ('"127.0.0.1:47500"', '"127.0.0.1:0"', r"port 0; ports are 1 \.\. 65535"),
        ("10.0.0.0/24", "10.0.0.1/24", r"\[\[switch\]\] 0 ports 0 network = '10.0.0.1/24': .*has host bits set; write"),
        ("10.0.0.128/25", "10.0.0.0/24", r"switch 'leaf1': network 10\.0\.0\.0/24 at several ports"),
        ("l2_forwarding = true", "l2_forwarding = 1", r"l2_forwarding = 1; it is true or false"),
        ("election_id = 9", "election_id = true", r"election_id = True; it is an integer"),
        ("election_id = 9", "election_id = 0", r"election_id 0; it is 1 \.\. 9223372036854775807"),
        ('driver = "native"', 'driver = "nativ"', "no driver 'nativ' among native, bmv2, tofino; did you"),
        ('driver = "native"', 'driver = "tofino"', "switch 'leaf1': driver 'tofino' without a program; give"),
        ('driver = "native"', 'driver = "native"\nprogram = "x.conf"', r"program /.*x.conf for driver 'native'; leave"),
        ("port = 2", "port = 511", r"switch 'leaf1': port 511; ports are 0 \.\. 510"),
        ("slots = 512", "slots = 4096", r"4096 slots; a switch has 1 \.\. 2048"),
        ('"02:00:00:00:00:fe"', '"fe"', "'fe' is not the MAC address of a host"),
        ("ports = [", "ports = []\n#", "switch 'leaf1' has no ports"),
        ("[controller]", "[controller", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(ClusterConfigError, match=message) as error:
        load(tmp_path, WHOLE.replace(old, new))
    assert "cluster.toml" in str(error.value)


def test_a_tofino_switch(tmp_path: Path) -> None:
    more = '"tofino"\nprogram = "/opt/hopsum.conf"\nloop_ports = [68, 196]'
    text = SHORT.replace('"bmv2"', more).replace("port = 1,", "port = 1, speed_gbps = 100,")
    switch = load(tmp_path, text).switches[0]
    assert switch.program == Path("/opt/hopsum.conf")
    assert (switch.loop_ports, switch.speeds_gbps) == ((68, 196), {1: 100})
    for old, new, message in (
        ("[68, 196]", '[68, "196"]', "loop_ports 1 = '196'; it is an integer"),
        ('driver = "tofino"\nprogram = "/opt/hopsum.conf"', 'driver = "bmv2"', "loop_ports or speed_gbps for driver"),
        ("loop_ports", "device_id = -1\nloop_ports", "device id -1; the first chip of a switch is 0"),
    ):
        assert old in text
        with pytest.raises(ClusterConfigError, match=message):
            load(tmp_path, text.replace(old, new))


def test_no_file_no_switch_one_name_twice(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError, match="cannot be read"):
        load_config(tmp_path / "nothing.toml")
    with pytest.raises(ClusterConfigError, match="no switches"):
        load(tmp_path, '[controller]\ndatabase = "x"\n')
    with pytest.raises(ClusterConfigError, match="several switches with one name: leaf1, leaf1"):
        load(tmp_path, WHOLE + WHOLE[WHOLE.index("[[switch]]") :])


def test_the_documented_file_is_right(tmp_path: Path) -> None:
    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    assert load(tmp_path, text).switches[0].name == "leaf1"


TREE = """
[controller]
database = "/var/lib/state.sqlite"
""" + "".join(
    f"""
[[switch]]
name = "{name}"
driver = "native"
address = "127.0.0.1:{9559 + number}"
mac = "02:00:00:00:00:f{number}"
ip = "10.0.0.25{number}"
{ports}
"""
    for number, (name, ports) in enumerate(
        [
            ("leaf1", 'ports = [{port = 1, network = "10.0.1.0/24"}]'),
            ("leaf2", 'ports = [{port = 1, network = "10.0.2.0/24"}]'),
            ("spine", ""),
        ]
    )
)
(LINKS,) = blocks("operating", "Trees of switches", "text")
LINK1, LINK2 = re.findall(r"(?:.+\n)+", LINKS.replace('2"\nleaf_port = 9', '2"\nleaf_port = 8'))


def test_links_of_the_page_make_a_tree(tmp_path: Path) -> None:
    found = load(tmp_path, TREE + LINKS)
    assert found.spines == ("spine",)
    assert [str(link) for link in found.links_below("spine")] == [
        "leaf1 port 9 to spine port 1",
        "leaf2 port 9 to spine port 2",
    ]
    assert found.links_below("leaf1") == ()
    assert found.switch("spine").ports == ()


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("", "switch 'spine' has no ports"),
        (LINK1.replace("leaf1", "leaf"), "link leaf port 9 to spine port 1: no switch 'leaf'; did you mean leaf"),
        (LINK1.replace('spine"', 'other"'), "no switch 'other'; there are leaf1, leaf2, spine"),
        (LINK1.replace("= 9", "= 511"), r"port 511 of leaf1; ports are 0 \.\. 510"),
        (LINK1.replace("leaf1", "spine"), "a switch linked to itself; a link is between a leaf and a spine"),
        (LINK1 + LINK2.replace("= 2", "= 1"), "spine port 1 has the link leaf1 port 9 to spine port 1; a port has one"),
        (LINK1 + LINK1.replace("= 9", "= 8").replace("= 1", "= 2"), "leaf 'leaf1' has two spines, or two links to one"),
        (LINK1 + LINK2.replace('spine"', 'leaf1"'), "switch 'leaf1' is a leaf .* and a spine .*two levels"),
        (
            LINK1 + '[[link]]\nleaf = "spine"\nleaf_port = 3\nspine = "leaf1"\nspine_port = 3\n',
            "is a leaf .* and a spine",
        ),
        (LINK1.replace("leaf_port = 9", ""), r"\[\[link\]\] 0 has no leaf_port; it needs leaf, leaf_port, spine"),
        (LINK1.replace("leaf_port", "port"), r"\[\[link\]\] 0 has an unknown key 'port'"),
        (LINK1.replace("[[link]]", "[link]"), r"\[link\] is one table; write \[\[link\]\], once for each link"),
    ],
)
def test_links_that_make_no_tree(tmp_path: Path, links: str, message: str) -> None:
    with pytest.raises(ClusterConfigError, match=message):
        load(tmp_path, TREE + links)


def test_one_network_below_two_leaves(tmp_path: Path) -> None:
    twice = TREE.replace("10.0.2.0/24", "10.0.1.0/24") + LINK1 + LINK2
    with pytest.raises(
        ClusterConfigError, match=r"network 10\.0\.1\.0/24 is behind leaf1 and behind leaf2, both below"
    ):
        load(tmp_path, twice)
    behind = twice.replace("port = 1, network", "port = 8, network")  # leaf2's is behind its link, and leaf1's is not
    assert len(load(tmp_path, behind).links) == 2


PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
LABELS = {
    PREFIX + name + part: {*labels, *(["le"] if part == "_bucket" else [])}
    for name, kind, _, labels in FAMILIES
    for part in PARTS[kind]
}
KINDS = {PREFIX + name + part: kind for name, kind, *_ in FAMILIES for part in PARTS[kind]}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana" / "hopsum.json").read_text())
    return found


@pytest.fixture(scope="module")
def targets(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_metric_exists(targets: list[tuple[str, str]], dashboard: dict[str, Any]) -> None:
    queries = [each["query"] for each in dashboard["templating"]["list"]]
    asked = {name for text in (*queries, *(expr for expr, _ in targets)) for name in re.findall(rf"{PREFIX}\w+", text)}
    assert len(asked) > 10
    assert asked - set(LABELS) == set()


def test_every_label_is_one_of_its_metric(targets: list[tuple[str, str]], dashboard: dict[str, Any]) -> None:
    for each in dashboard["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"])
        assert match
        assert match[2] in LABELS[match[1]]
    for expr, legend in targets:
        names = re.findall(rf"{PREFIX}\w+", expr)
        for metric, label in re.findall(rf"({PREFIX}\w+)\{{(\w+)=", expr):
            assert label in LABELS[metric], expr
        kept = [set(re.split(r",\s*", found)) for found in re.findall(r"by \(([^)]*)\)", expr)]
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        for labels in kept or [LABELS[name] for name in names]:
            assert shown <= labels, (expr, legend)
        assert all(labels <= LABELS[name] for labels in kept for name in names), expr


def test_counters_are_asked_for_their_rates_and_gauges_are_not(targets: list[tuple[str, str]]) -> None:
    for expr, _ in targets:
        for metric in re.findall(rf"{PREFIX}\w+", expr):
            is_rate = re.search(rf"(rate|increase)\({metric}\{{[^}}]*\}}\[\$__rate_interval\]\)", expr) is not None
            assert is_rate == (KINDS[metric] != "gauge"), expr


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = any(a[at] + a[size] <= b[at] for a, b in ((one, other), (other, one)) for at, size in ("xw", "yh"))
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


PAGE = (DOCS / "reference" / "configuration.md").read_text()


def rows_after(words: str) -> dict[str, list[str]]:
    """Return the table below a sentence of the page, by the names in its first column."""
    (found,) = re.findall(rf"^{re.escape(words)}.*\n\n\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()]
    assert all(row[0].startswith("`") for row in cells)
    return {row[0].strip("`"): row[1:] for row in cells}


def known_keys(folder: Path, text: str) -> list[str]:
    """Return the keys that the reader of the file names when it refuses another one."""
    path = folder / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ClusterConfigError) as refused:
        load_config(path)
    return refused.value.hint.removeprefix("there are ").split(", ")


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("The keys of `[controller]`", ""),
        ("The keys of each `[[switch]]`", "[controller]\ndatabase = 'x'\n[[switch]]\n"),
        ("The keys of each `[[link]]`", "[controller]\ndatabase = 'x'\n[[link]]\n"),
    ],
)
def test_the_manual_has_every_key(tmp_path: Path, words: str, before: str) -> None:
    text = f"{before or '[controller]'}\nqqqqqqqq = 1\n"
    assert sorted(rows_after(words)) == sorted(known_keys(tmp_path, text))


@pytest.mark.parametrize(
    ("words", "config"),
    [("The keys of `[controller]`", ClusterConfig), ("The keys of each `[[switch]]`", SwitchConfig)],
)
def test_the_manual_has_the_defaults(words: str, config: Any) -> None:
    told = {key: row[1].strip("`") for key, row in rows_after(words).items()}
    made: dict[str, Field[Any]] = {each.name: each for each in fields(config)}
    optional = {name: each.default for name, each in made.items() if name in told and each.default is not MISSING}
    assert len(optional) >= 5
    expected = {name: _written(value) for name, value in optional.items()}
    assert {name: told[name] for name in optional} == expected


def _written(value: object) -> str:
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
