# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: do the experiments, and put them on one page beside what papers claim.

Writes report.html, which loads nothing from elsewhere, report.json with the raw figures, and the plots as SVG. The
page follows from the JSON: --read makes it again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from hopsum_evaluation.report.answer_page import with_results
from hopsum_evaluation.report.collect import ReportError, collect, read_report, same_run, shown, write_report
from hopsum_evaluation.report.markdown import IMAGES, answer_pictures, make_markdown, verdict_line
from hopsum_evaluation.report.page import make_page
from hopsum_evaluation.report.sections import SECTIONS
from hopsum_evaluation.report.settings import Settings, Size

OUT: Final = Path("hopsum-report")
JSON_NAME: Final = "report.json"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum report", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument(
        "--output-dir", type=Path, default=OUT, metavar="DIR", help="folder for everything (default %(default)s)"
    )
    parser.add_argument("--full", action="store_const", dest="size", const=Size.FULL, help="run all sizes: hours")
    parser.add_argument(
        "--size", type=Size, dest="size", choices=tuple(Size), metavar="SIZE", help=f"sizes to run: {', '.join(Size)}"
    )
    parser.add_argument(
        "--sections",
        type=_sections,
        default=tuple(SECTIONS),
        metavar="NAME,...",
        help=f"sections to run, of {', '.join(SECTIONS)} (default: all)",
    )
    parser.add_argument("--resume", action="store_true", help="complete the report.json that is there")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything random (default %(default)s)")
    parser.add_argument(
        "--read", type=Path, dest="source", metavar="JSON", help="report.json to show, in place of a run"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write only this page, and images/ beside it, with --read"
    )
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="write the part `results` of this page anew, with --markdown"
    )
    parser.set_defaults(size=Size.DEFAULT)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run, write, and return 0. Return 1 where files cannot be read or written."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.seed < 0 or (options.markdown is not None and options.source is None):
        parser.error("a seed of at least 0; --markdown goes with --read")
    if options.readme is not None and options.markdown is None:
        parser.error("--readme goes with --markdown")
    if options.resume and options.source is not None:
        parser.error("--read runs nothing, --resume continues a run")
    if not find_spec("matplotlib"):
        parser.exit(1, "hopsum report: plots need matplotlib: pip install 'hopsum[plot]'\n")
    try:
        report = read_report(options.source) if options.source is not None else _run(options)
        if options.markdown is not None:
            write_documentation(report, options.source.name, options.markdown, options.readme)
            return 0
        write_all(report, options.output_dir, keep_json=options.source is None)
    except (ReportError, OSError) as error:
        print(f"hopsum report: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        done = options.output_dir / JSON_NAME
        print(f"hopsum report: stopped; {done} has the finished sections: --resume continues", file=sys.stderr)
        return 130
    _say(report, options.output_dir, Console())
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    settings, path = Settings(options.seed, options.size), options.output_dir / JSON_NAME
    earlier = same_run(settings, path) if options.resume else None
    options.output_dir.mkdir(parents=True, exist_ok=True)  # before anything is measured
    return collect(settings, options.sections, Console(stderr=True), lambda report: write_report(report, path), earlier)


def write_all(report: dict[str, Any], folder: Path, *, keep_json: bool) -> None:
    """Write page and plots, and the JSON where it is new, into a folder, which is made. Raises OSError."""
    from hopsum_evaluation.report.plots import draw_svg

    folder.mkdir(parents=True, exist_ok=True)
    if keep_json:
        write_report(report, folder / JSON_NAME)
        report = read_report(folder / JSON_NAME)  # the page shows what the file has
    (folder / "report.html").write_text(make_page(report, draw_svg))
    for name in SECTIONS:
        for plot in shown(report, name)[0].plots:
            (folder / f"{plot.name}.svg").write_text(draw_svg(plot))


def write_documentation(report: dict[str, Any], source: str, page: Path, readme: Path | None) -> None:
    """Write the page for docs/ with its pictures, and README's part. Raises ReportError, OSError."""
    from hopsum_evaluation.report.plots import draw_svg

    try:
        text = None if readme is None else with_results(readme.read_text(), report)
    except ValueError as error:
        raise ReportError(f"{readme}: {error}") from error
    (page.parent / IMAGES).mkdir(exist_ok=True)
    for picture in answer_pictures(report):
        (page.parent / IMAGES / picture.file).write_text(draw_svg(picture.plot))
    page.write_text(make_markdown(report, source))
    if readme is not None and text is not None:
        readme.write_text(text)


def _say(report: dict[str, Any], folder: Path, console: Console) -> None:
    for name in SECTIONS:
        for judged in shown(report, name)[1]:
            console.print(verdict_line(judged), highlight=False, markup=False)
    console.print(f"{folder / 'report.html'}", highlight=False)


def _sections(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: of {', '.join(SECTIONS)}")
    return names
