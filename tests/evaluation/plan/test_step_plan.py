# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`, `hopsum plan paper` and the bytes of a plan: their arithmetic, and arguments that they refuse."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hopsum.codec import Codec, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch
from hopsum_cli.main import main
from hopsum_evaluation.plan import step_plan
from hopsum_evaluation.plan.traffic import PlanError, ring_traffic, summed_traffic
from hopsum_wire import Op
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES

from ...support.printed import usage_error

JOB = ("--elements", "2M", "--compute", "100ms", "--rate", "100mbit")
CHUNK_S = 1e-5
VECTOR_S = 1e-3
ELEMENT_S, FIRST_S = 2e-9, 5e-10


@pytest.fixture(autouse=True)
def _costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured costs are other on every machine: here they are given."""
    monkeypatch.setattr(step_plan, "measure_network", lambda seed: (CHUNK_S, VECTOR_S, ""))
    monkeypatch.setattr(step_plan, "measure_codec", lambda *_, **__: (ELEMENT_S, FIRST_S))


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_step_is_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, *JOB, "--codec", "thc")
    rows = {row["method"]: row for row in report["methods"]}
    ring, thc = rows["ring fp32"], rows["thc"]
    assert ring["wire_s"] == pytest.approx(2 * 3 / 4 * 8e6 * 8 / 1e8, rel=0.06)
    assert ring["step_s"] == pytest.approx(0.1 + ring["wire_s"])
    assert thc["codec_s"] == pytest.approx(2e6 * ELEMENT_S)
    assert thc["network_s"] == pytest.approx(2e6 / 1024 * CHUNK_S + 8 * VECTOR_S, rel=0.01)
    assert thc["wire_s"] == pytest.approx(2e6 * 4.6 / 1e8, rel=0.02)
    # Nothing passes the wire before the ranges are known.
    assert thc["allreduce_s"] == pytest.approx(thc["wire_s"] + 2e6 * FIRST_S)
    assert 0 < thc["nmse"] < 0.05
    two_shot = rows["two-shot:bits=4"]
    assert two_shot["codec_s"] == pytest.approx(2e6 * ELEMENT_S)
    assert two_shot["allreduce_s"] == two_shot["wire_s"] + two_shot["codec_s"], "one after the other"
    assert two_shot["nmse"] == pytest.approx(0.018, rel=0.05)


def test_a_switch_on_every_host_shares_its_link_with_the_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """Of four hosts each sends three quarters of its UPDATEs, and of its share's RESULTs as many to three workers."""
    middle, hosts = (
        plan(capsys, *JOB, "--codec", "thc", "--placement", each)["methods"] for each in ("fabric", "hosts")
    )
    assert middle[:-1] == hosts[:-1], "rings have no switch"
    passed = 0.75 * (middle[-1]["up_bytes"] + middle[-1]["down_bytes"])
    assert hosts[-1]["up_bytes"] == hosts[-1]["down_bytes"] == passed
    assert hosts[-1]["wire_s"] == pytest.approx(passed * 8 / 1e8)


def test_overlap_hides_all_but_the_last_vector(capsys: pytest.CaptureFixture[str]) -> None:
    for share, hidden_s in (("0.5", 0.05), ("1", 0.1)):
        for row in plan(capsys, *JOB, "--overlap", share)["methods"]:
            exposed_s = max(row["allreduce_s"] / 8, row["allreduce_s"] - hidden_s)
            assert row["step_s"] == pytest.approx(0.1 + exposed_s)


def test_a_codec_that_the_job_cannot_have_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, *JOB, "--workers", "64")
    assert "thc:bits=3" in report["refused"]
    assert main(["plan", *JOB]) == 0
    assert "2,000,000 elements, 4 workers, links of 100 Mbit/s, computing 100 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--compute", "1s"), "one of the arguments --elements --bytes is required"),
        (("--bytes", "1MB"), "--compute"),
        ((*JOB, "--workers", "1"), "--workers: '1': a whole number of 2 to 64"),
        ((*JOB, "--overlap", "2"), "--overlap: '2': a number of 0 to 1"),
        ((*JOB, "--rate", "1 furlong"), "'1 furlong' is no rate; like 1gbit"),
        (("paper", "--minibatch", "0s"), "minibatch_s: 0, where more than 0"),
    ],
)
def test_arguments_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in usage_error(capsys, main, "plan", *arguments)


def test_costs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    whole_s, first_s = step_plan.measure_codec(make_codec("fixed", workers=1, backend="numpy"), 1.0, 1, 10_000)
    assert 0 < first_s < whole_s < 1e-3
    chunk_s, vector_s, missing = step_plan.measure_network(1)
    assert missing or (0 < chunk_s < 0.1 and chunk_s < vector_s < 1)


def test_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "paper")
    assert [claim["reproduced"] for claim in report["claims"]] == [True] * 5
    assert report["overhead_bound"]["0.2"][15] == pytest.approx(16 - 0.2 * 16**2 * 233e6 / (200 * 0.2 * 125e6))
    assert main(["plan", "paper", "--minibatch", "1s"]) == 1


WORKERS = 3
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("thc", {}),
    ("thc", {"bits": 3}),
    ("thc", {"bits": 2}),
    ("thc", {"result_bits": 8}),
    ("thc", {"rounding": "stochastic", "lane_bits": 16}),
    ("uhc", {"bits": 8}),
    ("fixed", {}),
]


def exchanged(codec: Codec, vectors: list[np.ndarray]) -> list[tuple[Op, int, int, int]]:
    """Run an all-reduce; return op, chunks, frame bytes up and down of each phase."""
    ranks = [codec.start(x, ReductionContext(3, 1, rank)) for rank, x in enumerate(vectors)]
    found = []
    while (phase := ranks[0].phase) is not None:
        payloads = [rank.phase.payloads for rank in ranks if rank.phase is not None]
        results, contributors = simulate_switch(phase.op, payloads, codec.lookup)
        chunks = len(results)
        up, down = (each.nbytes + chunks * FRAME_OVERHEAD_BYTES for each in (payloads[0], results))
        found.append((phase.op, chunks, up, down))
        for rank in ranks:
            rank.on_results(results, contributors)
    return found


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("elements", [1, 1024, 1025, 300_000])
def test_bytes_are_those_that_the_codec_hands_over(name: str, options: dict[str, Any], elements: int) -> None:
    codec = make_codec(name, workers=WORKERS, backend="numpy", **options)
    rng = np.random.default_rng(elements)
    found = exchanged(codec, [rng.standard_normal(elements, dtype=np.float32) for _ in range(WORKERS)])
    traffic = summed_traffic(codec, elements, 1, 1.0)
    assert traffic == (sum(f[2] for f in found), sum(f[3] for f in found), sum(f[1] for f in found), len(found))


@pytest.mark.parametrize(("name", "up", "down"), [("thc", 4, 4), ("thc:bits=3", 3, 3), ("thc:bits=2", 2, 2),
                                                  ("thc:result_bits=8", 4, 8)])  # fmt: skip
def test_an_element_has_its_bits_and_its_share_of_headers_and_ranges(name: str, up: int, down: int) -> None:
    """A chunk of 1,024 elements has headers of 74 bytes, and so has each chunk of 256 ranges."""
    elements = 1024 * 256 * 10
    traffic = summed_traffic(make_codec(name, workers=4, backend="numpy"), elements, 1, 1.0)
    extra = 8 * 74 / 1024 + 8 * (1024 + 74) / (1024 * 256)
    assert FRAME_OVERHEAD_BYTES == 74
    assert 8 * traffic.up_bytes / elements == pytest.approx(up + extra)
    assert 8 * traffic.down_bytes / elements == pytest.approx(down + extra)


@pytest.mark.parametrize("density", [0.002, 0.05, 0.4])
def test_bytes_of_lossless_are_those_of_independent_supports(density: float) -> None:
    """The sketch is an expectation, and may have to grow: within a tenth. The rest is exact for this many."""
    elements = 400_000
    codec = make_codec("lossless", workers=WORKERS)
    rng = np.random.default_rng(7)
    count = round(density * elements)
    vectors = []
    for _ in range(WORKERS):
        x = np.zeros(elements, np.float32)
        x[rng.choice(elements, count, replace=False)] = rng.standard_normal(count, dtype=np.float32)
        vectors.append(x)
    found = exchanged(codec, vectors)
    traffic = summed_traffic(codec, elements, 1, density)
    assert traffic.phases == len(found) == 3
    assert traffic.up_bytes == pytest.approx(sum(f[2] for f in found), rel=0.1)
    assert traffic.down_bytes == pytest.approx(sum(f[3] for f in found), rel=0.1)


def test_vectors_are_cut_as_the_agent_cuts_them() -> None:
    codec = make_codec("thc", workers=4, backend="numpy")
    parts = [part.size for part in np.array_split(np.empty(10_007, np.float32), 5)]
    each = [summed_traffic(codec, size, 1, 1.0) for size in parts]
    whole = summed_traffic(codec, 10_007, 5, 1.0)
    assert (whole.up_bytes, whole.down_bytes, whole.chunks) == tuple(
        sum(getattr(one, name) for one in each) for name in ("up_bytes", "down_bytes", "chunks")
    )


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_a_ring_sends_what_walking_it_sends(workers: int) -> None:
    """Payload of n - 1 steps that add and n - 1 that hand on, cut into segments of 1448 bytes in frames of 1514."""
    elements = 1448 * 64 * 1000
    payload = sum(4 * elements / workers for _ in ("add", "hand on") for _ in range(workers - 1))
    traffic = ring_traffic(elements, workers, 4)
    assert traffic.up_bytes == traffic.down_bytes == pytest.approx(payload / 1448 * 1514)


def test_a_codec_without_sizes_is_refused() -> None:
    class Other:
        name = "other"

    with pytest.raises(PlanError, match="'other': no sizes"):
        summed_traffic(Other(), 10, 1, 1.0)  # type: ignore[arg-type]
