# SPDX-License-Identifier: Apache-2.0
"""Checks of a controller's switches, from two snapshots of it."""

from __future__ import annotations

from typing import Any, Final

from hopsum.diagnosis.rows import CheckRow, failed, passed, skipped
from hopsum_wire.watch.snapshots import ControllerSnapshot, grown

_FIXES: Final = {
    "unreachable": "see that it runs and that its P4Runtime address is right; the controller keeps trying",
    "store": "the controller's database fails: see its disk",
    "other": "see the controller's log and the switch's",
}
DROPS: Final = {
    "truncated": "frames are cut short: look at MTU and segmentation offload on the way",
    "bad_checksum": "frames are damaged on the way, or leave without a checksum: switch off tx-checksum on veths",
    "bad_version": "a worker speaks another wire version: install the same hopsum everywhere",
    "bad_kind": "something else than hopsum sends to the service's port, or another hopsum",
    "bad_flags": "something else than hopsum sends to the service's port, or another hopsum",
    "bad_op": "something else than hopsum sends to the service's port, or another hopsum",
    "bad_length": "datagrams are cut or padded: look at MTU and segmentation offload on the way",
    "unknown_generation": "a worker continues in a generation that has ended: it has no lease of this controller "
    "(a membership file of an old job), or hears of it with its next heartbeat",
    "unknown_worker": "a rank that the generation has not: a membership file of another job",
    "wrong_port": "a worker stands behind another port of the switch than its network's rule says: compare the cables "
    "with `ports` of the configuration",
    "wrong_source": "datagrams come from another address or UDP port than the worker joined with: address translation, "
    "several addresses (setting `ip`), or a second process",
    "bad_slot": "a worker has more slots than the job: a membership file of another job",
    "bad_round": "a worker counts rounds from 0: another hopsum",
    "bad_value": "a lane of MAX32 has its top bit set: another hopsum",
    "bad_contributors": "a leaf of a tree sums for other ranks than its entry here names: make the tree's job anew",
    "op_mismatch": "ranks are in different all-reduces, or have different codecs: give all of them the same",
    "no_table": "a worker's codec looks values up, and the job was made without a table: make it with the codec's "
    "(hopsum job create --codec)",
    "no_route": "plain traffic goes to an address that the switch knows no port for: not hopsum's",
    "observer": "an observer's rank sends contributions: give the worker a rank below 64",
    "simulated": "the loss simulator is on: switch it off (Controller.clear_losses)",
}


def check_switches(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that every switch answers and does what it is asked."""
    check, kinds = "switches", ("", "other_program", "not_primary")
    wrong = [each for each in after.switches if each["condition_reason"] not in kinds]
    silent = [each for each in after.switches if not each["condition_reason"] and not each["reachable"]]
    if wrong:
        fix = _FIXES.get(wrong[0]["condition_reason"], _FIXES["other"])
        return failed(check, _words(wrong), fix, {"switches": _names(wrong)})
    if silent:
        return failed(
            check, f"not answered yet: {', '.join(_names(silent))}", _FIXES["unreachable"], {"switches": _names(silent)}
        )
    used = ", ".join(f"{each['name']} {each['slots_used']} of {each['slots']} slots" for each in after.switches)
    again = [each["name"] for each in after.switches if each["sessions"] > 1]
    advice = f"sessions were lost and opened again: {', '.join(again)}" if again else ""
    return passed(check, used or "none configured", advice=advice)


def check_program(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no switch runs another program."""
    fix = "it restarted, or another program was pushed: stop what uses it, or let the controller remove what is there"
    return _kind("program", "other_program", after, "every switch that answers runs ours", fix)


def check_primary(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no other controller has a switch."""
    fix = "stop the other controller, or give this one a higher election_id; then start this one again"
    return _kind("primary", "not_primary", after, "no other controller has them", fix)


def check_entries(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that nobody else changes entries."""
    check = "entries"
    changed = {}
    for switch in after.switches:
        earlier = before.switch(switch["name"])
        if earlier is not None and switch["entries_repaired"] > earlier["entries_repaired"]:
            changed[switch["name"]] = switch["entries_repaired"] - earlier["entries_repaired"]
    if changed:
        told = "; ".join(f"{name}: {count} entries repaired" for name, count in changed.items())
        findings = [finding for switch in after.switches if switch["name"] in changed for finding in switch["findings"]]
        fix = "somebody else writes to it (a second controller, a shell): stop that"
        return failed(
            check, f"{told}, such as {findings[0] if findings else 'unknown'}", fix, {"entries_repaired": changed}
        )
    audits = sum(switch["audits"] for switch in after.switches)
    repaired = sum(switch["entries_repaired"] for switch in after.switches)
    advice = f"{repaired} entries were repaired since the controller was started" if repaired else ""
    return passed(check, f"{audits} audits", advice=advice)


def check_drops(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no switch drops packets."""
    check = "drops"
    rising: dict[str, float] = {}
    asked = 0
    for switch in after.switches:
        earlier = before.switch(switch["name"])
        if earlier is None or not earlier["drops"] or not switch["drops"]:
            continue
        asked += 1
        for reason, count in grown(earlier["drops"], switch["drops"]).items():
            if count:
                rising[reason] = rising.get(reason, 0) + count
    if not asked:
        return skipped(check, "no switch said what it drops")
    if not rising:
        return passed(check, f"none in {after.at_s - before.at_s:.1f} s")
    worst = sorted(rising, key=lambda reason: -rising[reason])
    told = ", ".join(f"{reason} {rising[reason]:g}" for reason in worst)
    fix = "; ".join(f"{reason}: {DROPS.get(reason, 'see docs/protocol.md')}" for reason in worst[:3])
    return failed(check, f"in {after.at_s - before.at_s:.1f} s: {told}", fix, {"drops": rising})


def _kind(check: str, kind: str, snapshot: ControllerSnapshot, good: str, fix: str) -> CheckRow:
    wrong = [each for each in snapshot.switches if each["condition_reason"] == kind]
    if wrong:
        return failed(check, _words(wrong), fix, {"switches": _names(wrong)})
    return passed(check, good)


def _names(switches: list[Any]) -> list[str]:
    return [each["name"] for each in switches]


def _words(switches: list[Any]) -> str:
    return "; ".join(f"{each['name']}: {each['condition']}" for each in switches)
