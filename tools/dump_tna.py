# SPDX-License-Identifier: Apache-2.0
"""Write what p4c's front end makes of p4/tna to p4/build/tna, as JSON: tests execute it (hopsum_tna).

tofino, tofino2: the program as compiled for the chips. small: the same sources with 16 codes in half a pass and 2
passes for a packet, too few for a whole payload: for searching every order in which packets can meet.
dumps.json has the compiler's version, the flags and the hash of every source, so a test without the compiler notices
stale dumps.
The front end takes seconds. The later stages (tools/compile_tna.py) take minutes and are not needed here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from compile_tna import (
    BUILD,
    CHIPS,
    COMPILER,
    P4,
    Chip,
    compiler_version,
    preprocess,
    require_compiler,
    source_hashes,
)
from hopsum_tna.dump import TnaError, load_dump, save
from p4_build import CompileError, argument_parser, exit_status, hash_of, make_build

PASSES = "#define PASSES (512 / CODES_HALF)"
"""The line of target.p4 that the small program has otherwise."""
PROGRAMS: dict[str, tuple[Chip, str]] = {
    **{chip.name: (chip, PASSES) for chip in CHIPS},
    "small": (Chip("tofino", "tna", 1, 16), "#define PASSES 2"),
}
MANIFEST = BUILD / "dumps.json"


def dump_name(program: str) -> str:
    """Return the file name of a program's dump."""
    return f"{program}.ir.json.gz"


def dump(program: str, folder: Path) -> Path:
    """Run the front end. Return the shortened dump, a file in `folder`. Raises CompileError."""
    chip, passes = PROGRAMS[program]
    require_compiler()
    source, whole = folder / f"{program}.p4", folder / f"{program}.json"
    sources = folder / f"{program}-sources"
    # The small program differs in one line of target.p4, so all programs are made from copies.
    shutil.copytree(P4, sources, ignore=shutil.ignore_patterns("build", "v1model"))
    target_p4 = sources / "tna" / "target.p4"
    if PASSES not in target_p4.read_text():
        raise CompileError(f"{target_p4.name} has no line {PASSES!r}: change tools/dump_tna.py with it")
    target_p4.write_text(target_p4.read_text().replace(PASSES, passes))
    source.write_text(preprocess(chip, sources / "tna"))
    # Nothing asks p4c to stop behind its front end, but it does when it cannot write the P4Info: no file may end so.
    stop = ["--p4runtime-files", f"{program}.no-p4info"]
    target = ["--nocpp", "--target", chip.name, "--arch", chip.architecture, "-o", str(folder)]
    # The status is not asked for: p4c fails on purpose, after it has written the JSON.
    done = subprocess.run(
        [COMPILER, *target, "--toJSON", str(whole), *stop, str(source)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        save(load_dump(whole), folder / dump_name(program))
    except (OSError, TnaError) as error:
        raise CompileError(f"{COMPILER} wrote no dump of {program} ({error}):\n{done.stderr[-4000:]}") from error
    return folder / dump_name(program)


def dump_all(folder: Path) -> None:
    """Write the dumps of all programs to a folder. Raises CompileError."""
    for program in PROGRAMS:
        dump(program, folder)


def manifest(version: str | None) -> dict[str, object]:
    """Return the right dumps.json for the present sources and dumps."""
    dumps = {name: hash_of(BUILD / name) for name in map(dump_name, PROGRAMS)}
    flags = {name: [*chip.cpp_flags, passes] for name, (chip, passes) in PROGRAMS.items()}
    return {"compiler": COMPILER, "version": version, "flags": flags, "sources": source_hashes(), "dumps": dumps}


def main() -> int:
    """Dump and write. With --check, dump elsewhere and compare."""
    args = argument_parser(str(__doc__)).parse_args()
    names = list(map(dump_name, PROGRAMS))
    right, command = partial(manifest, compiler_version()), "make p4-tna-dump"
    return exit_status(lambda: make_build(BUILD, names, dump_all, right, command, check=args.check, file=MANIFEST.name))


if __name__ == "__main__":
    sys.exit(main())
