# SPDX-License-Identifier: Apache-2.0
"""Programs that break a rule of the course: the solutions with one change each, and what p4c makes of them.

`cd tests && python -m labs.mutants` compiles them again (needs p4c-bm2-ss) and writes `data/mutants.json.gz`, so that
the graders are tested without a compiler.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hopsum_labs.grading import CompiledProgram, compile_program
from hopsum_labs.levels import LEVELS, PROGRAM

RECORDED = Path(__file__).parent / "data" / "mutants.json.gz"


class Mutant(NamedTuple):
    """A change to a solution: `old` occurs there once. `breaks` is a case that has to find it."""

    level: str
    name: str
    old: str
    new: str
    breaks: str


_SUM, _KIND = "sum + value;", "hdr.aggregation.kind != CONTRIBUTION"
_RESULT, _RANK = "hdr.aggregation.kind = RESULT;", "hdr.aggregation.rank = meta.rack;"
_ANSWER = "standard.egress_spec = standard.ingress_port;"
_DOWN = "            standard.mcast_grp = BELOW;\n            return;"
_UP = "standard.egress_spec = meta.uplink;"
_PASSED_DOWN = "is_from_above && hdr.aggregation.kind == RESULT"
_SOURCE = "hdr.ethernet.source = SWITCH_MAC;\n"
_DROPPED_EACH = "mark_to_drop(standard);\n        }\n        arrived.write"
_ANSWERED_EACH = _ANSWER + "\n        }\n        arrived.write"
_SHORT = "hdr.aggregation.chunk = hdr.aggregation.chunk & 0xFFFF;"
_CHUNK = f"{_RESULT} {_SHORT}"
_ANY_TYPE = (
    "default: accept;\n        }\n    }\n\n    state aggregation",
    "default: aggregation;\n        }\n    }\n\n    state aggregation",
)
_PORTS = "hdr.udp.source_port = AGGREGATION_PORT;\n        hdr.udp.destination_port = AGGREGATION_PORT;"
_SWAPPED = "hdr.udp.destination_port = hdr.udp.source_port; hdr.udp.source_port = AGGREGATION_PORT;"
_NOT_FOR_US, _NOT_OUR_MAC = "hdr.ipv4.destination != meta.switch_ip", "hdr.ethernet.destination != meta.switch_mac"
_FLOODS = ("drop() {\n        mark_to_drop(standard);", "drop() {\n        standard.mcast_grp = ALL_WORKERS;")
_ECHOES = ("mark_to_drop(standard);\n            return;", f"{_ANSWER}\n            return;")
_TWICE = ("packet.emit(hdr.values);", "packet.emit(hdr.values);\n        packet.emit(hdr.values);")
_CUT = ("!hdr.values.isValid()", "!hdr.aggregation.isValid()")
_HALVES = "(sum[31:16] + value[31:16]) ++ (sum[15:0] + value[15:0]);"
_UDP_EVERYWHERE = (
    ("sums_of_sixteen_bits", _SUM, "(sum + value) & 0xFFFF;", "sum_over_udp"),
    ("halves_without_a_carry", _SUM, _HALVES, "sum_over_udp"),
    ("saturates", _SUM, "sum |+| value;", "sum_over_udp"),
    ("any_kind_but_result", _KIND, "hdr.aggregation.kind == RESULT", "for_the_switch_only"),
    ("any_port", "(AGGREGATION_PORT, 48)", "(_, 48)", "for_the_switch_only"),
    ("any_length", "(AGGREGATION_PORT, 48)", "(AGGREGATION_PORT, _)", "for_the_switch_only"),
    ("fragments", "(5, 0, PROTOCOL_UDP)", "(5, _, PROTOCOL_UDP)", "for_the_switch_only"),
    ("options", "(5, 0, PROTOCOL_UDP)", "(_, 0, PROTOCOL_UDP)", "for_the_switch_only"),
    ("any_protocol", "(5, 0, PROTOCOL_UDP)", "(5, 0, _)", "for_the_switch_only"),
    ("floods", *_FLOODS, "ordinary_traffic"),
    ("longer_datagrams", "(AGGREGATION_PORT, 48)", "(AGGREGATION_PORT, 48 &&& 0xFFF0)", "for_the_switch_only"),
    ("cut_contributions", *_CUT, "for_the_switch_only"),
    ("told_by_ethernet_address", _NOT_FOR_US, _NOT_OUR_MAC, "ordinary_traffic"),
    ("told_by_both_addresses", _NOT_FOR_US, f"{_NOT_FOR_US} || {_NOT_OUR_MAC}", "for_the_switch_only"),
    ("drops_what_is_no_ipv4", "!hdr.ipv4.isValid() ||", "hdr.ipv4.isValid() &&", "ordinary_traffic"),
    ("counts_hops", "egress_spec = port;", "egress_spec = port; hdr.ipv4.ttl = hdr.ipv4.ttl - 1;", "ordinary_traffic"),
    ("forwards_to_one", "standard.egress_spec = port;", "standard.egress_spec = 3;", "ordinary_traffic"),
    (
        "mends_others_checksums",
        "standard.checksum_error == 1",
        "standard.checksum_error == 1 && hdr.ipv4.destination == meta.switch_ip",
        "ordinary_traffic",
    ),
    ("seven_workers_at_most", "count == meta.workers", "count == (meta.workers & 7)", "sum_over_udp"),
    ("answers_one", "standard.mcast_grp = ALL_WORKERS;", _ANSWER, "sum_over_udp"),
    ("stays_a_contribution", _RESULT, "", "sum_over_udp"),
    ("values_twice", *_TWICE, "sum_over_udp"),
    ("chunk_of_sixteen_bits", _RESULT, _CHUNK, "result_addresses"),
    ("own_mac_in_the_program", "meta.switch_mac = mac;", "meta.switch_mac = 0x0200000000FE;", "result_addresses"),
    ("own_ip_in_the_program", "meta.switch_ip = ip;", "meta.switch_ip = 0x0A0000FE;", "result_addresses"),
    ("keeps_source", "hdr.ethernet.source = meta.switch_mac;", "", "result_addresses"),
    ("keeps_destination", "hdr.ethernet.destination = mac;", "", "result_addresses"),
    ("same_source", "hdr.ipv4.source = meta.switch_ip;", "", "result_addresses"),
    ("keeps_source_port", "hdr.udp.source_port = AGGREGATION_PORT;", "", "result_addresses"),
    ("swaps_ports", _PORTS, _SWAPPED, "result_addresses"),
    ("same_destination", "hdr.ipv4.destination = ip;", "", "result_addresses"),
    ("no_time_to_live", "hdr.ipv4.ttl = 64;", "", "checksums"),
    ("old_udp_checksum", "hdr.udp.checksum = 0;", "", "checksums"),
    ("no_checksum_test", "standard.checksum_error == 1", "false", "for_the_switch_only"),
    ("adds_everything", "|| hdr.aggregation.kind != CONTRIBUTION", "", "for_the_switch_only"),
    ("takes_others_packets", f"|| {_NOT_FOR_US}", "", "ordinary_traffic"),
    ("rewrites_others_results", "&& meta.is_answer == 1", "", "ordinary_traffic"),
    ("adds_to_the_last_round", "bool is_first = count == 0;", "bool is_first = false;", "sum_over_udp"),
    ("early_result", "count == meta.workers", "count == 2", "sum_over_udp"),
    ("wrong_ip_checksum", "update_checksum(hdr.ipv4.isValid()", "update_checksum(false", "checksums"),
)
_LOSS = (
    ("sums_of_sixteen_bits", _SUM, "(sum + value) & 0xFFFF;", "two_versions"),
    ("saturates", _SUM, "sum |+| value;", "two_versions"),
    ("any_kind_but_result", _KIND, "hdr.aggregation.kind == RESULT", "who_does_not_exist"),
    ("any_protocol", "(5, 0, PROTOCOL_UDP)", "(5, 0, _)", "who_does_not_exist"),
    (
        "answers_at_rank_plus_one",
        _ANSWER,
        "standard.egress_spec = (bit<9>)hdr.aggregation.rank + 1;",
        "again_after_the_end",
    ),
    (
        "answers_at_its_usual_port",
        _ANSWER,
        "standard.egress_spec = hdr.aggregation.rank == 1 ? 9w3 : standard.ingress_port;",
        "again_after_the_end",
    ),
    (
        "bits_by_port",
        "8w1 << hdr.aggregation.rank",
        "8w1 << (bit<8>)(standard.ingress_port - 1)",
        "again_before_the_end",
    ),
    (
        "keeps_the_contributions_addresses",
        "answer();\n                standard.egress_spec",
        "hdr.aggregation.kind = RESULT;\n                standard.egress_spec",
        "again_after_the_end",
    ),
    ("floods", *_FLOODS, "who_does_not_exist"),
    ("no_time_to_live", "hdr.ipv4.ttl = 64;", "", "who_does_not_exist"),
    ("one_count", "arrived.write(copy, count);", "arrived.write(0, count); arrived.write(1, count);", "late_worker"),
    (
        "one_bitmap",
        "seen.write(other, other_bitmap & ~own_bit);",
        "seen.write(other, bitmap | own_bit);",
        "late_worker",
    ),
    ("answers_once", _ANSWER, f"{_ANSWER} seen.write(copy, bitmap & ~own_bit);", "again_after_the_end"),
    ("adds_again", "bitmap & own_bit == 0", "true", "again_before_the_end"),
    ("never_answers_again", "} else if (count == meta.workers) {", "} else if (false) {", "again_after_the_end"),
    ("answers_all_again", _ANSWER, "standard.mcast_grp = ALL_WORKERS;", "again_after_the_end"),
    ("answers_nobody", _ANSWER, "standard.egress_spec = 0;", "random_loss"),
    ("answers_too_early", "} else if (count == meta.workers) {", "} else if (true) {", "again_before_the_end"),
    ("answers_with_its_own", "recall(cell + 3, hdr.values.v3);", "", "again_after_the_end"),
    ("never_clears", "other_bitmap & ~own_bit", "other_bitmap", "two_versions"),
    ("clears_all", "other_bitmap & ~own_bit", "0", "late_worker"),
    ("one_version", "bit<32> cell = copy * 8;", "bit<32> cell = copy * 0;", "late_worker"),
    ("adds_to_the_last_round", "count == 0 || count == meta.workers", "count == 0", "two_versions"),
    ("any_rank", "|| hdr.aggregation.rank >= meta.workers", "", "who_does_not_exist"),
    ("any_version", "|| hdr.aggregation.version > 1", "", "who_does_not_exist"),
    ("clears_too_early", "other_bitmap & ~own_bit", "8w0xFF & ~own_bit", "random_loss"),
)
_SLOTS = (
    ("sums_of_sixteen_bits", _SUM, "(sum + value) & 0xFFFF;", "one_after_the_other"),
    ("any_version", "|| hdr.aggregation.version > 1", "", "no_such_slot"),
    ("any_rank", "|| hdr.aggregation.rank >= meta.workers", "", "no_such_slot"),
    ("one_slot", "(bit<32>)hdr.aggregation.slot * 2", "(bit<32>)0 * 2", "side_by_side"),
    ("slots_overlap", "(bit<32>)hdr.aggregation.slot * 2", "(bit<32>)hdr.aggregation.slot", "side_by_side"),
    ("any_slot", "|| hdr.aggregation.slot >= SLOTS", "", "no_such_slot"),
    ("one_slots_sums", "cell = copy * 8;", "cell = (copy & 1) * 8;", "side_by_side"),
    ("one_slots_count", "arrived.read(count, copy);", "arrived.read(count, copy & 1);", "one_after_the_other"),
    ("one_slots_bitmap", "seen.read(bitmap, copy);", "seen.read(bitmap, copy & 1);", "one_after_the_other"),
    ("floods", "default_action = drop();", "default_action = send_to(1);", "no_such_slot"),
    ("fifteen_slots", "const bit<8>  SLOTS = 16;", "const bit<8>  SLOTS = 15;", "one_after_the_other"),
    ("adds_again", "bitmap & own_bit == 0", "true", "again_before_the_end"),
    ("never_answers_again", "} else if (count == meta.workers) {", "} else if (false) {", "again_after_the_end"),
    ("clears_all", "other_bitmap & ~own_bit", "0", "late_worker"),
)
_ETHERNET = (
    ("sums_of_sixteen_bits", _SUM, "(sum + value) & 0xFFFF;", "wraps"),
    ("halves_without_a_carry", _SUM, _HALVES, "sum_of_two"),
    ("any_kind_but_result", _KIND, "hdr.aggregation.kind == RESULT", "other_frames"),
    ("cut_contributions", *_CUT, "other_frames"),
    ("any_type", *_ANY_TYPE, "other_frames"),
    ("answers_each", _DROPPED_EACH, _ANSWERED_EACH, "sum_of_two"),
    ("values_twice", *_TWICE, "sum_of_two"),
    ("seven_workers_at_most", "count == meta.workers", "count == (meta.workers & 7)", "any_number_of_workers"),
    ("keeps_the_last_only", "is_first ? value : sum + value", "value", "sum_of_two"),
    ("one_cell_twice", "aggregate(1, is_first", "aggregate(0, is_first", "sum_of_two"),
    ("stays_a_contribution", _RESULT, "", "sum_of_two"),
    ("answers_one", "standard.mcast_grp = ALL_WORKERS;", _ANSWER, "sum_of_two"),
    ("always_two", "count == meta.workers", "count == 2", "any_number_of_workers"),
    ("keeps_source", "hdr.ethernet.source = SWITCH_MAC;", "", "addresses"),
    ("keeps_destination", "hdr.ethernet.destination = BROADCAST;", "", "addresses"),
    ("chunk_of_sixteen_bits", _RESULT, _CHUNK, "addresses"),
    ("adds_to_the_last_round", "bool is_first = count == 0;", "bool is_first = false;", "next_round"),
    ("saturates", "sum + value;", "sum |+| value;", "wraps"),
    ("adds_results", "|| hdr.aggregation.kind != CONTRIBUTION", "", "other_frames"),
    ("echoes_strangers", *_ECHOES, "other_frames"),
)
_FLOATS = (
    ("adds_codes", "lookup3.apply(hdr.codes.c3, hdr.sums.s3);", "hdr.sums.s3 = (bit<16>)hdr.codes.c3;", "looks_up"),
    ("one_place_twice", "lookup5.apply(hdr.codes.c5,", "lookup5.apply(hdr.codes.c4,", "looks_up"),
    ("seven_places", "lookup7.apply(hdr.codes.c7, hdr.sums.s7);", "hdr.sums.s7 = 0;", "looks_up"),
    (
        "table_in_the_program",
        "        value = 0;\n        values.apply();",
        "        value = 0;\n        values.apply();\n        if (code == 1) { value = 25; }",
        "any_table",
    ),
    (
        "no_entry_is_the_code",
        "        value = 0;\n        values",
        "        value = (bit<16>)code;\n        values",
        "any_table",
    ),
    (
        "sums_of_eight_bits",
        "value = is_first ? value : sum + value;",
        "value = is_first ? value : (sum + value) & 0xFF;",
        "adds",
    ),
    ("adds_to_the_last_round", "bool is_first = count == 0;", "bool is_first = false;", "adds"),
    ("always_two", "count == meta.workers", "count == 2", "adds"),
    ("keeps_the_codes", "hdr.codes.setInvalid();", "", "result_packet"),
    ("keeps_source", "hdr.ethernet.source = SWITCH_MAC;", "", "result_packet"),
    ("keeps_destination", "hdr.ethernet.destination = BROADCAST;", "", "result_packet"),
    ("chunk_of_sixteen_bits", _RESULT, _CHUNK, "result_packet"),
    ("stays_a_contribution", _RESULT, "", "result_packet"),
    (
        "two_places_tables_swapped",
        "lookup2.apply(hdr.codes.c2, hdr.sums.s2);\n        lookup3.apply(hdr.codes.c3, hdr.sums.s3);",
        "lookup3.apply(hdr.codes.c2, hdr.sums.s2);\n        lookup2.apply(hdr.codes.c3, hdr.sums.s3);",
        "any_table",
    ),
    ("any_type", *_ANY_TYPE, "other_frames"),
    ("echoes_strangers", *_ECHOES, "other_frames"),
    (
        "takes_every_kind",
        "            default: accept;\n        }\n    }\n\n    state codes",
        "            default: codes;\n        }\n    }\n\n    state codes",
        "other_frames",
    ),
)
_RACKS = (
    ("sums_of_sixteen_bits", _SUM, "(sum + value) & 0xFFFF;", "two_racks"),
    ("any_kind_but_result", _KIND, "hdr.aggregation.kind == RESULT", "only_from_the_right_side"),
    (
        "answers_at_the_leaf",
        "if (meta.is_leaf == 1) {\n                send_up",
        "if (false) {\n                send_up",
        "leaf_sends_up",
    ),
    ("keeps_the_rank", _RANK, "", "leaf_sends_up"),
    ("keeps_source", f"{_SOURCE}        {_RANK}", _RANK, "leaf_sends_up"),
    ("chunk_of_sixteen_bits", _RANK, f"{_RANK} {_SHORT}", "leaf_sends_up"),
    ("uplink_in_the_program", "meta.uplink = uplink;", "meta.uplink = 9;", "leaf_sends_up"),
    ("spine_keeps_source", f"{_SOURCE}        {_RESULT}", _RESULT, "only_from_the_right_side"),
    ("spine_keeps_destination", "hdr.ethernet.destination = BROADCAST;", "", "only_from_the_right_side"),
    ("spine_forgets_the_chunk", _RESULT, _CHUNK, "only_from_the_right_side"),
    (
        "answers_one_leaf",
        f"{_RESULT}\n        standard.mcast_grp = BELOW;",
        f"{_RESULT}\n        {_ANSWER}",
        "two_racks",
    ),
    (
        "passes_results_at_the_spine",
        "if (is_from_above && hdr",
        "if ((is_from_above || meta.is_leaf == 0) && hdr",
        "only_from_the_right_side",
    ),
    ("passes_other_kinds_down", _PASSED_DOWN, f"is_from_above && {_KIND}", "only_from_the_right_side"),
    ("any_type", *_ANY_TYPE, "only_from_the_right_side"),
    ("cut_contributions", *_CUT, "only_from_the_right_side"),
    ("sends_everywhere", _UP, f"{_UP} standard.mcast_grp = BELOW;", "leaf_sends_up"),
    ("sends_a_result_up", _RANK, _RANK + " hdr.aggregation.kind = RESULT;", "leaf_sends_up"),
    ("drops_the_result", _DOWN, "            mark_to_drop(standard);\n            return;", "leaf_hands_down"),
    (
        "rewrites_the_result",
        _DOWN,
        "            hdr.aggregation.chunk = 0;\n            standard.mcast_grp = BELOW;\n            return;",
        "leaf_hands_down",
    ),
    ("results_of_workers", _PASSED_DOWN, "hdr.aggregation.kind == RESULT", "only_from_the_right_side"),
    ("adds_what_comes_down", "if (is_from_above || hdr.aggregation", "if (hdr.aggregation", "only_from_the_right_side"),
    ("adds_results", "|| hdr.aggregation.kind != CONTRIBUTION", "", "only_from_the_right_side"),
    (
        "forwards_each",
        "            mark_to_drop(standard);\n        }\n        arrived",
        "            mark_to_drop(standard);\n"
        "            if (meta.is_leaf == 1) { send_up(); }\n        }\n        arrived",
        "two_racks",
    ),
    ("adds_to_the_last_round", "bool is_first = count == 0;", "bool is_first = false;", "two_racks"),
    ("racks_of_two", "count == meta.below", "count == 2", "unequal_racks"),
)
_BY_LEVEL = zip(LEVELS, (_ETHERNET, _UDP_EVERYWHERE, _LOSS, _SLOTS, _FLOATS, _RACKS), strict=True)
MUTANTS = tuple(Mutant(level, *row) for level, rows in _BY_LEVEL for row in rows)
SKELETON = "skeleton"
RENAMED = "udp/renamed"
"""The solution of level 2 with parameters and headers of other names, which is as right."""


def source_of(mutant: Mutant) -> str:
    """Return the changed program; the text that is changed has to be there exactly once."""
    solution = (LEVELS[mutant.level].solution / f"{PROGRAM}.p4").read_text()
    times = solution.count(mutant.old)
    assert times == 1, f"{mutant.level}/{mutant.name}: {mutant.old!r} occurs {times} times in the solution"
    return solution.replace(mutant.old, mutant.new)


def sources() -> dict[str, str]:
    """Return all programs to record, by LEVEL/NAME: the mutants, the skeletons and `RENAMED`."""
    skeletons = {f"{word}/{SKELETON}": (level.exercise / f"{PROGRAM}.p4").read_text() for word, level in LEVELS.items()}
    renamed = (LEVELS["udp"].solution / f"{PROGRAM}.p4").read_text()
    for old, new in {"hdr": "h", "standard": "standard_metadata", "meta": "m", "ethernet": "eth"}.items():
        renamed = re.sub(rf"\b{old}\b", new, renamed)
    return {RENAMED: renamed} | skeletons | {f"{mutant.level}/{mutant.name}": source_of(mutant) for mutant in MUTANTS}


def hashes() -> dict[str, str]:
    """Return the SHA-256 of every source."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources().items()}


@cache
def recorded() -> dict[str, Any]:
    """Return what was recorded: `sources`, hashes by name, and `programs`, p4c's JSON and P4Info by name."""
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return document


def write_recorded(name: str, folder: Path) -> CompiledProgram:
    """Write a recorded program, LEVEL/NAME, as the compiler would into a folder."""
    program = recorded()["programs"][name]
    compiled = CompiledProgram(folder / "program.json", folder / "program.p4info.txtpb")
    compiled.program.write_text(json.dumps(program["json"]))
    compiled.p4info.write_text(program["p4info"])
    return compiled


def compile_text(text: str) -> dict[str, Any]:
    """Return p4c's JSON without source lines as `json`, and the P4Info as `p4info`."""
    with TemporaryDirectory() as name:
        source = Path(name) / f"{PROGRAM}.p4"
        source.write_text(text)
        made = compile_program(source, Path(name))
        program = _without_sources(json.loads(made.program.read_text()))
        return {"json": program, "p4info": made.p4info.read_text()}


def _without_sources(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_sources(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [_without_sources(value) for value in node]
    return node


def main() -> int:
    """Compile all and write the recording."""
    programs = {}
    for name, text in sources().items():
        programs[name] = compile_text(text)
        print(name)
    document = json.dumps({"sources": hashes(), "programs": programs}, separators=(",", ":"))
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_bytes(gzip.compress(document.encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
