# SPDX-License-Identifier: Apache-2.0
"""Compile p4/v1model and the solutions of labs/ with p4c's bmv2 back end, with manifests.

A manifest names the compiler's version, every flag and the hash of every source, so that a test without p4c notices
stale artefacts and a test with the same p4c can compile again and compare.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from p4_build import (
    ROOT,
    CompileError,
    argument_parser,
    exit_status,
    hash_of,
    hashes_of_sources,
    make_build,
    version_of,
)

COMPILER = "p4c-bm2-ss"
# Shared constants are for every architecture, so some are unused in each. Local copy propagation would inline every
# intermediate of the lookup into each of its uses and blow the program up.
FLAGS = (
    *("--arch", "v1model", "--std", "p4-16", "--Wdisable=unused"),
    *("--excludeMidendPasses", "P4::LocalCopyPropagation"),
)


@dataclass(frozen=True)
class P4Program:
    """A program: `folder` is the working directory of p4c. Paths are relative to it, because the JSON embeds them.

    `stem` is that of the artefacts, `name` the one for the command line.
    """

    folder: Path
    main: str
    source_folders: tuple[Path, ...]
    build: Path
    stem: str
    name: str

    @property
    def artefacts(self) -> tuple[str, str]:
        """The file names of the JSON and the P4Info that p4c writes."""
        return f"{self.stem}.json", f"{self.stem}.p4info.txtpb"

    @property
    def flags(self) -> list[str]:
        """Everything on p4c's command line but the outputs."""
        return [*FLAGS, self.main]

    def source_hashes(self) -> dict[str, str]:
        """Return SHA-256 of all P4 sources by path relative to `folder`, sorted."""
        return hashes_of_sources(self.source_folders, self.folder)


P4 = ROOT / "p4"
LABS = ROOT / "labs" / "hopsum_labs"


def lab_program(level: str) -> P4Program:
    """Return the solution of a level of the course: one file, which students find under the same name."""
    folder = LABS / "solutions" / level
    return P4Program(folder, "aggregate.p4", (folder,), folder, "aggregate", name=f"lab-{level}")


PROGRAMS = (
    P4Program(P4, "v1model/main.p4", (P4 / "shared", P4 / "v1model"), P4 / "build", "hopsum", name="hopsum"),
    *map(lab_program, sorted(folder.name for folder in (LABS / "solutions").iterdir())),
)

NAMES = tuple(program.name for program in PROGRAMS)


def compiler_version() -> str | None:
    """Return the version of the p4c on PATH, or None where there is none."""
    return version_of(COMPILER)


def compile_into(program: P4Program, folder: Path) -> None:
    """Compile into `folder`, which then has the artefacts. Raises CompileError where p4c is missing or refuses."""
    if compiler_version() is None:
        raise CompileError(f"{COMPILER} is not on PATH: install p4lang's p4c package, then run this again")
    json_path, p4info_path = (str(folder / artefact) for artefact in program.artefacts)
    command = [COMPILER, *FLAGS, "--p4runtime-files", p4info_path, "-o", json_path, program.main]
    done = subprocess.run(command, cwd=program.folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{COMPILER} refused {program.main}:\n{done.stderr}")
    normalise(Path(json_path))


def normalise(path: Path) -> None:
    """Rewrite p4c's JSON with one line per section: a tenth of the size."""
    program = json.loads(path.read_text())
    # A section a line keeps git's differences small, and lines that a person can search.
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in program.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def manifest(program: P4Program) -> dict[str, object]:
    """Return the contents of manifest.json for the present sources and artefacts. Writes nothing."""
    built = {name: hash_of(program.build / name) for name in program.artefacts}
    return {
        "compiler": COMPILER,
        "version": compiler_version(),
        "flags": program.flags,
        "sources": program.source_hashes(),
        "artefacts": built,
    }


def main() -> int:
    """Compile programs into their build folders, or compare with --check. Return the exit status."""
    parser = argument_parser(str(__doc__))
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(NAMES)}; all by default")
    args = parser.parse_args()
    if unknown := set(args.programs) - set(NAMES):
        parser.error(f"no program {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    wanted = [program for program in PROGRAMS if program.name in (args.programs or NAMES)]
    return exit_status(lambda: max(make(program, check=args.check) for program in wanted))


def make(program: P4Program, *, check: bool) -> int:
    """Compile a program into its build folder, or with `check` compare. Return the exit status, see `make_build`."""
    into, right = partial(compile_into, program), partial(manifest, program)
    return make_build(program.build, program.artefacts, into, right, "make p4", check=check)


if __name__ == "__main__":
    sys.exit(main())
