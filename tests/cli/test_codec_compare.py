# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec compare`: its figures against formulas, what it prints and writes, and why cells are empty."""

from __future__ import annotations

import io
import json
from math import hypot
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from hopsum.cli.codec import compare, main
from hopsum.cli.codec.measure import Cell, Plan, measure
from hopsum.cli.codec.methods import CANDIDATES, Bits, count_bits
from hopsum.cli.codec.plot import FLOOR, draw
from hopsum.cli.codec.report import show, with_error
from hopsum.cli.codec.vectors import DENSITY, VECTORS, make_vectors, recorded_origin
from hopsum.codec import Exchange, best_table
from hopsum.codec.table import expected_nmse
from hopsum.wire import Op

BY_LABEL = {each.label: each for each in CANDIDATES}
TINY = ("compare", "--scale", "0.0625", "--steps", "3")


def plan_of(*labels: str, **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "candidates": [BY_LABEL[label] for label in labels], "vectors": ("gaussian",), "workers": (1, 4),
        "elements": 1 << 14, "steps": 4, "seed": 5, "identical": True,
    }  # fmt: skip
    return Plan(**(settings | changes))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*TINY, "--json", *arguments])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_thc_on_one_gaussian_vector_errs_as_the_table_says(workers: int) -> None:
    cell = measure(plan_of("thc"), BY_LABEL["thc"], "gaussian", workers)
    assert cell.nmse is not None
    assert cell.nmse_se is not None
    assert cell.theory_se is not None
    assert abs(cell.nmse - expected_nmse(best_table(workers), workers)) < 5 * hypot(cell.nmse_se, cell.theory_se)
    assert cell.agrees


def test_an_error_that_theory_does_not_expect_is_told() -> None:
    right = Cell("gaussian", "thc", "thc", 4, 0.0100, 0.0001, Bits(4, 8, 0), 0.0102, 0.0001)
    wrong = Cell("gaussian", "thc", "thc", 4, 0.0100, 0.0001, Bits(4, 8, 0), 0.0110, 0.0001)
    assert right.agrees
    assert wrong.agrees is False
    assert Cell("gaussian", "thc", "thc", 4, reason="none").agrees is None
    console = Console(width=120, record=True, file=io.StringIO())
    show([wrong], plan_of("thc", workers=(4,)), console)
    assert "NO: n = 4" in console.export_text()


def test_bits_are_those_of_payloads() -> None:
    cell = measure(plan_of("thc"), BY_LABEL["thc"], "gaussian", 4)
    assert cell.bits is not None
    assert cell.bits.up == 4 + 32 / 1024
    assert cell.bits.down == 8 + 32 / 1024
    assert cell.bits.up_padding == (256 - 16) * 32 / (1 << 14)
    assert count_bits([Exchange(Op.ADD32, np.zeros((2, 1024), np.uint8), 300)], 300) == Bits(
        32, 32, (512 - 300) * 32 / 300
    )


def test_fixed_is_exact_but_for_float32() -> None:
    cell = measure(plan_of("fixed", identical=False), BY_LABEL["fixed"], "heavy", 4)
    assert cell.nmse is not None
    assert cell.nmse < 1e-13
    assert cell.bits is not None
    assert cell.bits.up == 32 + 32 / 256


def test_json_has_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = run_json(capsys, "--workers", "2,32", "--codecs", "thc,fixed", "--out", str(tmp_path))
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
    arguments = (*TINY, "--workers", "4,32", "--codecs", "thc", "--vectors", "gaussian,sparse", "--no-plots")
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "- thc, n = 32: 32 workers: a lane of 8 bits holds the sum of at most 17" in " ".join(shown.split())


def test_plots_show_every_panel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = run_json(
        capsys,
        "--workers",
        "1,2",
        "--codecs",
        "thc,fixed",
        "--vectors",
        "gradient,sparse",
        "--out",
        str(tmp_path),
    )
    png, svg = (Path(path) for path in report["plots"])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 20_000
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_figure_holds_the_points_it_was_given() -> None:
    plan = plan_of("thc", "fixed", workers=(4,))
    cells = [
        Cell("gaussian", "thc", "thc", 4, 0.003, 0.0001, Bits(4.03, 8, 0)),
        Cell("gaussian", "fixed", "fixed", 4, 1e-16, 0.0, Bits(32.1, 32, 0)),
    ]
    (panel,) = draw(cells, plan).axes
    points = {line.get_color(): line.get_xydata().tolist() for line in panel.lines if line.get_marker() != "None"}
    assert sorted(point for line in points.values() for point in line) == [[4.03, 0.003], [32.1, FLOOR]]
    assert len(points) == 2
    assert {text.get_text() for text in panel.texts} == {"thc", "fixed"}
    assert list(draw([Cell("gaussian", "thc", "thc", 4, reason="none")], plan).axes[0].texts) == []


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "find_spec", lambda _: None)
    assert main(TINY) == 1
    assert "pip install 'hopsum[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "'0' workers: 1 to"),
        (["--vectors", "gaussian,laplace"], "'laplace': one of gradient"),
        (["--codecs", "zip"], "--codecs zip: none of thc"),
        (["--steps", "1"], "2 steps"),
        (["--scale", "0.01"], "at least 1024 elements"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


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


def test_recorded_gradients_are_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The early ones, recorded again with the versions at hand, are those in the package."""
    torch = pytest.importorskip("torch")
    from hopsum.cli.codec import capture
    from hopsum.cli.demo.model import load_images

    monkeypatch.setattr(capture, "MOMENTS", {"early": 20})
    threads = torch.get_num_threads()
    try:
        found = capture.capture(load_images("digits"))["early"]
    finally:
        torch.set_num_threads(threads)
    recorded = np.stack(make_vectors("gradient", 32, 0, 0, identical=False))
    assert recorded.shape == (32, 10067)
    np.testing.assert_allclose(found, recorded, atol=1e-4 * float(np.abs(recorded).max()))
    assert recorded_origin()["steps_before"]["early"] == 20


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [(0.00284, 0.00003, "2.84(3)e-3"), (1.4e-19, 0.0, "1.40e-19"), (2.5, 0.4, "2.5(4)"), (0.0123, 0.02, "1(2)e-2")],
)
def test_standard_errors_are_in_units_of_the_last_digit(value: float, se: float, text: str) -> None:
    assert with_error(value, se) == text
