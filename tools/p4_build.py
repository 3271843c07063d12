# SPDX-License-Identifier: Apache-2.0
"""The common parts of the tools that compile P4: versions and hashes for manifests, and build folders."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


class CompileError(Exception):
    """A compiler is missing or refused the program. The message says what to do."""


def version_of(compiler: str) -> str | None:
    """Ask one of p4c's compilers on PATH for its version, and return it. None where PATH has no such program."""
    if shutil.which(compiler) is None:
        return None
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    # p4c writes its version to stdout or to stderr, by release.
    return (done.stdout + done.stderr).split("Version")[-1].split()[0]


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hashes_of_sources(folders: Iterable[Path], below: Path) -> dict[str, str]:
    """Return SHA-256 of all P4 sources in folders, by path relative to `below`, sorted."""
    paths = sorted(path for folder in folders for path in folder.glob("*.p4"))
    return {str(path.relative_to(below)): hash_of(path) for path in paths}


def hashes_of_included(main: Path, below: Path) -> dict[str, str]:
    """Return SHA-256 of a P4 source and of all that it includes by a path, by path relative to `below`, sorted.

    Includes in angle brackets are the compiler's own.
    """
    found: set[Path] = set()
    waiting = [main.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [(path.parent / name).resolve() for name in _INCLUDE.findall(path.read_text())]
    return {str(path.relative_to(below)): hash_of(path) for path in sorted(found)}


def make_build(
    build: Path,
    names: Sequence[str],
    compile_into: Callable[[Path], object],
    manifest: Callable[[], dict[str, object]],
    command: str,
    *,
    check: bool,
    file: str = "manifest.json",
) -> int:
    """Compile, and write a build folder and its manifest. With `check` write nothing and return 1 where it is stale.

    Prints what it did. A check compares the files `names`, not the manifest. CompileError of `compile_into` leaves it.
    """
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        compile_into(made)
        if check:
            stale = [name for name in names if not _same(made / name, build / name)]
            where = build.relative_to(ROOT)
            print(f"{where} is stale: {', '.join(stale)}; run {command}" if stale else f"{where} is fresh")
            return 1 if stale else 0
        build.mkdir(exist_ok=True)
        # The manifest hashes what is in the build folder, so it comes last.
        for name in names:
            shutil.copyfile(made / name, build / name)
    said = manifest()
    (build / file).write_text(json.dumps(said, indent=2) + "\n")
    print(f"wrote {', '.join(names)} and {file} with {said['compiler']} {said['version']}")
    return 0


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option --check. Of the description only the first line is taken."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a build folder is stale")
    return parser


def exit_status(make: Callable[[], int]) -> int:
    """Call `make` and return what it returns. After a CompileError, print that to stderr and return 1."""
    try:
        return make()
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1


def _same(a: Path, b: Path) -> bool:
    """Tell whether both files exist and are byte-equal."""
    return b.exists() and a.read_bytes() == b.read_bytes()
