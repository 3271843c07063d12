# SPDX-License-Identifier: Apache-2.0
"""Compile p4/tna for both chips with p4c's open Tofino back end and write p4/build/tna.

It writes P4Info, the tables as BF Runtime knows them (bfrt.json, compressed), resources and manifest.

A manifest names the compiler's version, every flag and the hash of every source, so that a test without the compiler
notices stale artefacts. The compiler's own output (assembly, binary) is not kept: nothing here runs it. resources.json
is a summary of what the compiler and, where it is installed, the assembler said.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from p4_build import (
    ROOT,
    CompileError,
    argument_parser,
    exit_status,
    hash_of,
    hashes_of_included,
    make_build,
    version_of,
)
from tna_resources import resource_summary

COMPILER = "p4c-barefoot"
ASSEMBLER = "bfas"
P4 = ROOT / "p4"
MAIN = P4 / "tna" / "main.p4"
BUILD = P4 / "build" / "tna"
INCLUDE_VARIABLE = "TNA_INCLUDE"


@dataclass(frozen=True)
class Chip:
    """One target: p4c's names for it and the codes that half a pass takes there."""

    name: str
    architecture: str
    number: int
    codes_half: int
    more_flags: tuple[str, ...] = ()

    @property
    def cpp_flags(self) -> list[str]:
        """Flags of the preprocessor but the include folder."""
        return ["-P", f"-D__TARGET_TOFINO__={self.number}", f"-DCODES_HALF={self.codes_half}"]

    @property
    def flags(self) -> list[str]:
        """Everything on the compiler's command line but inputs and outputs."""
        return ["--nocpp", "--target", self.name, "--arch", self.architecture, *FLAGS, *self.more_flags]

    @property
    def p4info(self) -> str:
        """File name of the P4Info."""
        return f"{self.name}.p4info.txtpb"

    @property
    def bfrt(self) -> str:
        """File name of the compressed bfrt.json."""
        return f"{self.name}.bfrt.json.gz"


# Tofino 2: the compiler estimates 61 W of 52 with all cycles in use; 84 % of them is what it recommends.
# Standard messages for counters and registers: what P4Runtime agents of Tofino read.
FLAGS = ("-g", "--Wdisable=unused", "--p4runtime-force-std-externs")
CHIPS = (Chip("tofino", "tna", 1, 64), Chip("tofino2", "t2na", 2, 128, ("--traffic-limit", "84")))
RESOURCES = "resources.json"
ARTEFACTS = (*(chip.p4info for chip in CHIPS), *(chip.bfrt for chip in CHIPS), RESOURCES)


def source_hashes() -> dict[str, str]:
    """Return SHA-256 of all P4 sources that the program includes, by path relative to p4/, sorted."""
    return hashes_of_included(MAIN, P4)


def flags() -> dict[str, list[str]]:
    """Return the flags of preprocessor and compiler by chip."""
    return {chip.name: [*chip.cpp_flags, *chip.flags] for chip in CHIPS}


def compiler_version() -> str | None:
    """Return the version of the p4c-barefoot on PATH, or None where there is none."""
    return version_of(COMPILER)


def include_folder() -> Path:
    """Return the folder of tna.p4 and t2na.p4. Raises CompileError where there is none."""
    candidates = [Path(os.environ[INCLUDE_VARIABLE])] if INCLUDE_VARIABLE in os.environ else []
    candidates += [Path(prefix) / "share/p4c/p4include" for prefix in ("/usr/local", "/usr")]
    for folder in candidates:
        if (folder / "tna.p4").exists():
            return folder
    raise CompileError(
        f"no tna.p4 in {', '.join(map(str, candidates))}: set {INCLUDE_VARIABLE} to the folder p4include "
        "of p4c's Tofino back end"
    )


def run_tool(command: list[str], cwd: Path) -> str:
    """Run a tool and return its standard output. Raises CompileError with its message where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def require_compiler() -> None:
    """Raise CompileError where there is no p4c-barefoot."""
    if compiler_version() is None:
        raise CompileError(f"{COMPILER} is not on PATH: it is p4c's Tofino back end, built with -DENABLE_TOFINO=ON")


def preprocess(chip: Chip, folder: Path) -> str:
    """Run cpp on a folder with p4/tna's sources. Return the program as one text for `chip`. Raises CompileError.

    A macro's text comes out as one line, and the compiler's JSON repeats the whole line for every node of it: 700 MB
    and minutes. So statements get lines of their own.
    """
    includes = (include_folder(), "/usr/local/share/p4c/p4include", "/usr/share/p4c/p4include")
    # The preprocessor runs apart from the compiler (--nocpp): the dump for the executor needs the same text.
    text = run_tool(["cpp", *chip.cpp_flags, *(f"-I{path}" for path in includes), "main.p4"], folder)
    return re.sub(r"([;{}]) *", r"\1\n", text)


def compile_chip(chip: Chip, folder: Path) -> dict[str, Any]:
    """Compile for `chip` into `folder`, with P4Info and bfrt.json. Return its resources. Raises CompileError."""
    require_compiler()
    (folder / "hopsum.p4").write_text(preprocess(chip, MAIN.parent))
    outputs = ["--p4runtime-files", "p4info.txt", "--bf-rt-schema", "bfrt.json", "-o", "out"]
    run_tool([COMPILER, *chip.flags, *outputs, "hopsum.p4"], folder)
    shutil.copyfile(folder / "p4info.txt", folder / chip.p4info)
    # Without a time in the header: equal contents are equal files, which the manifest's hash compares.
    (folder / chip.bfrt).write_bytes(gzip.compress((folder / "bfrt.json").read_bytes(), mtime=0))
    pipe = folder / "out" / "pipe"
    assembly = (pipe / "hopsum.bfa").read_text()
    refuse_lost_matches(assembly)
    refuse_overlays(assembly)
    return resource_summary(pipe) | {"assembled": try_assemble(chip, pipe)}


def refuse_lost_matches(assembly: str) -> None:
    """Raise CompileError where the parser matches nothing.

    p4c 1.2.5.16 loses the values of every `select` (p4lang/p4c issue 5752, mended by pull request 5753): such a
    compiler's figures are of a program that never parses a payload.
    """
    # A matching state has a value of hexadecimal or binary digits; a lost one has `*` alone.
    parser = assembly[assembly.index("parser ingress:") : assembly.index("deparser ingress:")]
    if not re.search(r"^ +0[bx][0-9a-f*]*[0-9a-f][0-9a-f*]*:$", parser, re.MULTILINE):
        raise CompileError(
            "this p4c-barefoot loses the matches of the parser (p4lang/p4c issue 5752): use one with pull request 5753"
        )


# In ingress `pass` is valid with these without being extracted with them: the allocator may take that for exclusive.
BEHIND_PASS = ("ethernet", "ipv4", "udp")


def refuse_overlays(assembly: str) -> None:
    """Raise CompileError where two headers that are valid together share a container (docs/adr/0021)."""
    # Egress extracts all of its headers itself, so only ingress is at risk.
    section = assembly[assembly.index("phv ingress:") :].split("context_json")[0]
    used: dict[str, set[str]] = {header: set() for header in ("pass", *BEHIND_PASS)}
    for header, place in re.findall(r"^  hdr\.(\w+)\.[^$:]*: (.*)$", section, re.MULTILINE):
        if header in used:
            used[header] |= set(re.findall(r"\bT?[BHW]\d+", place))
    for header in BEHIND_PASS:
        if shared := used["pass"] & used[header]:
            places = ", ".join(sorted(shared))
            raise CompileError(f"ingress: pass and {header} share {places}: see @pa_no_overlay in parser.p4")


def try_assemble(chip: Chip, pipe: Path) -> bool | None:
    """Run bfas on the assembly, in `pipe`. Return True if it wrote a binary, None where bfas is not on PATH."""
    if shutil.which(ASSEMBLER) is None:
        return None
    (pipe / "assembled" / "logs").mkdir(parents=True)
    command = [ASSEMBLER, "--target", chip.name, "-o", "assembled", "hopsum.bfa"]
    done = subprocess.run(command, cwd=pipe, capture_output=True, check=False)
    # bfas ends with 0 for some programs that it wrote no binary of.
    return done.returncode == 0 and (pipe / "assembled" / f"{chip.name}.bin").exists()


def compile_into(folder: Path) -> None:
    """Compile for both chips into an existing folder, which then has the artefacts. Raises CompileError."""
    found: dict[str, Any] = {}
    for chip in CHIPS:
        inner = folder / chip.name
        inner.mkdir()
        # A pass is a turn through ingress and egress, and each half takes codes.
        sizes = {"codes_per_pass": 2 * chip.codes_half, "codes_per_group": chip.codes_half}
        found[chip.name] = sizes | compile_chip(chip, inner)
        for name in (chip.p4info, chip.bfrt):
            shutil.copyfile(inner / name, folder / name)
    (folder / RESOURCES).write_text(json.dumps(found, indent=2) + "\n")


def manifest(version: str | None) -> dict[str, object]:
    """Return the contents of manifest.json for the present sources and artefacts. Writes nothing."""
    return {
        "compiler": COMPILER,
        "version": version,
        "flags": flags(),
        "sources": source_hashes(),
        "artefacts": {name: hash_of(BUILD / name) for name in ARTEFACTS},
    }


def make(*, check: bool) -> int:
    """Compile into p4/build/tna, or with `check` compare. Return the exit status, see `make_build`."""
    right = partial(manifest, compiler_version())
    return make_build(BUILD, ARTEFACTS, compile_into, right, "make p4-tna", check=check)


def main() -> int:
    """Compile into p4/build/tna (minutes). With --check, compile elsewhere and compare. Return the exit status."""
    args = argument_parser(str(__doc__)).parse_args()
    return exit_status(lambda: make(check=args.check))


if __name__ == "__main__":
    sys.exit(main())
