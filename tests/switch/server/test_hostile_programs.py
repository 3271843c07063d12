# SPDX-License-Identifier: Apache-2.0
"""Programs that ask for more than a machine has are refused by name; a switch that compiles can be ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hopsum_switch.errors import ProgramError
from hopsum_switch.p4runtime.pipeline_config import PipelineManager, verify
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.program import load_program

from .controller import DEADLINE_S, NAMES, P4INFO, PROGRAM

METER = {"name": "m", "id": 0, "is_direct": False, "rate_count": 2, "type": "bytes", "result_target": None}
COMPILING = """
import sys, time, hopsum_switch.cli as cli
def compiling(program):
    print("compiles", flush=True)
    time.sleep(600)
cli.engine_maker = lambda *_, **__: compiling
sys.exit(cli.main(sys.argv[1:]))
"""

HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "wide field": (
        lambda d: d["header_types"][-1]["fields"][0].__setitem__(1, 1 << 31),
        "has 2147483648 bits, at most",
    ),
    "many fields": (
        lambda d: d["header_types"][-1]["fields"].extend([f"x{number}", 8, False] for number in range(20_000)),
        "fields together, at most 16384 run here",
    ),
    "large register": (
        lambda d: d["register_arrays"][0].update(size=1 << 40),
        "the largest is .*last_source with 1099",
    ),
    "wide register": (lambda d: d["register_arrays"][0].update(bitwidth=1 << 31), "has 2147483648 bits, at most"),
    "large counter": (lambda d: d["counter_arrays"][1].update(size=1 << 40), r"counter.* have \d+ cells together"),
    "large meter": (lambda d: d["meter_arrays"].append({**METER, "size": 1 << 40}), "meters have 1099511627776 cells"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_sizes_have_limits(name: str) -> None:
    change, message = HOSTILE[name]
    document = json.loads(PROGRAM.read_text())
    change(document)
    with pytest.raises(ProgramError, match=message):
        load_program(json.dumps(document))


def test_too_little_memory_is_no_fault_of_the_switch() -> None:
    def too_large(_: object) -> Any:
        raise MemoryError

    with (
        closing(Dataplane()) as dataplane,
        pytest.raises(P4RuntimeError, match="need more memory than there is") as raised,
    ):
        PipelineManager(dataplane, too_large).make(verify(NAMES.message, PROGRAM.read_bytes()))
    assert raised.value.code is RpcCode.RESOURCE_EXHAUSTED


def switch(*words: str, p4info: str, folder: Path) -> list[str]:
    (folder / "p4info.txtpb").write_text(p4info)
    files = ("--program", str(PROGRAM), "--p4info", str(folder / "p4info.txtpb"))
    return [sys.executable, *words, "--grpc", f"unix:{folder / 's'}", *files]


@pytest.mark.parametrize(
    ("p4info", "message"),
    [
        ("pkg_info { " + "x { " * 100_000, "nested too deeply"),
        (P4INFO.read_text().replace('"StationIngress.l2"', r'"Forged\n\033[2J"'), r"Forged\n\x1b[2J"),
    ],
)
def test_p4info_is_refused_in_printable_lines(p4info: str, message: str, tmp_path: Path) -> None:
    command = switch("-m", "hopsum_switch", "--backend", "interpreter", p4info=p4info, folder=tmp_path)
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert run.returncode == 1
    assert message in run.stderr
    assert run.stderr.replace("\n", "").isprintable()
    assert "fault of hopsum" not in run.stderr


def test_sigterm_ends_a_switch_that_compiles(tmp_path: Path) -> None:
    command = switch("-c", COMPILING, p4info=P4INFO.read_text(), folder=tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "compiles\n"
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
