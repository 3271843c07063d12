# SPDX-License-Identifier: Apache-2.0
"""Descriptions: what is refused, what follows from the order of names, JSON, ways and losses, the catalogue."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hopsum_topologies.description import (
    CATALOGUE,
    DescriptionError,
    JobPlan,
    Link,
    Topology,
    as_document,
    from_document,
    load_topology,
    topology,
)
from hopsum_topologies.mininet_network import plan_of
from hopsum_topologies.network_control import losses, routes, stations

pytestmark = pytest.mark.system
GOOD: dict[str, Any] = {
    "name": "net",
    "summary": "two hosts",
    "hosts": ("a", "b"),
    "switches": ("s1", "s2"),
    "links": (Link(("a", "s1")), Link(("s1", "s2"), 1e6), Link(("b", "s2"), loss=0.25)),
    "jobs": (JobPlan("train", ("b", "a")),),
}
SPARE = (Link(("a", "s1")), Link(("b", "s2")))


def links(*more: Link) -> dict[str, Any]:
    return {"links": (*SPARE, *more)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Net"}, r"the name 'Net'; small letters"),
        ({"hosts": ()}, "0 hosts; 1 to 200"),
        ({"switches": ()}, "0 switches; 1 to 50"),
        ({"hosts": ("a", "b", "a")}, "several nodes named a"),
        ({"hosts": ("a", "b", "s1")}, "several nodes named s1"),
        ({"hosts": ("a", "much-too-long")}, "the name 'much-too-long'"),
        (links(Link(("s1", "s3"))), "link s1-s3 ends at s3"),
        (links(Link(("a", "b"))), "link a-b joins two hosts"),
        (links(Link(("s1", "s1"))), "link s1-s1 leads back"),
        (links(Link(("a", "s2"))), "host a has 2 links"),
        (links(), "no way from a to b, s2"),
        (links(Link(("s1", "s2")), Link(("s2", "s1"))), "4 links make a loop; 4 nodes are joined by 3"),
        (links(Link(("s1", "s2"), 0)), "link s1-s2: rate_bps 0; 10000 to 1e"),
        (links(Link(("s1", "s2"), float("nan"))), "rate_bps nan"),
        (links(Link(("s1", "s2"), delay_s=-1)), "delay_s -1; 0 to 10 seconds"),
        (links(Link(("s1", "s2"), loss=1.0)), "loss 1; a probability"),
        ({"jobs": (JobPlan("x", ()),)}, "job 'x' of 0 workers"),
        ({"jobs": (JobPlan("x", ("s1",)),)}, "job 'x' has a worker s1; hosts are a, b"),
        ({"jobs": (JobPlan("x", ("a",)), JobPlan("y", ("a", "b")))}, "host a is a worker 2 times"),
        ({"jobs": (JobPlan("x", ("a",)), JobPlan("x", ("b",)))}, "several jobs named x"),
    ],
)
def test_what_cannot_be_is_refused_in_words(change: dict[str, Any], message: str) -> None:
    Topology(**GOOD)
    with pytest.raises(DescriptionError, match=rf"topology '\w+': .*{message}"):
        Topology(**{**GOOD, **change})


def test_addresses_ports_and_interfaces_follow_from_the_order() -> None:
    net = Topology(**GOOD)
    assert [net.ip(node) for node in net.nodes] == ["10.0.0.1", "10.0.0.2", "10.0.0.254", "10.0.0.253"]
    assert net.mac("b") == "02:00:00:00:02:01"
    middle = net.links[1]
    assert [(net.port(switch, middle), net.interface(switch, middle)) for switch in net.switches] == [
        (2, "s1-2"),
        (1, "s2-1"),
    ]
    assert net.interface("a", net.links[0]) == "eth0"
    assert net.switches_of(net.jobs[0]) == ("s2", "s1")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_network_of_the_catalogue_is_one(name: str) -> None:
    net = topology(name)
    addresses = [net.ip(node) for node in net.nodes] + [net.mac(node) for node in net.nodes]
    assert len(set(addresses)) == len(addresses)
    home = [net.interface(end, link) for link in net.links for end in link.ends if end in net.switches]
    assert len(set(home)) == len(home), "they share a namespace"
    assert max(map(len, home)) <= 15
    assert from_document(json.loads(json.dumps(as_document(net)))) == net
    assert {host for job in net.jobs for host in job.workers} == set(net.hosts)
    for switch in net.switches:
        assert routes(net, switch).keys() == set(net.nodes) - {switch}
        assert len(stations(net, switch)) == len(net.nodes) - 1
        assert set(routes(net, switch).values()) == set(range(1, len(net.links_of(switch)) + 1))
    plan = plan_of(net, Path("folder"))
    ends = [end for link in plan["links"] for end in link["ends"] if end["port"]]
    assert {(end["node"], end["port"]) for end in ends} == {
        (each["name"], port) for each in plan["switches"] for port in each["interfaces"]
    }


def test_ways_through_two_racks() -> None:
    net = topology("two_rack", 4)
    assert routes(net, "leaf1") == {"h1": 1, "h2": 2, "spine": 3, "leaf2": 3, "h3": 3, "h4": 3}
    assert routes(net, "spine") == {"leaf1": 1, "h1": 1, "h2": 1, "leaf2": 2, "h3": 2, "h4": 2}


def test_a_spine_is_next_to_all_switches_with_workers() -> None:
    racks = topology("two_rack", 4)
    (job,) = racks.jobs
    assert racks.spine_of(job) == "spine"
    assert str(racks.link_between("spine", "leaf2")) == str(racks.link_between("leaf2", "spine")) == "leaf2-spine"
    assert racks.spine_of(JobPlan("one", ("h1", "h2"))) is None, "one switch needs no other"
    at_spine = Link(("h5", "spine"))
    grown = replace(racks, hosts=(*racks.hosts, "h5"), links=(*racks.links, at_spine), jobs=())
    assert grown.spine_of(JobPlan("all", grown.hosts)) is None, "it has a worker itself"
    assert grown.spine_of(job) == "spine"


def test_a_direction_of_a_link_is_lost_once() -> None:
    net = topology("two_rack", 2)
    lossy = replace(net, links=tuple(replace(link, loss=0.1) for link in net.links))
    simulated: Counter[str] = Counter()
    for switch in lossy.switches:
        for port, (ingress, egress) in losses(lossy, switch).items():
            far = lossy.links_of(switch)[port - 1].other(switch)
            simulated.update([f"{far}>{switch}"] * (ingress == 0.1) + [f"{switch}>{far}"] * (egress == 0.1))
    both = [way for link in lossy.links for way in (">".join(link.ends), ">".join(reversed(link.ends)))]
    assert simulated == Counter(both)
    assert losses(net, "leaf1") == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], "the topology: Expected `object`, got `array`"),
        ({"links": None}, "links: Expected `array`, got `null`"),
        ({"host": []}, "the topology: Object contains unknown field `host`"),
        ({"links": [{"ends": ["a"]}]}, r"links\[0\].ends: Expected `array` of length 2, got 1"),
        (
            {"links": [{"ends": ["a", "s"], "rate_bps": "fast"}]},
            r"links\[0\].rate_bps: Expected `float \| null`, got `str`",
        ),
        ({"links": [{"ends": ["a", "s"], "loss": True}]}, r"links\[0\].loss: Expected `float`, got `bool`"),
        ({"links": [{"ends": ["a", "s"], "speed": 1}]}, r"links\[0\]: Object contains unknown field `speed`"),
        ({"jobs": [{"name": "x"}]}, r"jobs\[0\]: Object missing required field `workers`"),
        ({"name": None}, "name: Expected `str`, got `null`"),
        ({"hosts": "a"}, "hosts: Expected `array`, got `str`"),
    ],
)
def test_what_is_no_description_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    document = {"name": "n", "hosts": ["a"], "switches": ["s"], "links": [{"ends": ["a", "s"], "rate_bps": None}]}
    assert from_document(document).links == (Link(("a", "s")),)
    path = tmp_path / "net.json"
    path.write_text(json.dumps({**document, **change} if isinstance(change, dict) else change))
    with pytest.raises(DescriptionError, match=rf"net\.json: .*{message}"):
        load_topology(path)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text("{")
    for name in ("net.json", "nowhere.json"):
        with pytest.raises(DescriptionError, match=rf"{name} cannot be read"):
            load_topology(tmp_path / name)


def test_the_catalogue_knows_its_names_and_sizes() -> None:
    with pytest.raises(DescriptionError, match="no topology 'two_racks': did you mean two_rack"):
        topology("two_racks")
    with pytest.raises(DescriptionError, match="'shared' of 3 workers: it has a multiple of 2"):
        topology("shared", 3)
    assert topology("star", 7).jobs[0].workers == tuple(f"h{number}" for number in range(1, 8))
