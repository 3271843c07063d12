# SPDX-License-Identifier: Apache-2.0
"""`hopsum ptf`: PTF tests of any compiled v1model program, on a switch that is started for them."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hopsum_base.arguments import existing_file
from hopsum_cli.program_arguments import add_p4info, program_with_p4info
from hopsum_switch.cli import port_number
from hopsum_topologies import TopologyError
from hopsum_topologies.ptf.case_results import Result, format_table, format_totals
from hopsum_topologies.ptf.ptf_command import RunnerError, list_cases, log_folder, run_cases
from hopsum_topologies.ptf.ptf_switches import SWITCHES

_MAX_PORTS = 200
_EPILOG = """\
A test is a subclass of hopsum_topologies.ptf.program_test.ProgramTest. Before each test the program is pushed: no
entries, no multicast groups, registers and counters at zero. Ports are 1 to N. Other tests of ptf, as those of p4lang's
exercises, push a program themselves: they get the test parameters grpcaddr, p4info and config.

targets:
  native   the embedded switch with AF_UNIX ports; no root
  bmv2     simple_switch_grpc with veth pairs, in a network namespace; root

examples:
  hopsum ptf my.json tests/                        # all tests of the folder
  hopsum ptf my.json tests/sums.py --trace trace   # one module, and what the switch did with every packet
  hopsum ptf my.json tests/ sums.Duplicate --target bmv2
  hopsum ptf build/basic.json ptf/ --ports 0-7 --cpu-port 510   # tests written for simple_switch_grpc

The exit status is 0 when every test passed or was skipped with a reason, else 1.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum ptf",
        description="Run PTF tests of a compiled v1model program on a switch that is started for them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "program", type=existing_file, metavar="X.json", help="compiled program, the JSON of p4c-bm2-ss"
    )
    parser.add_argument("tests", type=Path, metavar="TESTS", help="folder with test modules, or one module, FILE.py")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="modules or module.Class (default: all)")
    add_p4info(parser)
    parser.add_argument("--target", choices=list(SWITCHES), default="native", help="switch (default %(default)s)")
    parser.add_argument(
        "--ports", type=_ports, default=_ports("8"), metavar="N", help="ports 1 to N (default 8), or FIRST-LAST, as 0-7"
    )
    parser.add_argument(
        "--cpu-port", type=port_number, metavar="N", help="CPU port of packet-ins and packet-outs; embedded switch only"
    )
    parser.add_argument("--list", action="store_true", help="list the tests and leave")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="folder to keep ptf's log, output and results in")
    parser.add_argument("--trace", metavar="FILE", help="write every packet's events to FILE; embedded switch only")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Start a switch, run the tests on it, and print a table. With --list only print the names of the tests.

    Return 0 if every test passed or was skipped, else 1.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    for option in ("trace", "cpu_port"):
        if getattr(options, option) is not None and options.target == "bmv2":
            parser.error(f"--{option.replace('_', '-')}: for the embedded switch alone; use --target native")
    try:
        folder, chosen = _tests(options.tests, options.cases)
        cases = list_cases(chosen, folder)
        if options.list:
            print("\n".join(cases))
            return 0
        return _run(options, cases, folder)
    except (RunnerError, TopologyError) as error:
        print(f"hopsum ptf: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, cases: Sequence[str], folder: Path) -> int:
    program = program_with_p4info(options.program, options.p4info)
    extra = ["--trace", os.path.abspath(options.trace)] if options.trace else []
    if options.cpu_port is not None:
        extra += ["--cpu-port", str(options.cpu_port)]
    given = {"program": str(program[0].absolute()), "p4info": str(program[1].absolute())}
    with log_folder(options.logs) as logs, SWITCHES[options.target](program, options.ports, extra) as target:
        # The names that tests of p4lang's exercises ask for.
        given |= {"config": given["program"], "grpcaddr": target.address}
        status, results = run_cases(target, cases, logs, folder=folder, parameters=given)
        failed = status != 0 or any(result.outcome not in ("ok", "skipped") for result in results)
        if failed:
            # ptf's own words hold the traceback. Where all passed they only repeat the table.
            print((logs / "output").read_text(errors="replace"))
    _show(options.target, results)
    return int(failed)


def _ports(text: str) -> range:
    """Read N, for ports 1 to N, or FIRST-LAST."""
    found = re.fullmatch("(?:([0-9]+)-)?([0-9]+)", text)
    ports = range(0) if found is None else range(int(found[1] or 1), int(found[2]) + 1)
    if not ports or ports[-1] > _MAX_PORTS:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of ports from 1 to {_MAX_PORTS}, or FIRST-LAST, as 0-7")
    return ports


def _show(target: str, results: Sequence[Result]) -> None:
    print(format_table({target: results}))
    print(format_totals(target, results))


def _tests(path: Path, cases: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of the tests and the cases that are asked for. Raises RunnerError: there is no such path."""
    if path.is_dir():
        return path.absolute(), list(cases)
    if not path.is_file():
        raise RunnerError(f"there is no folder or module {path}")
    strange = [case for case in cases if case.partition(".")[0] != path.stem]
    if strange:
        raise RunnerError(f"{', '.join(strange)}: not in {path}, whose tests are {path.stem}.CLASS")
    return path.absolute().parent, list(cases) or [path.stem]
