# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run and print the keys that are promised."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from typing import Any

import pytest

from hopsum.codec import make_codec
from hopsum_evaluation.bench import allreduce, dataplane, scaling
from hopsum_evaluation.bench.dilation import ProcessorQuotas
from hopsum_topologies.bmv2_process import bmv2_unavailable
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.shaping import BURST_BYTES

from ..support.printed import usage_error
from ..support.processes import run_hopsum

pytestmark = pytest.mark.system
FRAME_BYTES = 1538
"""The most that a frame is on the wire, with preamble and gap."""


def bench(*arguments: str) -> dict[str, Any]:
    done = run_hopsum("bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {"machine", "versions", "commit", "seed", "runs"} <= set(report)
    return report


RATES = {
    "pipeline": [
        "native.pipeline_codes_per_s",
        "interpreter.pipeline_codes_per_s",
        *(f"native.lookup{bits}_pipeline_codes_per_s" for bits in (4, 3, 2)),
    ],
    "sockets": [
        "native.socket_codes_per_s",
        "native.lookup4_socket_codes_per_s",
        "native.lookup4_packets_per_s",
        "native.socket_python_codes_per_s",
        "native.packets_per_s",
        "loopback_codes_per_s",
    ],
    "bmv2": ["bmv2.codes_per_s", "bmv2.packets_per_s"],
    "start": ["native.cold_start_s", "native.warm_start_s"],
}


def check(report: dict[str, Any], parts: set[str]) -> None:
    """See that what was measured has figures, and everything else has the key and no figure."""
    without_bmv2 = bmv2_unavailable() is not None
    for part, keys in RATES.items():
        for key in keys:
            if part in parts and not (without_bmv2 and "bmv2" in key):
                assert 0 < report[f"{key}_min"] <= report[key] <= report[f"{key}_max"], key
            else:
                assert report[key] is None, key
    assert 0 < report["memcpy_codes_per_s_min"] <= report["memcpy_codes_per_s"]
    assert (report["lanes"], report["workers"], report["seed"]) == (1024, 4, 1)
    assert len(report["programs"]["hopsum"]) == 64


def test_dataplane_without_bmv2() -> None:
    parts = {"pipeline", "sockets"}
    report = bench("dataplane", *(f"--only={part}" for part in parts), "--seconds=0.02", "--slots=31")
    check(report, parts)
    for gain in ("compiled_port_gain", "lookup4_pipeline_time", "lookup2_pipeline_time", "lookup4_socket_time"):
        assert report[f"native.{gain}"] > 0
    assert report["bound"]["socket"]["retransmits"] >= 0
    assert {"load_user", "load_system", "switch_user", "switch_system"} <= set(report["bound"]["loopback"])
    assert report["bound"]["native"]["ns_per_packet"] >= report["bound"]["native"]["least_ns_per_packet"] > 0
    assert report["bound"]["native"]["copy_ns_per_packet"] > 0
    assert all(bound["text"] for bound in report["bound"].values())


def test_dataplane_on_bmv2() -> None:
    report = bench("dataplane", "--only=bmv2", "--seconds=0.05", "--runs=1")
    check(report, {"bmv2"})
    assert ("bmv2" in report["versions"]) == (bmv2_unavailable() is None)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is not installed")
def test_scaling() -> None:
    """Means are held against numpy's by the benchmark itself; bits on the busiest link against what must pass there."""
    report = bench(
        "scaling", "--host-counts=2,3", "--shard-counts=1,2,3", "--elements=50000", "--buckets=2", "--runs=1",
        "--window=32",
    )  # fmt: skip
    assert [(row["hosts"], row["shards"]) for row in report["rows"]] == [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3)]
    for row in report["rows"]:
        assert row["cpu_s_per_host"] >= row["worker_cpu_s"] > 0
        assert row["seconds"] > 0
        assert row["sent_again"] >= 0
        others = row["hosts"] - 1  # send a share of their codes to the busiest switch, and hear its sums
        assert row["busiest_bits_per_element"] >= others / row["shards"] * 4


def test_start() -> None:
    report = bench("dataplane", "--only=start", "--seconds=0.05", "--runs=1")
    check(report, {"start"})
    assert report["native.peak_bytes"] >= report["native.rss_bytes"] > 1 << 20
    assert report["native.peak_bytes_cold"] >= report["native.rss_bytes_cold"] > 1 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is not installed")
def test_allreduce() -> None:
    """Means are held against numpy's by the benchmark itself; bytes on the links against what must pass there."""
    sizes = {1_000: 2, 200_000: 196}
    """Elements, and chunks in both buckets."""
    report = bench(
        "allreduce", f"--elements={','.join(map(str, sizes))}", "--workers=2", "--buckets=2", "--runs=1",
        "--rates=500mbit,unshaped",
    )  # fmt: skip
    cases = [(entry["elements"], entry["rate"]) for entry in report["rates"]]
    assert cases == [(elements, rate) for rate in ("500mbit", "unshaped") for elements in sizes]
    assert report["rates"][0]["rate_bits_per_s"] == 500e6
    for entry in report["rates"]:
        elements, chunks = entry["elements"], sizes[entry["elements"]]
        subjects = entry["subjects"]
        gloo = {"gloo-fp32", "gloo-fp16"} if find_spec("torch") else set()
        assert set(subjects) == {"thc"} | gloo
        for name, found in subjects.items():
            assert 0 < found["seconds_min"] <= found["seconds"] <= found["seconds_max"]
            assert found["peak_rss_bytes"] >= found["ready_rss_bytes"] > 4 * elements
            assert min(found["first_seconds"], found["worker_cpu_s"]) > 0
            # The switch sleeps while gloo has its turn.
            assert found["switch_cpu_s"] > 0 or name in gloo
            shaped = entry["rate"] != "unshaped"
            assert (found["over_wire"] is not None) == shaped
            if shaped:
                # What passes in this time, besides one burst. Answers may come after the last result.
                passed = entry["rate_bits_per_s"] / 8 * found["seconds"]
                late = found["retransmits"] * FRAME_BYTES / found["all_reduces"]
                assert found["over_wire"] == pytest.approx(found["seconds"] / found["wire_seconds"], rel=0.01)
                assert 0 < found["wire_bytes_down"] < 1.05 * (passed + BURST_BYTES + late)
            least = chunks * (512 + 32 + 42) if name.startswith("thc") else elements * (4 if "32" in name else 2)
            assert least <= found["wire_bytes_up"]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is not installed")
@pytest.mark.parametrize(("placement", "share", "dilate"), [("server", 2.0, 2.0), ("hosts", 0.5, 1.0)])
def test_placements_carry_what_they_must_on_their_busiest_link(placement: str, share: float, dilate: float) -> None:
    """With two workers a server's link has the codes, or the results, of both; a host's has half of either."""
    elements, chunks = 200_000, 196
    report = bench(
        "allreduce", f"--placement={placement}", f"--elements={elements}", "--workers=2", "--buckets=2", "--runs=1",
        "--rates=500mbit", "--only=thc", f"--dilate={dilate if quotas_are_possible() else 1.0}",
    )  # fmt: skip
    assert report["placement"] == placement
    assert report["processors"].startswith(("oversubscribed: ", "dilated ", f"{report['machine']['cores']} processors"))
    assert report["rates"][0]["rate_bits_per_s"] == 500e6
    found = report["rates"][0]["subjects"]["thc"]
    down, up = chunks * (512 + 32 + 42), chunks * (512 + 32 + 42)
    least = share * (down + (up if placement == "hosts" else 0))
    late = 2 * found["retransmits"] * (down + up) / chunks / found["all_reduces"]
    assert least <= found["busiest_wire_bytes"] <= 1.1 * least + late + 20_000  # ranges, ARP and what was sent again
    assert found["busiest_bits_per_element"] == pytest.approx(8 * found["busiest_wire_bytes"] / elements, abs=0.001)
    assert 0.001 < found["nmse"] < 0.1  # of codes of 4 bits


def test_a_mean_may_err_as_much_as_the_codec_does_in_memory() -> None:
    """Twice that, and twice again where the rest of the mean before comes along. A mean without a rank errs more."""
    spelled = ("thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "thc:rounding=stochastic")
    most = {name: allreduce.nmse_limit(name, make_codec(name, workers=4, backend="numpy")) for name in spelled}
    assert most["thc"] == pytest.approx(4 * 0.024, rel=0.1)
    assert most["thc:bits=3"] == pytest.approx(4 * 0.078, rel=0.1)
    assert most["thc:bits=2"] == pytest.approx(2 * 0.28, rel=0.1), "it has no error feedback"
    assert most["thc:result_bits=8"] == pytest.approx(4 * 0.012, rel=0.1)
    assert most["thc:rounding=stochastic"] == pytest.approx(4 * 0.0196, rel=0.1)


def test_a_codec_of_the_ranks_runs_over_gloo_however_it_is_spelled() -> None:
    spelled = ("two-shot", "two-shot:bits=4", "two-shot:bits=8", "gloo-fp16", "gloo-fp32")
    assert all(map(allreduce.needs_gloo, spelled))
    assert not any(map(allreduce.needs_gloo, ("thc", "thc:bits=2", "uhc", "fixed")))


def quotas_are_possible() -> bool:
    try:
        ProcessorQuotas(2.0).close()
    except TopologyError:
        return False
    return True


def test_allreduce_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as refused:
        allreduce.main([])
    assert refused.value.code == 1
    assert "need root" in capsys.readouterr().err


REFUSED = {
    allreduce: ("--workers=1", "--runs=0", "--elements=9,3 --buckets=4", "--elements=x", "--only=nccl", "--rates=fast"),
    dataplane: ("--runs=0", "--seconds=0", "--workers=17", "--slots=4096", "--only=x"),
    scaling: ("--host-counts=1", "--host-counts=17", "--host-counts=a", "--shard-counts=0", "--runs=0"),
}


@pytest.mark.parametrize(("bench", "words"), [(bench, words) for bench, found in REFUSED.items() for words in found])
def test_a_benchmark_refuses(bench: Any, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words.split("=")[0] in usage_error(capsys, bench.main, *words.split())
