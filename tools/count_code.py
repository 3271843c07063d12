# SPDX-License-Identifier: Apache-2.0
"""Counts of the house and of how the code reads: lines, files, words, circles, names used twice, comments, lengths.

    python tools/count_code.py            a summary, and each place
    python tools/count_code.py --brief    the summary only

The house is everything in git: product lines are Python, P4 and proto files outside `tests/`. How the code reads is
counted in packages and tools, without tests, generated files and data-plane cases.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
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
SENTENCE_FOLDERS = (
    "wire", "switch", "controlplane", "topologies", "evaluation", "cli", "ptf_tests/common", "labs", "tools",
)  # fmt: skip
"""Folders that keep SUBJECTLESS_LIMIT and SEMICOLON_LIMIT and have a help text for every option. A test checks it."""
QUESTION_WORDS = ("What", "How", "Which", "Whether", "Who", "Whom", "Whose", "Where", "When", "Why")
SUBJECTLESS_WORDS = frozenset((
    *QUESTION_WORDS, "About", "Above", "After", "Among", "As", "At", "Before", "Behind", "Below", "Beside", "Between",
    "Beyond", "By", "For", "From", "If", "In", "Inside", "Into", "Of", "On", "Over", "Since", "That", "Through", "To",
    "Under", "Until", "Up", "While", "With", "Within", "Without",
))  # fmt: skip
"""First words of an attribute docstring that has no subject: prepositions, relative pronouns and conjunctions."""
SUBJECTLESS_LIMIT = 0.03
"""The largest share of attribute docstrings in SENTENCE_FOLDERS that have no subject."""
SEMICOLON_LIMIT = 3.0
"""The most semicolons per 1,000 words of docstrings in SENTENCE_FOLDERS."""
PERSONS = re.compile(r"\b(who|whom|whose|whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
"""Words for persons, which docstrings use for ranks and programs at the cost of their readers."""
PERSONS_LIMIT = 4.0
"""The most of these words per 1,000 words of docstrings, over all folders."""
FILLER = re.compile(r"See `?[\w.]+`?\.")
"""A docstring that only names another one. An overriding method needs none: readers and tools find the base's."""
FUNCTION_LINES = 50
FILE_LINES = 500
PARAMETERS = 6


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
    attributes: int = 0
    """The number of attribute docstrings: strings directly after an assignment."""
    subjectless: list[str] = field(default_factory=list)
    """Places of attribute docstrings that begin with one of SUBJECTLESS_WORDS."""
    words: int = 0
    """The number of words in docstrings, those of attributes included."""
    semicolons: list[str] = field(default_factory=list)
    """Places of docstrings with semicolons, one per semicolon."""
    persons: list[str] = field(default_factory=list)
    """Places of docstrings with words for persons, one per word."""
    fillers: list[str] = field(default_factory=list)
    """Places of docstrings that only name another one."""
    documented: dict[str, ClassDocs] = field(default_factory=dict)
    """Documentation of each class by its name, which is unique but for private classes."""
    options_without_help: list[str] = field(default_factory=list)
    """Places of calls of `add_argument` without a help text."""

    @property
    def subjectless_share(self) -> float:
        """Return the share of attribute docstrings that have no subject."""
        return len(self.subjectless) / max(self.attributes, 1)

    @property
    def semicolon_rate(self) -> float:
        """Return the semicolons per 1,000 words of docstrings."""
        return 1000 * len(self.semicolons) / max(self.words, 1)

    @property
    def persons_rate(self) -> float:
        """Return the words for persons per 1,000 words of docstrings."""
        return 1000 * len(self.persons) / max(self.words, 1)

    @property
    def undocumented(self) -> list[str]:
        """Return the places of public methods without a docstring, of their own or of a class that they implement."""
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
            _count_docstrings(counts, node, name)
    return counts


def _count_docstrings(counts: Counts, node: ast.AST, name: str) -> None:
    """Count the docstring of a module, class or function, and the docstrings of the assignments in a block."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        _count_words(counts, ast.get_docstring(node) or "", f"{name}:{getattr(node, 'lineno', 1)}")
    for block in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
        if isinstance(block, list):
            for line, text in _attribute_docstrings(block):
                counts.attributes += 1
                if text.split()[:1] and text.split()[0].rstrip(":,") in SUBJECTLESS_WORDS:
                    counts.subjectless.append(f"{name}:{line} {' '.join(text.split())[:60]}")
                _count_words(counts, text, f"{name}:{line}")


def _attribute_docstrings(block: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that follows an assignment of `block`."""
    for pair in pairwise(block):
        match pair:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text


def _class_docs(node: ast.ClassDef, name: str) -> ClassDocs:
    """Return the documentation of a class. Methods that `@overload` or a property's setter repeats count once."""
    named = re.findall(r"`([\w.]+)`", ast.get_docstring(node) or "")
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    above = tuple(each.rpartition(".")[2] for each in [*bases, *named])
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {each.name for each in functions if ast.get_docstring(each)}
    public = [each for each in functions if not each.name.startswith("_") and each.name not in methods]
    return ClassDocs(above, methods, {each.name: f"{name}:{each.lineno} {node.name}.{each.name}" for each in public})


def _count_words(counts: Counts, text: str, place: str) -> None:
    counts.words += len(text.split())
    counts.persons += [place] * len(PERSONS.findall(text))
    if FILLER.fullmatch(text):
        counts.fillers.append(place)
    counts.semicolons += [place] * text.count(";")


def _lacks_help(node: ast.Call) -> bool:
    """Return true for a call of `add_argument` without a help text.

    `**keywords` may have one, and argparse has one for the action "version".
    """
    called = isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    return called and not given.keys() & {"help", None} and given.get("action") != "'version'"


def _count_node(counts: Counts, node: ast.AST, name: str) -> None:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        counts.classes[node.name].append(f"{name}:{node.lineno}")
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        counts.documented[node.name] = _class_docs(node, name)
    if isinstance(node, ast.Call) and _lacks_help(node):
        counts.options_without_help.append(f"{name}:{node.lineno} {ast.unparse(node.args[0]) if node.args else ''}")
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
        "options without help": counts.options_without_help,
        "docstrings that only name another one": counts.fillers,
        "public methods without a docstring that they have or inherit": counts.undocumented,
        f"functions over {FUNCTION_LINES} lines": counts.long_functions,
        f"functions with more than {PARAMETERS} parameters": counts.many_parameters,
    }
    yield f"attribute docstrings without a subject: {counts.subjectless_share:.1%} of {counts.attributes:,}"
    yield f"semicolons per 1,000 words of docstrings: {counts.semicolon_rate:.1f} ({counts.words:,} words)"
    yield f"words for persons per 1,000 words of docstrings: {counts.persons_rate:.1f}"
    for title, places in parts.items():
        yield f"{title}: {len(places)}"
        if not brief:
            yield from (f"  {place}" for place in places)


@dataclass
class House:
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
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Modules of the product that each module of it imports anywhere: at its top, for types only, inside functions."""
    hidden: list[str] = field(default_factory=list)
    """Places where `import_module` loads a module of ours by a string."""
    habits: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Habits that a reader stumbles over, by their name."""

    @property
    def circles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, directly or through others."""
        reached = {name: self._reached(name) for name in self.imports}
        groups = {
            tuple(sorted(other for other in reached[name] if name in reached[other]))
            for name in reached
            if name in reached[name]
        }
        return sorted(map(list, groups))

    def _reached(self, start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(self.imports[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += self.imports.get(name, ())
        return seen

    @property
    def twice(self) -> dict[str, list[str]]:
        """Return the module names that several product files have."""
        return {name: places for name, places in sorted(self.modules.items()) if len(places) > 1}


def count_house(root: Path) -> House:
    """Return the counts of all files that git has below `root`."""
    house = House()
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    python: dict[str, str] = {}
    for name in listed.splitlines():
        path = root / name
        if not path.is_file() or path.suffix not in (".py", ".p4", ".proto", ".md"):
            continue
        text = path.read_text()
        if path.suffix == ".md":
            house.words[name] = len(text.split())
        elif name.startswith("tests/"):
            house.tests[name] = text.count("\n")
        else:
            house.product[name] = text.count("\n")
            if path.suffix == ".py":
                python[name] = text
    modules = {_module_name(name): name for name in python}
    for module, name in modules.items():
        tree = ast.parse(python[name])
        house.imports[module] = set(_imports(tree, module, Path(name).name == "__init__.py", modules))
        house.hidden += [f"{name}:{place}" for place in _imports_by_string(tree)]
        if Path(name).name != "__init__.py" and not name.startswith(("labs/", "examples/", "docs/")):
            house.modules[Path(name).stem].append(name)
        if not name.endswith("_pb2.py"):
            _count_lines(house, tree, python[name])
    return house


def _module_name(name: str) -> str:
    """Return the dotted name of a file: without the folders above its outermost package, and without `__init__`."""
    parts = list(Path(name).with_suffix("").parts)
    start = next((at for at, part in enumerate(parts) if part.startswith("hopsum")), 0)
    parts = parts[start:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, module: str, is_package: bool, known: dict[str, str]) -> Iterator[str]:
    """Yield the modules of ours that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".") if is_package else module.split(".")[:-1]
            above = base[: len(base) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                inner = f"{start}.{each.name}"
                target = inner if inner in known else start
                if target in known and target != module:
                    yield target


def _imports_by_string(tree: ast.Module) -> Iterator[str]:
    """Yield line and argument of each call of `import_module` with a text that names a package of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = ast.unparse(node.args[0]) if node.args else ""
            if "hopsum" in argument:
                yield f"{node.lineno} {argument}"


def _count_lines(house: House, tree: ast.Module, text: str) -> None:
    """Count lines of code and of comments, and habits."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        _count_habits(house, node)
    house.habits["`# fmt: skip`"] += text.count("# fmt: skip")
    lines = text.split("\n")
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    house.comment_lines += sum("SPDX" not in lines[number - 1] for number in comments)
    house.code_lines += sum(
        bool(line.strip()) and number not in docstrings and number not in comments
        for number, line in enumerate(lines, 1)
    )


def _count_habits(house: House, node: ast.AST) -> None:
    if isinstance(node, ast.IfExp):
        house.habits["conditional expressions"] += 1
    elif isinstance(node, ast.Assign):
        house.habits["assignments"] += 1
        pairs = isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        house.habits["assignments of tuples"] += pairs
    elif isinstance(node, ast.ClassDef):
        house.habits["class docstrings that begin with a question word"] += _first_word(node) in QUESTION_WORDS
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node) or ""
        house.habits["function docstrings `Return what ...`"] += docstring.startswith("Return what")


def _first_word(node: ast.ClassDef) -> str:
    return next(iter((ast.get_docstring(node) or "").split()), "")


def show_house(house: House, *, brief: bool) -> Iterator[str]:
    """Yield the lines about the house."""
    folders: dict[str, int] = defaultdict(int)
    for name, lines in house.product.items():
        folders[name.partition("/")[0]] += lines
    python_files = sum(name.endswith(".py") for name in house.product)
    yield f"product: {sum(house.product.values()):,} lines in {python_files} Python files"
    yield "  " + ", ".join(f"{name} {lines:,}" for name, lines in sorted(folders.items(), key=lambda row: -row[1]))
    yield f"tests: {sum(house.tests.values()):,} lines in {len(house.tests)} files"
    yield f"Markdown: {sum(house.words.values()):,} words in {len(house.words)} pages"
    share = house.comment_lines / max(house.code_lines, 1)
    yield f"comment lines: {house.comment_lines:,} beside {house.code_lines:,} lines of code, {share:.2%}"
    parts: dict[str, Iterable[str]] = {
        "circles of imports": [" <-> ".join(circle) for circle in house.circles],
        "imports of ours by a string": house.hidden,
        "module names used twice": [f"{name}: {', '.join(places)}" for name, places in house.twice.items()],
    }
    for title, places in parts.items():
        yield f"{title}: {len(list(places))}"
        if not brief:
            yield from (f"  {place}" for place in places)
    yield "habits: " + ", ".join(f"{name} {number:,}" for name, number in house.habits.items())


def main() -> int:
    """Print the report of this repository."""
    parser = argparse.ArgumentParser(description="Count how the code reads.")
    parser.add_argument("--brief", action="store_true", help="counts without their places")
    options = parser.parse_args()
    for line in show_house(count_house(ROOT), brief=options.brief):
        print(line)
    for line in show(count(ROOT), FOLDERS, brief=options.brief):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
