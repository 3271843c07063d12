# SPDX-License-Identifier: Apache-2.0
"""Counts of the repository and of how the code reads: lines, files, words, import cycles, repeated names, comments.

    python tools/count_code.py            a summary, and each place
    python tools/count_code.py --brief    the summary only

Everything in git is counted: product lines are Python, P4 and proto files outside `tests/`. How the code reads is
counted in packages and tools, without tests, generated files and data-plane cases.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
STYLED = ("wire/", "host/", "switch/", "controlplane/", "topologies/", "evaluation/", "cli/", "ptf_tests/common/")
"""Folders of the product whose docstrings are counted."""
PACKAGES = (
    "hopsum", "hopsum_cli", "hopsum_controlplane", "hopsum_evaluation", "hopsum_labs", "hopsum_model", "hopsum_oracle",
    "hopsum_ptf", "hopsum_switch", "hopsum_tna", "hopsum_topologies", "hopsum_wire",
)  # fmt: skip
"""Packages in which no modules may import each other in a circle."""
PERSONS = re.compile(r"\b(who|whom|whose|whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
"""Words for persons, which docstrings use for ranks and programs at the cost of their readers."""
FILLER = re.compile(r"See `?[\w.]+`?\.")
"""A docstring that only names another one. An overriding method needs none: readers and tools find the base's."""


@dataclass
class ClassDocs:
    """The documentation of one class."""

    above: tuple[str, ...]
    """The names of its bases, and the names in backticks in its docstring: what it implements without a base."""
    methods: set[str]
    """Its methods with a docstring."""
    bare: dict[str, str]
    """Places of its public methods without a docstring, by name."""


@dataclass
class Style:
    """How docstrings read. Places are `path:line`."""

    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Places of the definitions of each public class."""
    words: int = 0
    """Words in docstrings, those of attributes included."""
    semicolons: list[str] = field(default_factory=list)
    """Places of docstrings with semicolons, one per semicolon."""
    persons: list[str] = field(default_factory=list)
    """Places of docstrings with words for persons, one per word."""
    fillers: list[str] = field(default_factory=list)
    """Places of docstrings that only name another one."""
    documented: dict[str, ClassDocs] = field(default_factory=dict)
    """Documentation of each class by its name, which is unique but for private classes."""

    def per_thousand_words(self, places: list[str]) -> float:
        """Return the number of places per 1,000 words of docstrings."""
        return 1000 * len(places) / max(self.words, 1)

    @property
    def undocumented(self) -> list[str]:
        """The places of public methods without a docstring, of their own or of a class that they implement."""
        return [
            place
            for name, docs in sorted(self.documented.items())
            for method, place in docs.bare.items()
            if not self._is_inherited(name, method, {name})
        ]

    def _is_inherited(self, name: str, method: str, seen: set[str]) -> bool:
        """Return whether a class that this one derives from, or says to implement, documents the method."""
        above = [each for each in self.documented[name].above if each in self.documented and each not in seen]
        return any(
            method in self.documented[each].methods or self._is_inherited(each, method, seen | {each}) for each in above
        )

    @property
    def repeated_classes(self) -> dict[str, list[str]]:
        """The public class names that have more than one definition, with the places of all."""
        return {name: places for name, places in sorted(self.classes.items()) if len(places) > 1}

    def add_file(self, nodes: list[ast.AST], name: str) -> None:
        """Add the docstrings and classes of a file, given by the nodes of its syntax tree and its path."""
        for node in nodes:
            place = f"{name}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self._count_text(ast.get_docstring(node), place)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                self.classes[node.name].append(place)
                self.documented[node.name] = _class_docs(node, name)
            for block in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
                if isinstance(block, list):
                    for line, text in _attribute_docstrings(block):
                        self._count_text(text, f"{name}:{line}")

    def _count_text(self, text: str | None, place: str) -> None:
        """Count a docstring."""
        self.words += len((text or "").split())
        if FILLER.fullmatch(text or ""):
            self.fillers.append(place)
        self.semicolons += [place] * (text or "").count(";")
        self.persons += [place] * len(PERSONS.findall(text or ""))


def _attribute_docstrings(block: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that follows an assignment of `block`."""
    # A string is an attribute's docstring only where it follows the assignment directly.
    for pair in pairwise(block):
        match pair:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text


def _class_docs(node: ast.ClassDef, name: str) -> ClassDocs:
    """Return the documentation of a class. Methods that `@overload` or a property's setter repeats count once."""
    # A class that implements a Protocol names it in backticks and has no base: its methods inherit docstrings too.
    named = re.findall(r"`([\w.]+)`", ast.get_docstring(node) or "")
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    above = tuple(each.rpartition(".")[2] for each in [*bases, *named])
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {each.name for each in functions if ast.get_docstring(each)}
    public = [each for each in functions if not each.name.startswith("_") and each.name not in methods]
    return ClassDocs(above, methods, {each.name: f"{name}:{each.lineno} {node.name}.{each.name}" for each in public})


@dataclass
class RepositoryCounts:
    """Counts of everything in git."""

    product: dict[str, int] = field(default_factory=dict)
    """Lines of each Python, P4 and proto file outside `tests/`."""
    tests: dict[str, int] = field(default_factory=dict)
    """Lines of each Python file below `tests/`."""
    words: dict[str, int] = field(default_factory=dict)
    """Words of each Markdown file."""
    code_lines: int = 0
    """Product lines of Python that are neither empty nor docstring nor comment."""
    comment_lines: int = 0
    """Product lines of Python that hold only a comment, without licence lines."""
    modules: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Product files by the name of their module, packages and the files of students and targets left out."""
    hidden: list[str] = field(default_factory=list)
    """Places where `import_module` loads a module of ours by a string."""
    style: Style = field(default_factory=Style)
    """Docstrings of STYLED."""

    @property
    def import_cycles(self) -> list[list[str]]:
        """One group of modules that import each other in a circle, or an empty list. Each access reads all files."""
        # All imports count: at a module's top, for types only, inside functions.
        graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        try:
            TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
        except CycleError as error:
            return [error.args[1]]
        return []

    @property
    def repeated_modules(self) -> dict[str, list[str]]:
        """The module names that several product files have, with the paths of all."""
        return {name: places for name, places in sorted(self.modules.items()) if len(places) > 1}


def count_repository(root: Path) -> RepositoryCounts:
    """Count all files that git has below `root`. Raises CalledProcessError outside a repository."""
    counts = RepositoryCounts()
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    python: dict[str, str] = {}
    for name in listed.splitlines():
        path = root / name
        if not path.is_file() or path.suffix not in (".py", ".p4", ".proto", ".md"):
            continue
        text = path.read_text()
        if path.suffix == ".md":
            counts.words[name] = len(text.split())
        elif name.startswith("tests/"):
            counts.tests[name] = text.count("\n")
        else:
            counts.product[name] = text.count("\n")
            if path.suffix == ".py":
                python[name] = text
    for name, text in python.items():
        # Each file is walked once: a walk takes longer than everything that is asked of its nodes.
        nodes = list(ast.walk(ast.parse(text)))
        counts.hidden += [f"{name}:{place}" for place in _imports_by_string(nodes)]
        # Files of students and of examples have names that the course or the page gives.
        if Path(name).name != "__init__.py" and not name.startswith(("labs/", "examples/", "docs/")):
            counts.modules[Path(name).stem].append(name)
        if not name.endswith("_pb2.py"):
            _count_lines(counts, nodes, text)
            if name.startswith(STYLED):
                counts.style.add_file(nodes, name)
    return counts


def _imports_by_string(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield line and argument of each call of `import_module` with a text that names a package of ours."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = ast.unparse(node.args[0]) if node.args else ""
            if "hopsum" in argument:
                yield f"{node.lineno} {argument}"


def _count_lines(counts: RepositoryCounts, nodes: list[ast.AST], text: str) -> None:
    """Count lines of code and of comments."""
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.split("\n")
    # Only a tokenizer tells a comment from a `#` in a text; trailing comments do not count.
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    counts.comment_lines += sum("SPDX" not in lines[number - 1] for number in comments)
    counts.code_lines += sum(
        bool(line.strip()) and number not in docstrings and number not in comments
        for number, line in enumerate(lines, 1)
    )


def report_lines(counts: RepositoryCounts, *, brief: bool) -> Iterator[str]:
    """Yield the lines of the report, with the place of each finding unless `brief` is set. Prints nothing."""
    folders: dict[str, int] = defaultdict(int)
    for name, lines in counts.product.items():
        folders[name.partition("/")[0]] += lines
    python_files = sum(name.endswith(".py") for name in counts.product)
    yield f"product: {sum(counts.product.values()):,} lines in {python_files} Python files"
    yield "  " + ", ".join(f"{name} {lines:,}" for name, lines in sorted(folders.items(), key=lambda row: -row[1]))
    yield f"tests: {sum(counts.tests.values()):,} lines in {len(counts.tests)} files"
    yield f"Markdown: {sum(counts.words.values()):,} words in {len(counts.words)} pages"
    share = counts.comment_lines / max(counts.code_lines, 1)
    yield f"comment lines: {counts.comment_lines:,} beside {counts.code_lines:,} lines of code, {share:.2%}"
    style = counts.style
    parts: dict[str, list[str]] = {
        "circles of imports": [" <-> ".join(circle) for circle in counts.import_cycles],
        "imports of ours by a string": counts.hidden,
        "module names used twice": [f"{name}: {', '.join(places)}" for name, places in counts.repeated_modules.items()],
        "public class names with more than one definition": [
            f"{name}: {', '.join(places)}" for name, places in style.repeated_classes.items()
        ],
        "docstrings that only name another one": style.fillers,
        "public methods without a docstring that they have or inherit": style.undocumented,
    }
    for title, places in parts.items():
        yield f"{title}: {len(places)}"
        if not brief:
            yield from (f"  {place}" for place in places)
    yield f"words for persons per 1,000 words of docstrings: {style.per_thousand_words(style.persons):.1f}"
    yield f"semicolons per 1,000 words of docstrings: {style.per_thousand_words(style.semicolons):.1f}"


def main() -> int:
    """Print the report of this repository."""
    parser = argparse.ArgumentParser(description="Count how the code reads.")
    parser.add_argument("--brief", action="store_true", help="counts without their places")
    options = parser.parse_args()
    for line in report_lines(count_repository(ROOT), brief=options.brief):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
