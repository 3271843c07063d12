# SPDX-License-Identifier: Apache-2.0
"""Markdown of modules, classes and functions: their signatures and docstrings, read from the sources without an import.

An import would need every extra, and `inspect` writes signatures differently from one Python version to the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("wire", "host", "switch", "controlplane", "topologies", "evaluation", "labs", "cli")
COLUMNS = 110
"""The widest signature on one line."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
_LISTED = re.compile(r"^([*\w`, ]+): ")

Definition = ast.Module | ast.ClassDef | ast.FunctionDef


class UnknownNameError(Exception):
    """A documented name that does not exist. The message says which part of it."""


@dataclass(frozen=True)
class Found:
    """A definition and the source of its module."""

    node: Definition
    source: str


@cache
def parse(path: Path) -> tuple[ast.Module, str]:
    """Return the syntax tree and the text of a source file."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), text


def module_path(name: str) -> Path | None:
    """Return the source of a module, None where there is no such module."""
    parts = name.split(".")
    for folder in FOLDERS:
        base = ROOT.joinpath(folder, *parts)
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def find(name: str) -> Found:
    """Return the definition of a dotted name, followed through imports. Raises UnknownNameError."""
    path = module_path(name)
    if path is not None:
        return Found(*parse(path))
    owner, _, last = name.rpartition(".")
    if not owner:
        raise UnknownNameError(f"there is no {name!r} below {', '.join(FOLDERS)}")
    within = find(owner)
    for node in _statements(within.node):
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == last and not _is_overload(node):
                return Found(node, within.source)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if (alias.asname or alias.name) == last:
                        return find(f"{_absolute(owner, module, node.level)}.{alias.name}")
    raise UnknownNameError(f"{owner} has no {last!r}")


def _is_overload(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return any(ast.unparse(each) in ("overload", "typing.overload") for each in node.decorator_list)


def _statements(node: Definition) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those below `if TYPE_CHECKING` among them."""
    for statement in node.body:
        yield from statement.body if isinstance(statement, ast.If) else [statement]


def _absolute(owner: str, module: str, level: int) -> str:
    return module if level == 0 else ".".join([*owner.split(".")[: len(owner.split(".")) - level + 1], module])


def render(name: str, members: list[str] | None) -> Iterator[str]:
    """Yield the lines of a name.

    Args:
        name: a dotted name, of a module, a class or a function.
        members: members that are shown too; empty for all public ones that have a docstring, None for none of them.
    """
    found = find(name)
    if isinstance(found.node, ast.Module):
        yield from to_markdown(docstring(found.node))
        shown = [f"{name}.{member}" for member in _public(found.node)] if members == [] else []
        for member in [f"{name}.{member}" for member in members or ()] or shown:
            yield ""
            yield from render(member, [] if isinstance(find(member).node, ast.ClassDef) else None)
        return
    yield from _title(found, name)
    if isinstance(found.node, ast.ClassDef):
        yield from _bullets(found, members)


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the public methods and properties of a class that have docstrings."""
    named = [each for each in node.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    return [each for each in named if ast.get_docstring(each)]


def _public(node: Definition) -> list[str]:
    """Return the names of the public classes and functions in a body that have docstrings."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [
        each.name
        for each in node.body
        if isinstance(each, kinds) and not each.name.startswith("_") and ast.get_docstring(each)
    ]


def _title(found: Found, name: str) -> Iterator[str]:
    yield from ("```text", *signature(found.node, name), "```", "")
    yield from to_markdown(docstring(found.node))


def _bullets(found: Found, members: list[str] | None) -> Iterator[str]:
    """Yield a list of the fields that have docstrings, and one of methods."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    fields = list(field_docstrings(node))
    methods = [] if members is None else members or [each.name for each in _functions(node)]
    if fields:
        yield from ("", "Fields:")
    for written, text in fields:
        yield from ("", *_bullet(written, list(to_markdown(text))))
    if methods:
        yield from ("", "Methods:")
    for method in methods:
        definition = next((each for each in _functions(node) if each.name == method), None)
        if definition is None:
            raise UnknownNameError(f"class {node.name} itself has no method {method!r}")
        yield from ("", *_bullet(_one_line(definition, method), list(to_markdown(docstring(definition)))))


def _one_line(node: Definition, name: str) -> str:
    return re.sub(r",(?=\))", "", re.sub(r"(?<=\() | (?=\))", "", re.sub(r"\s+", " ", " ".join(signature(node, name)))))


def _bullet(code: str, text: list[str]) -> Iterator[str]:
    yield f"- `{code}`<br>" if text else f"- `{code}`"
    yield from (f"  {line}".rstrip() for line in text)


def docstring(node: Definition) -> str:
    """Return a docstring without its indentation, empty where there is none."""
    return ast.get_docstring(node) or ""


def field_docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield `name: type = default` and the docstring of every public field that has one."""
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)) as field, ast.Expr(value=ast.Constant(value=str(text))):
                if not name.startswith("_"):
                    yield ast.unparse(field), cleandoc(text)


def signature(node: Definition, name: str) -> list[str]:
    """Return a call of the name as its reader writes it, one parameter a line where it is long."""
    if isinstance(node, ast.ClassDef):
        made = _constructor(node)
        return _written(f"class {name}", made, "") if made else [f"class {name}"]
    assert isinstance(node, ast.FunctionDef)
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return [f"{name}{_returns(node)}"]
    return _written(name, _parameters(node), _returns(node))


def _returns(node: ast.FunctionDef) -> str:
    return f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""


def _constructor(node: ast.ClassDef) -> list[str]:
    """Return the parameters of `__init__`, or the fields of a dataclass or named tuple."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return _parameters(each)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    made = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    named = any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    return [ast.unparse(field) for field in fields if "ClassVar" not in ast.unparse(field)] if made or named else []


def _parameters(node: ast.FunctionDef) -> list[str]:
    """Return the parameters without `self` and `cls`, each as it is written."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = list(zip(positional, defaults, strict=True))
    if pairs and pairs[0][0].arg in ("self", "cls"):
        del pairs[0]
    shown = [_parameter(*pair) for pair in pairs]
    if given.vararg is not None:
        shown.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*shown, *([f"**{_parameter(given.kwarg, None)}"] if given.kwarg is not None else [])]


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return f"{argument.arg}{annotation}"
    return f"{argument.arg}{annotation}{' = ' if annotation else '='}{ast.unparse(default)}"


def _written(name: str, parameters: list[str], returns: str) -> list[str]:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= COLUMNS:
        return [line]
    return [f"{name}(", *(f"    {each}," for each in parameters), f"){returns}"]


def to_markdown(text: str) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown: indented blocks as code, `Args:` and the like as lists."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if _SECTION.match(line):
            at = yield from _section(lines, at)
        elif line.startswith(" ") and (at == 0 or not lines[at - 1]):
            at = yield from _code(lines, at)
        else:
            yield _prose(re.sub(r"::$", ":", line))
            at += 1


def _code(lines: list[str], at: int) -> Generator[str, None, int]:
    """Yield an indented block, with the empty lines in it, as code. Return the line after it."""
    end = at
    while end < len(lines) and (lines[end].startswith(" ") or not lines[end]):
        end += 1
    after = end
    while not lines[end - 1]:
        end -= 1
    yield from ("```text", *cleandoc("\n".join(["", *lines[at:end]])).splitlines(), "```")
    return after if after == len(lines) else end


def _section(lines: list[str], at: int) -> Generator[str, None, int]:
    """Yield a section of Google's form as a list under its name. Return the line after it."""
    yield from (f"{lines[at].replace('Args', 'Arguments')}", "")
    at += 1
    base = len(lines[at]) - len(lines[at].lstrip()) if at < len(lines) else 0
    while at < len(lines) and lines[at].startswith(" "):
        line = lines[at][base:]
        named = _LISTED.sub(r"`\1`: ", line)
        yield f"  {_prose(line.strip())}" if line.startswith(" ") else f"- {_prose(named)}"
        at += 1
    return at


def _prose(line: str) -> str:
    """Return a line of text in which nothing outside of code is markup: `<` and `*` stand for themselves."""
    parts = line.replace("``", "`").split("`")
    escaped = [
        part if odd else re.sub(r"(?<![\s\d])\*|\*(?=\w)", r"\\*", re.sub(r"<(?=[\w/])", "&lt;", part))
        for odd, part in ((index % 2, part) for index, part in enumerate(parts))
    ]
    return "`".join(escaped)
