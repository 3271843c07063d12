# SPDX-License-Identifier: Apache-2.0
"""The TOML file: everything in it arrives, and what is wrong is named."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from hopsum.wire import HOPSUM_UDP_PORT
from hopsum_controlplane import SwitchEndpoint
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterConfigError,
    PortRule,
    SwitchConfig,
    config,
    load_config,
)

WHOLE = """
[controller]
database = "/var/lib/books.sqlite"
listen = "unix:/run/hopsum.sock"
metrics_listen = ""
lease_s = 30
heartbeat_s = 7.5
audit_s = 0
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
send_to = "127.0.0.1:47500"
slots = 512
election_id = 9
forward = true
ports = [{port = 1, network = "10.0.0.0/24"}, {port = 2, network = "10.0.0.128/25"}]
"""
SHORT = """
[controller]
database = "books.sqlite"
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
        send_to=("127.0.0.1", 47500),
        slots=512,
        election_id=9,
        forward=True,
    )
    assert load(tmp_path, WHOLE) == ClusterConfig(
        switches=(switch,),
        database=Path("/var/lib/books.sqlite"),
        listen="unix:/run/hopsum.sock",
        metrics_listen="",
        lease_s=30.0,
        heartbeat_s=7.5,
        audit_s=0.0,
        tls_certificate=Path("/etc/server.pem"),
        tls_key=Path("/etc/server.key"),
        tls_client_ca=Path("/etc/ca.pem"),
        admin_token_file=Path("/etc/admin.token"),
    )
    assert switch.service == ("127.0.0.1", 47500)
    assert switch.port_of(IPv4Address("10.0.0.127")) == 1
    assert switch.port_of(IPv4Address("10.0.0.128")) == 2  # the longer prefix
    assert switch.port_of(IPv4Address("10.0.1.0")) is None


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
        ('database = "/var/lib/books.sqlite"', "", r"\[controller\] has no database"),
        ("lease_s = 30", 'lease_s = "30"', r"\[controller\] lease_s = '30'; it is an integer or a number"),
        ("lease_s = 30", "lease_s = true", r"\[controller\] lease_s = True; it is an integer or a number"),
        ("lease_s = 30", "lease_s = 0.5", r"lease_s 0\.5; it is 1 \.\. 86400 seconds"),
        ("heartbeat_s = 7.5", "heartbeat_s = 16", r"heartbeat_s 16 with lease_s 30; it is 0\.1 \.\. 15"),
        ("audit_s = 0", "audit_s = -1", "audit_s -1; it is seconds, 0 for never"),
        ('tls_key = "/etc/server.key"', "", "only one of tls_certificate and tls_key"),
        ('"127.0.0.1:47500"', '"127.0.0.1"', "'127.0.0.1' is not an IPv4 address and a port"),
        ('"127.0.0.1:47500"', '"127.0.0.1:0"', r"port 0; ports are 1 \.\. 65535"),
        ("10.0.0.0/24", "10.0.0.1/24", "network '10.0.0.1/24': .*has host bits set; write"),
        ("10.0.0.128/25", "10.0.0.0/24", r"switch 'leaf1': network 10\.0\.0\.0/24 at several ports"),
        ("forward = true", "forward = 1", r"forward = 1; it is true or false"),
        ("election_id = 9", "election_id = true", r"election_id = True; it is an integer"),
        ("election_id = 9", "election_id = 0", r"election_id 0; it is 1 \.\. 9223372036854775807"),
        ('driver = "native"', 'driver = "nativ"', "no driver 'nativ' among native, bmv2, tofino; did you"),
        ('driver = "native"', 'driver = "tofino"', "switch 'leaf1': driver 'tofino' without a program; give"),
        ('driver = "native"', 'driver = "native"\nprogram = "x.conf"', "program x.conf for driver 'native'; leave"),
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
    text = SHORT.replace('"bmv2"', '"tofino"\nprogram = "/opt/hopsum.conf"\ndevice_id = 1')
    assert load(tmp_path, text).switches[0].program == Path("/opt/hopsum.conf")
    with pytest.raises(ClusterConfigError, match="switch 'leaf1': device id 0; Stratum's begin at 1"):
        load(tmp_path, text.replace("device_id = 1", "device_id = 0"))


def test_no_file_no_switch_one_name_twice(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError, match="cannot be read"):
        load_config(tmp_path / "nothing.toml")
    with pytest.raises(ClusterConfigError, match="no switches"):
        load(tmp_path, '[controller]\ndatabase = "x"\n')
    with pytest.raises(ClusterConfigError, match="several switches with one name: leaf1, leaf1"):
        load(tmp_path, WHOLE + WHOLE[WHOLE.index("[[switch]]") :])


def test_the_documented_file_is_right(tmp_path: Path) -> None:
    assert config.__doc__ is not None
    text = config.__doc__.split("::\n")[1].split("\n\nA worker")[0]
    assert load(tmp_path, text).switches[0].name == "leaf1"


def test_importing_the_cluster_needs_no_grpc() -> None:
    code = "import hopsum_controlplane.cluster, sys; sys.exit({'grpc', 'google.protobuf'} & set(sys.modules) != set())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
