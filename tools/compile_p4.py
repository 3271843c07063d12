# SPDX-License-Identifier: Apache-2.0
"""Compile p4/v1model with p4c's bmv2 back end and write p4/build with its manifest.

The manifest names the compiler's version, every flag and the hash of every source, so that a test without p4c notices
stale artefacts and a test with the same p4c can compile again and compare.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
P4 = ROOT / "p4"
BUILD = P4 / "build"
COMPILER = "p4c-bm2-ss"
MAIN = "v1model/main.p4"
ARTEFACTS = ("hopsum.json", "hopsum.p4info.txtpb")
# Shared constants are for every architecture, so some are unused in each. Paths are relative to p4/, because the JSON
# embeds them. Local copy propagation would inline every intermediate of the lookup into each of its uses and blow
# the program up.
FLAGS = (
    *("--arch", "v1model", "--std", "p4-16", "--Wdisable=unused"),
    *("--excludeMidendPasses", "P4::LocalCopyPropagation"),
)


class CompileError(Exception):
    """p4c is missing or refused the program; the message says what to do."""


def sources() -> list[Path]:
    """Return all P4 sources that the v1model program is made of, sorted."""
    return sorted([*(P4 / "shared").glob("*.p4"), *(P4 / "v1model").glob("*.p4")])


def source_hashes() -> dict[str, str]:
    """Return SHA-256 by path relative to p4/."""
    return {str(path.relative_to(P4)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sources()}


def compiler_version() -> str | None:
    """Return the version of the p4c on PATH, or None where there is none."""
    if shutil.which(COMPILER) is None:
        return None
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).split("Version")[-1].split()[0]


def compile_into(folder: Path) -> None:
    """Compile into `folder`, which afterwards holds ARTEFACTS; raises CompileError with p4c's own words."""
    if compiler_version() is None:
        raise CompileError(f"{COMPILER} is not on PATH: install p4lang's p4c package, then run this again")
    json_path, p4info_path = (str(folder / artefact) for artefact in ARTEFACTS)
    command = [COMPILER, *FLAGS, "--p4runtime-files", p4info_path, "-o", json_path, MAIN]
    done = subprocess.run(command, cwd=P4, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{COMPILER} refused {MAIN}:\n{done.stderr}")
    normalise(folder / ARTEFACTS[0])


def normalise(path: Path) -> None:
    """Rewrite p4c's JSON with one line per section: a tenth of the size."""
    program = json.loads(path.read_text())
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in program.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def manifest() -> dict[str, object]:
    """Return what p4/build/manifest.json should say for the sources and artefacts as they stand."""
    return {
        "compiler": COMPILER,
        "version": compiler_version(),
        "flags": [*FLAGS, MAIN],
        "sources": source_hashes(),
        "artefacts": {name: hashlib.sha256((BUILD / name).read_bytes()).hexdigest() for name in ARTEFACTS},
    }


def main() -> int:
    """Compile and write; with --check, compile elsewhere and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if p4/build is stale")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as name:
            compile_into(Path(name))
            stale = [a for a in ARTEFACTS if not same(Path(name) / a, BUILD / a)]
            if args.check:
                print("p4/build is fresh" if not stale else f"p4/build is stale: {', '.join(stale)}; run make p4")
                return 1 if stale else 0
            BUILD.mkdir(exist_ok=True)
            for artefact in ARTEFACTS:
                shutil.copyfile(Path(name) / artefact, BUILD / artefact)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    (BUILD / "manifest.json").write_text(json.dumps(manifest(), indent=2) + "\n")
    print(f"wrote {', '.join(ARTEFACTS)} and manifest.json with p4c {compiler_version()}")
    return 0


def same(a: Path, b: Path) -> bool:
    """Tell whether both files exist and are byte-equal."""
    return b.exists() and a.read_bytes() == b.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
