# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology`: descriptions and their refusals, what it draws, and networks that it brings up and down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hopsum_cli.topology.topology_command import main
from hopsum_cli.topology.worker_commands import commands_for, print_events
from hopsum_labs.levels import LEVELS
from hopsum_topologies.commands import OutputLine, TaskEnded
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
from hopsum_topologies.network_control import port_losses, routes, stations

from ..support.processes import run_hopsum

pytestmark = pytest.mark.system
PROGRAM = str(LEVELS["ethernet"].solution / "aggregate.json")
CHUNKS = -(-6000 // 256)
"""Of the vector below."""
SUM = """
import hashlib, numpy, hopsum
with hopsum.connect(membership_wait_s=0, deadline_s=60) as job:
    vector = numpy.arange(6000, dtype=numpy.float32) * (job.rank + 1)
    mean = hopsum.allreduce(vector, job)
    print("mean", float(mean[-1]), hashlib.sha256(mean.tobytes()).hexdigest())
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_hopsum("topology", "run", *arguments, env={**os.environ, "HOPSUM_BACKEND": "numpy"})


def run_counted(path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = run(*arguments[:1], "--output", str(path), *arguments[1:])
    assert path.exists(), done.stderr
    counts = json.loads(path.read_text())
    return done, {each["link"]: each for each in counts["links"]} | {"lost": counts["lost"]}


def means(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return by label what workers have found."""
    return dict(re.findall(r"^\[(.+?)\] mean (.+)$", done.stdout, re.MULTILINE))


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^ {name} +{entry.workers} ", shown, re.MULTILINE) for name, entry in CATALOGUE.items())


def test_show_lists_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "two_rack", "--workers", "2"]) == 0
    about, *links = capsys.readouterr().out.splitlines()
    assert about.endswith("2 hosts, 3 switches, 4 links")
    assert links[0] == "  h1 10.0.0.1 (train 0) - leaf1 10.0.0.254"
    assert links[-1].endswith("spine 10.0.0.252, 100 Mbit/s")


def test_a_description_goes_out_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "shared", "--json"]) == 0
    (tmp_path / "net.json").write_text(capsys.readouterr().out)
    assert main(["show", str(tmp_path / "net.json")]) == 0
    shown = capsys.readouterr().out
    assert main(["show", "shared"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "ring"], "no topology 'ring': there are star"),
        (["show", "nowhere.json"], "nowhere.json cannot be read"),
        (["show", "net.json", "--workers", "2"], "--workers 2 is for networks of the catalogue: net.json says which"),
        (["run", "star", "--aggregate-at", "s2"], "--aggregate-at s2: switches of 'star' are s1"),
        (["run", "lossy_star", "--program", PROGRAM], "links h1-s1, h2-s1, h3-s1, h4-s1 lose frames by hopsum's own"),
    ],
)
def test_what_cannot_be_is_said(arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "star", "--", "ls"],
        ["run", "star", "--control", "ls"],
        ["run", "star", "--program", "nowhere.json"],
        ["run", "star", "--program", PROGRAM, "--aggregate-at", "s1"],
    ],
)
def test_what_does_not_go_together_is_a_matter_of_usage(arguments: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_workers_are_told_who_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_URL", "memory://elsewhere")
    commands = commands_for(topology("shared"), ["true"], {"h4": tmp_path / "1.json"}, "uhc")
    assert [(command.label, command.host) for command in commands] == [
        ("blue 0", "h1"), ("blue 1", "h2"), ("red 0", "h3"), ("red 1", "h4")
    ]  # fmt: skip
    assert "HOPSUM_URL" not in commands[0].environment, "of a job that is not installed"
    told = commands[3].environment
    assert told["HOPSUM_URL"] == f"file://{tmp_path}/1.json"
    assert (told["HOPSUM_RANK"], told["RANK"], told["WORLD_SIZE"], told["HOPSUM_CODEC"]) == ("1", "1", "2", "uhc")
    assert told["MASTER_ADDR"] == "10.0.0.3"


def test_lines_have_the_rank_in_front_and_the_worst_status_counts(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        OutputLine("1", "stdout", "on"),
        TaskEnded("1", 3),
        OutputLine("0", "stderr", ""),
        TaskEnded("0", 130),
        TaskEnded("2", 0),
    ]
    assert print_events(events) == 130
    captured = capsys.readouterr()
    assert captured.out == "[1] on\n"
    assert captured.err.splitlines()[1] == "[0] "
    assert "worker 1 ended with 3" in captured.err


@pytest.mark.parametrize("target", ["native", "mininet"], indirect=True)
def test_two_jobs_share_a_switch(target: str, tmp_path: Path) -> None:
    command = (sys.executable, "-c", SUM)
    done, links = run_counted(tmp_path / "counts", "shared", "--target", target, "--codec", "fixed", "--", *command)
    assert done.returncode == 0, done.stderr
    found = means(done)
    assert found.keys() == {"blue 0", "blue 1", "red 0", "red 1"}
    assert len(set(found.values())) == 1, "the jobs sum the same, each for itself"
    assert float(found["red 0"].split()[0]) == pytest.approx(5999 * 1.5, rel=1e-5)
    for number in range(1, 5):
        link = links[f"h{number}-s1"]
        assert min(link["frames_there"], link["frames_back"]) >= CHUNKS
        assert min(link["bytes_there"], link["bytes_back"]) > 4 * 6000


@pytest.mark.parametrize("target", ["native"], indirect=True)
def test_two_racks_reach_each_other_and_sum_flat_at_the_spine(target: str, tmp_path: Path) -> None:
    arguments = ("--target", target, "--workers", "4", "--codec", "fixed", "--aggregate-at", "spine")
    done, links = run_counted(tmp_path / "counts", "two_rack", *arguments, "--", sys.executable, "-c", SUM)
    assert done.returncode == 0, done.stderr
    assert "every host reaches every other and every switch" in done.stderr
    assert len(set(means(done).values())) == 1
    assert float(means(done)["3"].split()[0]) == pytest.approx(5999 * 2.5, rel=1e-5)
    for leaf, hosts in (("leaf1", ("h1", "h2")), ("leaf2", ("h3", "h4"))):
        up = links[f"{leaf}-spine"]
        there, back = (sum(links[f"{host}-{leaf}"][way] for host in hosts) for way in ("frames_there", "frames_back"))
        # A busy machine may lose some on the way, and send them again; links are counted one after the other.
        assert min(up["frames_there"], there, up["frames_back"], back) >= 2 * CHUNKS


@pytest.mark.parametrize("target", ["native", "bmv2", "mininet"], indirect=True)
def test_two_racks_sum_in_a_tree(target: str, tmp_path: Path) -> None:
    """One frame up for each chunk of a rack, not one for each of its workers."""
    arguments = ("--target", target, "--workers", "4", "--codec", "fixed", "--", sys.executable, "-c", SUM)
    done, links = run_counted(tmp_path / "counts", "two_rack", *arguments)
    assert done.returncode == 0, done.stderr
    assert "job train: 4 workers, summed at leaf1, leaf2, then at spine" in done.stderr
    assert len(set(means(done).values())) == 1
    assert float(means(done)["3"].split()[0]) == pytest.approx(5999 * 2.5, rel=1e-5)
    for leaf, hosts in (("leaf1", ("h1", "h2")), ("leaf2", ("h3", "h4"))):
        frames, below = links[f"{leaf}-spine"], sum(links[f"{host}-{leaf}"]["frames_there"] for host in hosts)
        assert CHUNKS < frames["frames_there"] < below


@pytest.mark.parametrize("target", ["native"], indirect=True)
def test_a_job_without_a_spine_is_not_installed_and_the_worst_status_is_ours(target: str, tmp_path: Path) -> None:
    """Two switches with workers at both: neither is above the other."""
    links = [{"ends": ["h1", "s1"]}, {"ends": ["h2", "s2"]}, {"ends": ["s1", "s2"]}]
    path = tmp_path / "chain.json"
    jobs = [{"name": "train", "workers": ["h1", "h2"]}]
    path.write_text(
        json.dumps({"name": "chain", "hosts": ["h1", "h2"], "switches": ["s1", "s2"], "links": links, "jobs": jobs})
    )
    script = 'echo "url=$HOPSUM_URL"; echo problem >&2; exit $((RANK * 5))'
    done = run(str(path), "--target", target, "--", "sh", "-c", script)
    assert done.returncode == 5, done.stderr
    assert "at s1 and s2, and no other switch is next to all of them" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] url=", "[1] url="]
    assert {"[0] problem", "[1] problem"} <= set(done.stderr.splitlines())


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
        for port, (ingress, egress) in port_losses(lossy, switch).items():
            far = lossy.links_of(switch)[port - 1].other(switch)
            simulated.update([f"{far}>{switch}"] * (ingress == 0.1) + [f"{switch}>{far}"] * (egress == 0.1))
    both = [way for link in lossy.links for way in (">".join(link.ends), ">".join(reversed(link.ends)))]
    assert simulated == Counter(both)
    assert port_losses(net, "leaf1") == {}


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
