# SPDX-License-Identifier: Apache-2.0
"""Traces and snapshots: what they hold, how they read, and that looking changes nothing."""

from __future__ import annotations

import errno
import io
import logging
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.cli import main
from hopsum_switch.engine import Engine
from hopsum_switch.errors import UnsupportedError
from hopsum_switch.interp.observer import Observer
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.observe.snapshot import SnapshotError, full_name, take_snapshot
from hopsum_switch.observe.trace import Trace, TraceWriter, shorten_number, trace_to
from hopsum_switch.program import load_program
from hopsum_switch.state.copies import PortCopy

from ..core.builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive
from .programs import PATHS, STATION, frame, frames, ipv4, station

PLACE = "test.p4(42): the construct"
LAST = "last_source.write((bit<32>) s.ingress_port & 15, h.ethernet.src)"
MARK = "station.p4(84): mark_to_drop(s)"


def texts_of(*traffic: tuple[int, bytes]) -> list[str]:
    texts: list[str] = []
    engine = station(Trace(texts.append))
    for number, (port, data) in enumerate(traffic):
        engine.process(port, data, now_us=10 * number)
    return texts


def test_a_dropped_packet_reads_as_it_went() -> None:
    (text,) = texts_of((3, frame(4)))
    expected = f"""\
packet 1: port 3, 14 bytes, 0 us
  frame 0000000000040000000000011234
  parser start -> ethernet
  headers ethernet
  ingress
    statements (station.p4(132): received.count((bit<32>) s.ingress_port)): station132()
    count StationIngress.received[3]: packets 0 -> 1, bytes 0 -> 14
    if node_3 (station.p4(133): h.packet_out.isValid()): false
    statements (station.p4(137): {LAST}): station137()
    write StationIngress.last_source[3]: 0x0 -> 0x1
    table StationIngress.kinds [h.ethernet.kind=0x1234] miss: NoAction()
    table StationIngress.l2 [h.ethernet.dst=0x4] miss: StationIngress.drop()
    mark_to_drop in StationIngress.drop ({MARK})
    if node_8 (station.p4(140): h.ipv4.isValid()): false
  dropped in ingress: mark_to_drop in StationIngress.drop ({MARK})"""
    assert text == expected


def test_a_replicated_packet_shows_every_copy() -> None:
    (text,) = texts_of((0, frame(6)))
    assert text.splitlines()[-5:] == [
        "  multicast group 9: port 1 instance 7, port 3 instance 8",
        "  copy to port 1, instance 7",
        "    sent 14 bytes: 0000000000060000000000011234",
        "  copy to port 3, instance 8",
        "    sent 14 bytes: 0000000000060000000000011234",
    ]


def test_a_hit_shows_entry_action_and_parameters() -> None:
    first, second = texts_of((0, ipv4(5, "10.1.2.3")), (0, frame(5)))
    assert "table StationIngress.routes [h.ipv4.dst=0xa010203] hit entry 1: StationIngress.forward(port=0x3)" in first
    assert second.startswith("packet 2: port 0, 14 bytes, 10 us\n")
    assert "    count StationIngress.received[0]: packets 1 -> 2, bytes 34 -> 48" in second.splitlines()


def test_a_parser_error_is_named_and_the_path_ends_where_it_happened() -> None:
    (text,) = texts_of((0, frame(5, 0x0800, bytes(19))))
    assert "  parser start -> ethernet -> ipv4, error PacketTooShort\n  headers ethernet\n" in text


def run(builder: ProgramBuilder, *, egress: bool = False, values: bool = False) -> str:
    """Return the text of one frame with h.a = 3 and h.b = 4."""
    texts: list[str] = []
    trace = Trace(texts.append, values=values)
    (Engine(builder.load(), observer=trace) if egress else builder.engine(observer=trace)).process(5, b"\x03\x04")
    return texts[0]


def test_drops_of_egress_and_without_a_mark_are_told_apart() -> None:
    builder = build()
    builder.egress_primitives.append(primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"}))
    assert "    dropped in egress: mark_to_drop in egress_act (test.p4(42): the construct)" in run(builder)
    builder = build()
    builder.primitives.append(assign(field("standard_metadata", "egress_spec"), hexstr(511)))
    assert run(builder, egress=True).endswith("  dropped in ingress: the program set egress_spec to the drop port")


def traced(name: str, data: bytes, *sessions: int) -> list[str]:
    """Return the text of a packet in one of the programs of tests/switch/programs, without events of tables."""
    texts: list[str] = []
    path = next(path for path in PATHS if path.stem == name)
    engine = Engine(load_program(path.read_text()), observer=Trace(texts.append))
    for session in sessions:
        engine.clones.insert(session, [PortCopy(7, 1), PortCopy(8, 2)])
    engine.process(1, data)
    shown = ("  parser", "  ingress", "  copy", "    clone", "    resub", "    recirc", "    dropped")
    return [line.strip() for line in texts[0].splitlines() if line.startswith(shown)]


def test_packets_that_come_round_are_one_record() -> None:
    parse = "parser start -> marks"
    assert traced("rounds", bytes([1, 1, 0, 0, 0, 0, 0, 0, 0, 99])) == [
        parse,
        "ingress",
        "resubmitted: the packet starts again",
        parse,
        "ingress",
        "copy to port 2, instance 0",
        "recirculated: the packet starts again",
        f"{parse} -> marks",
        "ingress",
        "copy to port 2, instance 0",
    ]
    lines = traced("rounds", bytes([255, 255, 0, 0, 0, 0, 0, 0, 0, 99]))
    assert lines[-1] == "dropped: this packet has come round or was cloned too often"


@pytest.mark.parametrize("control", ["parser", "ingress", "egress"])
def test_a_frame_that_goes_round_for_ever_is_dropped_where_it_did(control: str) -> None:
    builder = build()
    if control == "parser":
        builder.states[0] = builder.state("start", "h", "start")
        builder.states[0]["parser_ops"] = []
    jump = primitive("_jump_if_zero", hexstr(0), hexstr(0))
    builder.primitives += [jump] * (control == "ingress")
    builder.egress_primitives += [jump] * (control == "egress")
    *_, step, last = (line for line in run(builder).splitlines() if not line.startswith("    s"))
    assert step.split()[0] == {"egress": "copy"}.get(control, control)
    if control == "parser":
        assert step == f"  parser {' -> '.join(['start'] * 64)} and 131,009 more"
    assert last == "    dropped: this frame has gone round loops of the program too often"


def test_clones_show_their_session_and_their_copies() -> None:
    first, second = "copy to port 7, instance 1", "copy to port 8, instance 2"
    sample, audit = bytes([1, 0, 0, 0, 0, 0]), bytes([0, 1, 0, 0, 0, 0])
    lines = traced("mirror", sample, 5)
    assert [line for line in lines if not line.startswith("parser")] == [
        "ingress",
        "clone to session 5: port 7 instance 1, port 8 instance 2",
        first,
        second,
        "copy to port 2, instance 0",
    ]
    assert len([line for line in lines if line.startswith("parser")]) == 2
    assert "clone to session 5: no replicas, no copies" in traced("mirror", sample)
    assert traced("mirror", audit, 6)[-4:] == [
        "copy to port 2, instance 0",
        "clone to session 6: port 7 instance 1, port 8 instance 2",
        first,
        second,
    ]


def test_messages_of_the_program_are_events() -> None:
    builder = build()
    vector = {"type": "parameters_vector", "value": [field("h", "a"), hexstr(7)]}
    builder.primitives.append(primitive("log_msg", {"type": "string", "value": "a={} of {} is 100%"}, vector))
    empty = {"type": "parameters_vector", "value": []}
    builder.primitives.append(primitive("log_msg", {"type": "string", "value": "done"}, empty))
    messages = [line for line in run(builder).splitlines() if line.startswith("    log")]
    assert messages == ["    log 'a=3 of 7 is 100%'", "    log 'done'"]


def test_a_priority_and_an_unknown_group_are_named() -> None:
    builder = build()
    builder.primitives.append(assign(field("standard_metadata", "priority"), hexstr(1)))
    assert run(builder).endswith("dropped: the priority is not 0 and there is one queue")
    builder = build()
    builder.primitives.append(assign(field("standard_metadata", "mcast_grp"), hexstr(3)))
    assert run(builder).endswith("multicast group 3: no replicas, no copies")


def test_registers_are_seen_with_both_values_and_an_index_outside_is_named() -> None:
    builder = build()
    register = {"type": "register_array", "value": "r"}
    for index, value in ((2, 0xABC), (2, 1), (7, 5)):
        builder.primitives.append(primitive("register_write", register, hexstr(index), hexstr(value)))
    builder.primitives.append(primitive("register_read", field("scalars", "m"), register, hexstr(2)))
    assert events(builder, values=False) == [
        "write r[2]: 0x0 -> 0xabc",
        "write r[2]: 0xabc -> 0x1",
        f"write r[7] ({PLACE}): index out of range, there are 4 cells, 0..3; nothing happens",
        "read r[2]: 0x1",
    ]


def test_a_valid_header_that_is_not_emitted_is_named() -> None:
    builder = build()
    builder.data["deparsers"][0]["order"] = ["h"]
    builder.primitives.append(primitive("add_header", {"type": "header", "value": "extra"}))
    assert "    valid, and not emitted by the deparser: extra" in run(builder).splitlines()
    assert "not emitted" not in run(build())


def test_long_numbers_and_frames_are_shortened() -> None:
    assert shorten_number((1 << 80) - 1) == "0x" + "f" * 20
    assert shorten_number(0x12345678 << 480 | 0x9ABCDEF0) == "0x12345678..9abcdef0 (128 digits)"
    data = frame(5, payload=bytes(100))
    (text,) = texts_of((0, data))
    assert f"  frame {data.hex()[:128]}.. (114 bytes)" in text.splitlines()


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_looking_changes_nothing(path: Path, values: bool) -> None:
    program = load_program(path.read_text())
    seen: list[str] = []
    trace = Trace(seen.append, values=values)
    engines = [Engine(program), Engine(program, observer=trace)]
    if path == PATHS[0]:
        engines = [station(), station(trace)]
    for number, (port, data) in enumerate(frames(2, 200), 1):
        outputs = [engine.process(port, data, now_us=number) for engine in engines]
        assert outputs[0] == outputs[1]
        assert len(seen) == number
    for name in program.registers:
        assert engines[0].registers.read_all(name) == engines[1].registers.read_all(name)
    for counter in program.counters.values():
        if counter.table is None:
            assert engines[0].counters.read_all(counter.name) == engines[1].counters.read_all(counter.name)


def test_a_failed_packet_is_shown_with_what_was_seen_of_it() -> None:
    class Fails(Observer):
        def packet_begins(self, port: int, data: bytes, now_us: int) -> None:
            trace.packet_begins(port, data, now_us)

        def parsed(self, error: str, headers: Any, wrong_checksums: Any) -> None:
            raise ZeroDivisionError

    texts: list[str] = []
    trace = Trace(texts.append)
    engine = station(Fails())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            engine.process(0, frame(5))
    assert len(texts) == 1
    trace.close()
    assert [text.splitlines()[0].split(",")[0] for text in texts] == ["packet 1: port 0", "packet 2: port 0"]
    assert all(text.endswith("\n  the engine failed here: its log has the reason") for text in texts)


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_trace_and_not_the_traffic(caplog: pytest.LogCaptureFixture) -> None:
    engine = station(Trace(TraceWriter(FullDisk())))
    with caplog.at_level(logging.ERROR):
        outputs = [engine.process(0, frame(5)) for _ in range(3)]
    assert all(outputs)
    assert [message for *_, message in caplog.record_tuples] == [
        "the trace ends at packet 1: [Errno 28] No space left on device"
    ]


def test_files_are_written_and_missing_folders_named(tmp_path: Path) -> None:
    with trace_to(str(tmp_path / "trace")) as trace:
        station(trace).process(0, frame(5))
    assert (tmp_path / "trace").read_text().startswith("packet 1: port 0, 14 bytes")
    with pytest.raises(OSError, match="No such file"), trace_to(str(tmp_path / "none" / "trace")):
        raise AssertionError("it must not open")


def test_observers_are_for_the_interpreter() -> None:
    trace = Trace(lambda text: None)
    for backend in (Backend.INTERPRETER, Backend.AUTO):
        assert engine_maker(backend, observer=trace)(STATION).backend == "interpreter"
    with pytest.raises(UnsupportedError, match="choose the interpreter"):
        engine_maker(Backend.NATIVE, observer=trace)


INVALID = ": the header is invalid"
EXTRA: Json = {"type": "header", "value": "extra"}
EXTRA_X = field("extra", "x")
M = field("scalars", "m")


def events(builder: ProgramBuilder, *, values: bool = True) -> list[str]:
    """Return the lines of ingress but for the statements' table and the assignment of the egress port."""
    lines = run(builder, values=values).splitlines()
    begin = lines.index("  ingress") + 1
    found = [line.removeprefix("    ") for line in takewhile(lambda line: line.startswith("    "), lines[begin:])]
    return [line for line in found if not line.startswith(("statements", "assign standard_metadata.egress_spec"))]


def valid(header: str) -> Json:
    return expression("valid", None, {"type": "header", "value": header})


def conditional(builder: ProgramBuilder, condition: Json) -> None:
    """Put an `if` before the only table of ingress."""
    node = {"name": "node_1", "id": 0, "expression": condition, "true_next": "tbl_in", "false_next": "tbl_in"}
    builder.ingress["conditionals"] = [node | {"source_info": builder.ingress["tables"][0]["source_info"]}]
    builder.ingress["init_table"] = "node_1"


def test_assignments_have_both_values_and_their_place() -> None:
    builder = build()
    builder.primitives += [
        assign(field("h", "a"), hexstr(9)),
        assign(field("h", "a"), hexstr(9)),
        primitive("register_read", M, {"type": "register_array", "value": "r"}, hexstr(2)),
    ]
    assert events(builder) == [
        f"assign h.a ({PLACE}): 0x3 -> 0x9",
        f"assign h.a ({PLACE}): 0x9 -> 0x9",
        "read r[2]: 0x0",
        f"assign scalars.m ({PLACE}): 0x0 -> 0x0",
    ]
    assert events(builder, values=False) == ["read r[2]: 0x0"]


def test_headers_become_valid_and_copies_of_headers_show_what_differs() -> None:
    builder = build()
    h, g = ({"type": "header", "value": name} for name in "hg")
    builder.primitives += [
        primitive("add_header", EXTRA),
        primitive("assign_header", g, h),
        primitive("remove_header", EXTRA),
    ]
    assert events(builder) == [
        f"header extra valid ({PLACE})",
        f"header g valid ({PLACE})",
        f"assign g.a ({PLACE}): 0x0 -> 0x3",
        f"assign g.b ({PLACE}): 0x0 -> 0x4",
        f"header extra invalid ({PLACE})",
    ]


def test_a_condition_shows_the_values_that_it_names() -> None:
    builder = build()
    equal = expression("==", field("h", "a"), field("h", "b"))
    conditional(builder, expression("or", equal, valid("extra")))
    assert events(builder) == [f"if node_1 ({PLACE}): false [h.a=0x3, h.b=0x4, extra.isValid()=false]"]
    assert events(builder, values=False) == [f"if node_1 ({PLACE}): false"]


def test_an_if_inside_an_action_is_told_on_request() -> None:
    builder = build()
    builder.primitives += [
        primitive("_jump_if_zero", expression("==", field("h", "a"), hexstr(4)) | {}, hexstr(2)),
        assign(M, hexstr(1)),
    ]
    builder.primitives[0]["parameters"][0] = expression("b2d", None, builder.primitives[0]["parameters"][0])
    assert events(builder) == [f"if in act ({PLACE}): false [h.a=0x3]"]
    assert events(builder, values=False) == []


@pytest.mark.parametrize("values", [False, True])
def test_a_read_of_an_invalid_header_is_always_told_and_counted(values: bool) -> None:
    builder = build()
    builder.primitives.append(assign(M, expression("+", EXTRA_X, field("h", "a"))))
    texts: list[str] = []
    engine = builder.engine(observer=Trace(texts.append, values=values))
    engine.process(5, b"\x03\x04")
    assert texts[0].count(INVALID) == 1
    assert f"    read extra.x ({PLACE}){INVALID}; 0x0 here, undefined in P4" in texts[0].splitlines()
    assert engine.faults == {"invalid_header_read": 1}


def test_a_part_that_is_not_evaluated_reads_nothing() -> None:
    guarded = expression("and", valid("extra"), expression("==", EXTRA_X, hexstr(0)))
    builder = build()
    conditional(builder, guarded)
    assert INVALID not in run(builder)
    deep = expression("==", EXTRA_X, hexstr(0))
    for _ in range(100):  # more than one line of Python may nest
        deep = expression("not", None, deep)
    for first, count in (("extra", 0), ("h", 1)):
        builder = build()
        conditional(builder, expression("and", valid(first), deep))
        assert run(builder, values=True).count(INVALID) == count


def test_a_field_of_a_header_that_was_removed_is_told_with_its_old_value() -> None:
    builder = build()
    builder.primitives += [primitive("remove_header", {"type": "header", "value": "h"}), assign(M, field("h", "a"))]
    assert f"{INVALID}; 0x3 here, undefined in P4" in run(builder)


def key(*targets: tuple[str, str]) -> ProgramBuilder:
    builder = build()
    kinds = [{"match_type": "exact", "name": ".".join(t), "target": list(t), "mask": None} for t in targets]
    builder.ingress["tables"][0]["key"] = kinds
    return builder


def test_a_key_tells_of_an_invalid_header_unless_its_validity_is_part_of_the_key() -> None:
    (line, *_) = events(key(("extra", "x")), values=False)
    assert line == f"read extra.x ({PLACE}){INVALID}; 0x0 here, undefined in P4"
    assert INVALID not in run(key(("extra", "$valid$"), ("extra", "x")))


def test_what_a_parser_sets_is_told() -> None:
    builder = build()
    builder.states[0]["parser_ops"].append({"op": "set", "parameters": [M, field("h", "b")]})
    text = run(builder, values=True)
    assert "    assign scalars.m: 0x0 -> 0x4" in text.partition("  ingress")[0].splitlines()


def test_values_need_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--trace-values"])
    assert "--trace-values adds to a trace: give --trace too" in capsys.readouterr().err


REGISTER, COUNTER = "StationIngress.last_source", "StationIngress.received"


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_it_holds_all_cells_and_stays_as_it_was_taken(backend: type[Engine]) -> None:
    engine = backend(STATION)
    engine.process(3, frame(4))
    snapshot = take_snapshot(engine)
    engine.process(3, frame(4))
    engine.registers.write(REGISTER, 5, 99)
    shown = snapshot.as_json()
    assert shown["registers"][REGISTER] == {"bits": 48, "values": ["0x0"] * 3 + ["0x1"] + ["0x0"] * 12}
    assert len(shown["counters"][COUNTER]["packets"]) == 512
    part = snapshot.as_json([COUNTER])
    assert part["registers"] == {}
    assert [part["counters"][COUNTER][unit][2:5] for unit in ("packets", "bytes")] == [[0, 1, 0], [0, 14, 0]]


def test_names_may_be_cut_to_their_last_parts() -> None:
    arrays = ["In.slot.tag", "In.other.tag", "In.slot.seen"]
    assert full_name("seen", arrays) == full_name("slot.seen", arrays) == full_name("In.slot.seen", arrays)
    assert full_name("slot.tag", arrays) == "In.slot.tag"
    with pytest.raises(SnapshotError, match=r"'tag' may be each of In\.slot\.tag, In\.other\.tag: give more"):
        full_name("tag", arrays)
    with pytest.raises(SnapshotError, match="no register or counter 'een': there are In"):
        full_name("een", arrays)


def test_what_cannot_be_selected_is_named() -> None:
    snapshot = take_snapshot(station())
    with pytest.raises(SnapshotError, match="no register or counter 'nothing': there are Station"):
        snapshot.as_json([REGISTER, "nothing"])


def test_direct_counters_are_left_to_table_reads() -> None:
    assert set(take_snapshot(station()).counters) == {COUNTER}
    assert take_snapshot(Engine(build().load())).counters.keys() == {"c"}
