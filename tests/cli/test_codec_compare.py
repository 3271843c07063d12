# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec compare`: its figures against formulas, what it prints and writes, and why cells are empty."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from hopsum.codec import CollectivePhase
from hopsum_cli.main import main
from hopsum_evaluation.baselines.suresh import Sk
from hopsum_evaluation.compare import compare
from hopsum_evaluation.compare.compare import error_plots, show
from hopsum_evaluation.compare.measure import Cell, ComparisonPlan, measure
from hopsum_evaluation.compare.methods import CANDIDATES, Bits, EstimatorMethod, Theory, count_bits
from hopsum_evaluation.compare.vectors import DENSITY, VECTORS, make_vectors, recorded_origin
from hopsum_wire import Op

from ..support.printed import usage_error

pytestmark = pytest.mark.system
BY_LABEL = {each.label: each for each in CANDIDATES}
TINY = ("codec", "compare", "--scale", "0.0625", "--steps", "3")


def plan_of(*labels: str, **changes: Any) -> ComparisonPlan:
    settings: dict[str, Any] = {
        "candidates": [BY_LABEL[label] for label in labels], "vectors": ("gaussian",), "workers": (1, 4),
        "elements": 1 << 14, "steps": 4, "seed": 5, "identical": True,
    }  # fmt: skip
    return ComparisonPlan(**(settings | changes))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*TINY, "--json", *arguments])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_an_error_that_theory_does_not_expect_is_told() -> None:
    right = Cell("gaussian", "thc", "thc", 4, 0.0100, 0.0001, 4, 8, 0.0102, 0.0001)
    wrong = Cell("gaussian", "thc", "thc", 4, 0.0100, 0.0001, 4, 8, 0.0110, 0.0001)
    assert right.agrees
    assert wrong.agrees is False
    assert Cell("gaussian", "thc", "thc", 4, reason="none").agrees is None
    console = Console(width=120, record=True, file=io.StringIO())
    show([wrong], plan_of("thc", workers=(4,)), console)
    assert "NO: n = 4" in console.export_text()


def test_bits_are_those_of_payloads() -> None:
    cell = measure(plan_of("thc"), BY_LABEL["thc"], "gaussian", 4)
    assert cell.bits_up == 4 + 32 / 1024
    assert cell.bits_down == 4 + 32 / 1024
    narrow = measure(plan_of("thc:bits=3"), BY_LABEL["thc:bits=3"], "gaussian", 4)
    assert narrow.bits_up == narrow.bits_down == 3 + 32 / 1024
    assert count_bits([CollectivePhase(Op.ADD32, np.zeros((2, 1024), np.uint8), 300)], 300) == Bits(32, 32)


@pytest.mark.parametrize("kind", ["gradient", "gaussian", "heavy", "sparse"])
def test_every_formula_holds_on_every_kind_of_vectors(kind: str) -> None:
    plan = plan_of(*BY_LABEL, elements=4000, steps=5)
    cells = {label: measure(plan, candidate, kind, 4) for label, candidate in BY_LABEL.items()}
    told = {label for label, cell in cells.items() if cell.agrees is not None}
    ours = {"thc", "thc:bits=3", "thc:bits=2", "thc:result_bits=8", "thc:rounding=stochastic", "thc-published"}
    assert ours | {"uhc:bits=8", "sb", "svk"} <= told
    assert [label for label, cell in cells.items() if cell.agrees is False] == []


def test_equal_elements_are_rounded_without_error() -> None:
    assert EstimatorMethod(Sk()).theory(np.full(1024, 3, np.float32), workers=4, seed=1) == Theory(0.0, 0.0)


def test_json_has_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = run_json(capsys, "--workers", "2,32", "--codecs", "thc,fixed", "--output-dir", str(tmp_path))
    cells = {(cell["vectors"], cell["method"], cell["workers"]): cell for cell in report["cells"]}
    methods = report["methods"]
    assert {"thc", "fixed"} <= set(methods)
    assert set(cells) == {(kind, method, n) for kind in VECTORS for method in methods for n in (2, 32)}
    for cell in cells.values():
        assert (cell["nmse"] is None) == (cell["reason"] is not None)
        if cell["nmse"] is not None:
            assert 0 <= cell["nmse"] < 1
            assert cell["nmse_se"] >= 0
            assert 0 < cell["bits_up"] <= 34
            assert cell["theory"] is None
    assert report["gradients"]["steps_before"] == {"early": 20, "late": 150}
    assert {"seed", "steps", "elements", "identical", "machine", "versions", "commit", "seconds"} <= set(report)


def test_impossible_cell_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*TINY, "--workers", "4,32", "--codecs", "thc,thc-published", "--vectors", "gaussian,sparse")
    arguments += ("--no-plots",)
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "- thc-published; n = 32: 32 workers * granularity 30 = 960 overflows a lane" in " ".join(shown.split())


def test_the_least_error_at_equal_bits_is_printed() -> None:
    wide = Cell("gaussian", "wide", "thc", 4, 0.01, 0.001, 4, 8)
    narrow = Cell("gaussian", "narrow", "thc", 4, 0.02, 0.001, 4, 4)
    console = Console(width=120, record=True, file=io.StringIO())
    show([wide, narrow], plan_of("thc", workers=(4,)), console)
    rows = [line.split() for line in console.export_text().splitlines() if " bits " in line and "(" in line]
    least = {row[0]: row[2:] for row in rows if row[0][0].isdigit()}
    assert least == {
        "4.5": ["narrow", "(0.020)"], "6.5": ["narrow", "(0.020)"],
        "8.5": ["wide", "(0.010)"], "16.5": ["wide", "(0.010)"],
    }  # fmt: skip


def test_plots_hold_the_points_they_were_given_and_leave_out_what_is_exact() -> None:
    def cell(method: str, family: str, workers: int, nmse: float | None, bits: float) -> dict[str, Any]:
        return {"vectors": "gaussian", "method": method, "family": family, "workers": workers, "nmse": nmse,
                "bits_up": bits}  # fmt: skip

    cells = [
        cell("thc", "thc", 1, 0.2, 4.0),
        cell("thc", "thc", 4, 0.1, 4.0),
        cell("thc:bits=2", "thc", 4, 0.5, 2.0),
        cell("fixed", "fixed", 4, 1e-16, 32.0),
        cell("sb", "sk", 4, None, 1.0),
    ]
    bits, workers = error_plots(cells, {"gaussian": "Gaussian"})
    assert bits.title == "Error against bits, Gaussian, 4 workers"
    assert [(each.name, list(each.x), list(each.y)) for each in bits.series] == [("thc", [2.0, 4.0], [0.5, 0.1])]
    found = {each.name: (list(each.x), list(each.y)) for each in workers.series}
    assert found == {"thc": ([1, 4], [0.2, 0.1]), "thc:bits=2": ([4], [0.5])}


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "find_spec", lambda _: None)
    assert main(TINY) == 1
    assert "pip install 'hopsum[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "'0': a whole number of 1 to 64"),
        (["--vectors", "gaussian,laplace"], "'laplace': one of gradient"),
        (["--codecs", "thc,zip"], "argument --codecs: 'zip': no codec, and no other method; there are thc, thc:bits=3"),
        (["--codecs", ""], "argument --codecs: '': no codec, and no other method"),
        (["--codecs", "sv"], "no other method; did you mean svk?"),
        (["--codecs", "thc:bit=2"], "argument --codecs: codec thc has no option 'bit'"),
        (["--codecs", "fixed,thc:bits=99"], "argument --codecs: thc with codes of 99 bits: 2, 3, 4"),
        (["--steps", "1"], "'1': a whole number of 2 or more"),
        (["--scale", "0.01"], "at least 1024 elements"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in usage_error(capsys, main, "codec", "compare", *arguments)


def test_vectors_are_what_they_are_called() -> None:
    for kind in VECTORS:
        three = make_vectors(kind, 3, 4096, 7, identical=False)
        again = make_vectors(kind, 2, 4096, 7, identical=False)
        assert all(x.dtype == np.float32 and x.flags.c_contiguous for x in three)
        assert all(np.array_equal(x, y) for x, y in zip(three, again, strict=False))
        assert not np.array_equal(three[0], three[1])
        same = make_vectors(kind, 3, 4096, 7, identical=True)
        assert all(np.array_equal(x, three[0]) for x in same)
    assert np.count_nonzero(make_vectors("sparse", 1, 4096, 7, identical=False)[0]) == round(DENSITY * 4096)
    with pytest.raises(ValueError, match="gradients of 32 workers were recorded, not of 33"):
        make_vectors("gradient", 33, 0, 7, identical=False)


def shares_of_labels(labels: NDArray[np.int64], moments: dict[str, int], seed: int, batch: int) -> NDArray[np.float64]:
    """Return the share of each class in every minibatch of the recording, float64[moments, workers, classes].

    They follow from the seed: integers, the same on every processor. Every step draws four minibatches more.
    """
    draw, found = np.random.default_rng(seed), []
    for step in range(max(moments.values()) + 1):
        if step in moments.values():
            drawn = [labels[draw.integers(0, len(labels), batch)] for _ in range(32)]
            found.append([np.bincount(each, minlength=10) / batch for each in drawn])
        draw.integers(0, len(labels), 4 * batch)
    return np.array(found)


def test_recorded_gradients_are_those_of_a_softmax_on_the_minibatches_of_their_seed() -> None:
    """The last bias's gradient is the mean of what the model expected, less the shares of the labels.

    So with the shares of the right minibatch it becomes probabilities, and with those of another one it does not. This
    is a law of every gradient of cross-entropy: it asks nothing about how this processor rounds.
    """
    pytest.importorskip("torch")
    from hopsum_evaluation.demo.digits_network import load_images

    origin = recorded_origin()
    labels = load_images("digits").train_y.numpy()
    shares = shares_of_labels(labels, origin["steps_before"], origin["seed"], origin["batch"])
    kinds = ("gradient", "gradient-late")
    recorded = np.stack([make_vectors(kind, 32, 0, 0, identical=False) for kind in kinds])
    assert recorded.shape == (2, 32, 10067)
    bias = recorded[..., -10:].astype(np.float64)
    rounding = 10 * origin["batch"] * 2.0**-23  # of ten float32 means over a minibatch
    expected = bias + shares
    assert expected.min() > -rounding
    assert np.abs(expected.sum(axis=2) - 1).max() < rounding
    another = bias[0] + np.roll(shares[0], 1, axis=0)
    assert np.count_nonzero(another.min(axis=1) < -rounding) > 16, "most do not fit their neighbour's minibatch"
