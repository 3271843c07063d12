# SPDX-License-Identifier: Apache-2.0
"""Counts that show how the code reads: names used twice, docstrings that ask a question, long functions, long files.

    python tools/count_code.py            a summary, and each place
    python tools/count_code.py --brief    the summary only

Counts packages and tools, without tests, generated files and data-plane cases.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "wire",
    "host",
    "switch",
    "controlplane",
    "topologies",
    "evaluation",
    "cli",
    "ptf_tests/common",
    "tools",
)
NAMED_FOLDERS = (
    "wire", "host", "switch", "controlplane", "topologies", "evaluation", "cli", "ptf_tests/common", "tools",
)  # fmt: skip
"""Folders in which no module docstring begins with a question word. A test checks it."""
QUESTION_WORDS = ("What", "How", "Which", "Whether", "Who", "Whom", "Whose", "Where", "When", "Why")
FUNCTION_LINES = 50
FILE_LINES = 500
PARAMETERS = 6


@dataclass
class Counts:
    """Everything that was found below some folders. Places are `path:line`."""

    lines: dict[str, int] = field(default_factory=dict)
    """Lines of each file."""
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Places of the definitions of each public class."""
    questions: list[str] = field(default_factory=list)
    """Places of modules whose docstring begins with a question word."""
    long_functions: list[str] = field(default_factory=list)
    many_parameters: list[str] = field(default_factory=list)

    @property
    def reused(self) -> dict[str, list[str]]:
        """Return the public class names that have more than one definition."""
        return {name: places for name, places in sorted(self.classes.items()) if len(places) > 1}


def python_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield the Python files below `folders` of `root` that people write."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if not path.name.endswith("_pb2.py") and "__pycache__" not in path.parts:
                yield path


def count(root: Path, folders: tuple[str, ...] = FOLDERS) -> Counts:
    """Return the counts of all files below `folders` of `root`."""
    counts = Counts()
    for path in python_files(root, folders):
        name, text = str(path.relative_to(root)), path.read_text()
        counts.lines[name] = text.count("\n")
        tree = ast.parse(text)
        words = (ast.get_docstring(tree) or "").split()
        if words and words[0] in QUESTION_WORDS:
            counts.questions.append(f"{name}:1")
        for node in ast.walk(tree):
            _count_node(counts, node, name)
    return counts


def _count_node(counts: Counts, node: ast.AST, name: str) -> None:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        counts.classes[node.name].append(f"{name}:{node.lineno}")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            counts.long_functions.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
        arguments = node.args
        parameters = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        if parameters > PARAMETERS:
            counts.many_parameters.append(f"{name}:{node.lineno} {node.name}: {parameters} parameters")


def show(counts: Counts, folders: tuple[str, ...], *, brief: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    lengths, total = sorted(counts.lines.values()), sum(counts.lines.values())
    yield f"{len(lengths)} files, {total:,} lines"
    for folder in folders:
        own = sum(lines for name, lines in counts.lines.items() if name.startswith(f"{folder}/"))
        yield f"  {folder:18} {own:7,} lines {own / total:6.1%}"
    ninth = lengths[int(0.9 * (len(lengths) - 1))]
    yield f"file length: median {statistics.median(lengths):g}, 90 % {ninth}, longest {lengths[-1]}"
    long_files = [f"{name}: {lines} lines" for name, lines in counts.lines.items() if lines > FILE_LINES]
    parts = {
        f"files over {FILE_LINES} lines": long_files,
        "public class names with more than one definition": [
            f"{name}: {', '.join(places)}" for name, places in counts.reused.items()
        ],
        "module docstrings that begin with a question word": counts.questions,
        f"functions over {FUNCTION_LINES} lines": counts.long_functions,
        f"functions with more than {PARAMETERS} parameters": counts.many_parameters,
    }
    for title, places in parts.items():
        yield f"{title}: {len(places)}"
        if not brief:
            yield from (f"  {place}" for place in places)


def main() -> int:
    """Print the report of this repository."""
    parser = argparse.ArgumentParser(description="Count how the code reads.")
    parser.add_argument("--brief", action="store_true", help="counts without their places")
    options = parser.parse_args()
    for line in show(count(ROOT), FOLDERS, brief=options.brief):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
