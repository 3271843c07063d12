# SPDX-License-Identifier: Apache-2.0
"""Checks that ask the switch and its slots by PROBEs, and the peers by TCP connections."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from hopsum.errors import name_ranks
from hopsum_base.interfaces import Route
from hopsum_cli.diagnosis.probe_client import Place, ProbeClient
from hopsum_cli.diagnosis.rows import CheckRow, failed, passed
from hopsum_wire import Header, State
from hopsum_wire.membership import Endpoint, JobMembership

# A tenth is a bad network that still works.
LOST_MAX: Final = 0.1
"""Share of PROBEs without an answer that passes: what is lost is sent again."""
_SHOWN: Final = 8
_TOGETHER: Final = 8
"""Slots that are asked about together."""
_TRIES: Final = 3
_DIALS: Final = 16


def check_switch(client: ProbeClient, switch: Endpoint, route: Route, wait_s: float) -> CheckRow:
    """Check that the switch answers a PROBE. A failure names the possible causes of its silence, most likely first.

    `route` is this host's to the switch. Raises OSError when nothing can be sent.
    """
    check, source = "switch", client.source
    answers = client.ask([(0, 1), (0, 2)], wait_s=wait_s)
    how = f", {client.transport.how}" if client.transport.how else ""
    if answers:
        generations = sorted({answer.generation for answer in answers.values()})
        return passed(
            check, f"{switch} answers rank {source.rank} at {source.local}{how}", {"generations": generations}
        )
    unreachable = unreachable_switch(client, switch)
    if unreachable is not None:
        return unreachable
    causes = silence_causes(client, switch, route)
    numbered = "; ".join(f"({number}) {cause}" for number, cause in enumerate(causes, 1))
    return failed(
        check,
        f"{switch} is silent: a switch drops without a word what it does not admit, and counts the reason in `drops` "
        "(unknown_generation, unknown_worker, wrong_source, wrong_port)",
        f"most likely first: {numbered}",
        {"causes": causes},
    )


def unreachable_switch(client: ProbeClient, switch: Endpoint) -> CheckRow | None:
    """Return the failure that ICMP has reported to the client's earlier PROBEs, None where it reported none."""
    if errno.ECONNREFUSED in client.unreachable:
        return failed(
            "switch",
            f"{switch}: port unreachable, no process listens there",
            "start the switch (hopsum switch --udp PORT=HOST:PORT), or have the job made with the address where it "
            "listens; a job made again has a new membership file",
        )
    for code in client.unreachable.keys() - {errno.EMSGSIZE}:
        return failed(
            "switch", f"{switch}: {os.strerror(code)}", "check what is between: routers, firewalls, the switch"
        )
    return None


def silence_causes(client: ProbeClient, switch: Endpoint, route: Route) -> list[str]:
    """Return the possible causes of a switch's silence, most likely first, after the earlier checks passed."""
    source = client.source
    causes = [
        f"generation {source.generation} has ended or its entries are missing (switch restarted, job deleted or "
        "made again): use the membership file of the job as it is now, or make the job again",
        f"rank {source.rank} is registered with another address than {source.local} (address translation, several "
        "addresses): make the job with the source address that the switch sees",
    ]
    if not route.local:
        causes.append(f"rank {source.rank} is registered at another port of the switch: compare with its cable")
        hop = route.gateway or switch.ip
        causes.append(
            f"no host on {route.interface} answers ARP for {hop} (ip neigh show {hop}): check cable, VLAN and bridge; "
            "a switch answers for the address in its table switch_address, which a controller writes"
        )
    if route.gateway:
        causes.insert(0, f"nothing beyond gateway {route.gateway} is known: check its route to the switch and back")
    causes.append("a firewall drops UDP on the way there or back" + (" (on this host)" if route.local else ""))
    return causes


def check_gso(client: ProbeClient, window: int, wait_s: float) -> CheckRow:
    """Check that PROBEs which the kernel sends together (UDP_SEGMENT) are answered. A kernel that cannot passes.

    A failure says that fewer than three quarters were answered. `check_switch` has to pass before.
    """
    places = places_of(range(min(_TOGETHER, window)))
    counts, answered = len(places) * _TRIES, 0
    try:
        for _ in range(_TRIES):
            answered += client.ask_together(places, wait_s=wait_s / _TRIES)
    except OSError as error:
        return passed(
            "gso", f"the kernel does not send datagrams together ({error.strerror}): workers send single ones"
        )
    told = f"{answered} of {counts} PROBEs that were sent together have an answer"
    # A quarter lost is what makes a worker doubt, and single PROBEs have just been answered.
    if 4 * answered >= 3 * counts:
        return passed("gso", told, {"answered": answered})
    return failed(
        "gso",
        f"{told}: this kernel, a network card or the switch's kernel mangles such datagrams (UDP_SEGMENT)",
        "set gso='off' (HOPSUM_GSO=off) for the workers here, start the switch with --udp ...,gso=off; a newer kernel "
        "or ethtool -K INTERFACE tx-udp-segmentation off may mend it",
        {"answered": answered},
    )


def check_generation(membership: JobMembership, generations: list[int]) -> CheckRow:
    """Check that the generations of a switch's answers are the membership's, and no other."""
    if generations == [membership.generation]:
        return passed(
            "generation",
            f"{membership.generation} is live{_since(membership.generation)}",
            {"generation": membership.generation},
        )
    return failed(
        "generation",
        f"the switch answers for generation {', '.join(map(str, generations))}, the membership is of "
        f"{membership.generation}",
        "read the membership file of the job as it is now, on all ranks, and start them again",
        {"generation": membership.generation},
    )


def _since(generation: int) -> str:
    """Say when the job was made: a controller allots the time in seconds, if it can."""
    if not 1_600_000_000 < generation <= time.time() + 1:
        return ""
    return f", made at {datetime.fromtimestamp(generation, UTC):%Y-%m-%d %H:%M:%S} UTC"


def check_slots(
    client: ProbeClient, membership: JobMembership, rank: int, *, wait_s: float, settle_s: float
) -> tuple[CheckRow, SlotStates]:
    """Check that no slot at a rank's switch waits for the same contributions for `settle_s` seconds.

    All slots are probed, and after `settle_s` those that waited. Return the row, and the states of the first look.
    """
    check, slots = "slots", range(membership.window)
    first = slot_states(slots, client.ask(places_of(slots), wait_s=wait_s))
    facts: dict[str, Any] = {
        "idle": first.untouched + first.complete,
        "waiting": len(first.waiting),
        "unknown": first.unknown,
        "newest_round": first.newest_round,
    }
    told = f"{first.untouched + first.complete} idle, {len(first.waiting)} waiting, newest round {first.newest_round}"
    if first.unknown > len(slots) * LOST_MAX:
        return failed(
            check,
            f"{first.unknown} of {len(slots)} slots gave no answer; {told}",
            "PROBEs are lost (ip -s link; the counters of the switch's ports and loss simulators), or the job has "
            "fewer slots on the switch than its membership says: use the membership file of the job as it is now",
            facts,
        ), first
    stuck = first.still_waiting(_again(client, first, wait_s, settle_s)) if first.waiting else ()
    rack = membership.rack(rank)
    closed, open_ = ([each for each in stuck if each.closed is which] for which in (True, False))
    missing = stragglers(open_, rack)
    facts |= {"stragglers": {str(late): count for late, count in missing.items()}, "closed": len(closed)}
    if not stuck:
        return passed(check, told, facts), first
    found = [_collecting(open_, list(missing), membership)] if open_ else []
    found += [_closed(closed, rack, membership)] if closed else []
    findings, fixes = zip(*found, strict=True)
    return failed(check, f"{told}; for {settle_s:g} s {', and '.join(findings)}", "; ".join(fixes), facts), first


def _collecting(stuck: Sequence[WaitingSlot], late: Sequence[int], membership: JobMembership) -> tuple[str, str]:
    """Say of slots that wait for workers below their switch whose part is missing, and what to do."""
    places = ", ".join(f"rank {rank} at {membership.worker(rank).endpoint}" for rank in late[:_SHOWN])
    return (
        f"nothing of {name_ranks(tuple(late))} has come to {_slots(stuck)}",
        f"look at {places}: not started, stopped, in another all-reduce, or its packets do not arrive (run "
        "hopsum doctor there)",
    )


def _closed(stuck: Sequence[WaitingSlot], rack: Sequence[int], membership: JobMembership) -> tuple[str, str]:
    """Say of slots of a leaf, whose sums its parent has, that these wait for others than its rack, and what to do."""
    others = tuple(each.rank for each in membership.workers if each.rank not in rack)
    whose = name_ranks(others) if others else "another rack"
    return (
        f"no result has come from the leaf's parent for {_slots(stuck)}, though no rank of this rack is missing",
        f"run hopsum doctor at {whose}, below other leaves; where no rank is missing there either, look at the parent "
        "and at the links to it",
    )


def _slots(stuck: Sequence[WaitingSlot]) -> str:
    where = ", ".join(f"{each.slot} (round {each.round})" for each in stuck[:_SHOWN])
    return f"slots {where}" + (f" and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else "")


def _again(client: ProbeClient, first: SlotStates, wait_s: float, settle_s: float) -> SlotStates:
    time.sleep(settle_s)
    slots = [each.slot for each in first.waiting]
    return slot_states(slots, client.ask(places_of(slots), wait_s=wait_s))


def check_peers(membership: JobMembership, own: Endpoint, rank: int, *, begun: bool, wait_s: float) -> CheckRow:
    """Check that the side channels of the other ranks can be reached, by TCP connections without messages.

    Args:
        own: address of rank `rank`, from which the connections come.
        begun: whether the job has begun. Then a peer that does not listen is a failure, else it may start later.
        wait_s: seconds for each connection.
    """
    check, sides = "peers", membership.side_channels
    if sides is None:
        return passed(check, "the job has no side channels: what the switch gave up cannot be had from peers")
    refused, unreachable, others = list[int](), dict[int, str](), [other for other in sides if other != rank]
    with ThreadPoolExecutor(_DIALS) as pool:
        codes = list(pool.map(lambda other: _dial(own.ip, sides[other], wait_s), others))
    for other, code in zip(others, codes, strict=True):
        if code == errno.ECONNREFUSED:
            refused.append(other)
        elif code:
            unreachable[other] = os.strerror(code)
    facts = {
        "reached": len(others) - len(refused) - len(unreachable),
        "refused": refused,
        "unreachable": list(unreachable),
    }
    if unreachable:
        told = ", ".join(f"{_where(sides, [each])} ({reason})" for each, reason in list(unreachable.items())[:_SHOWN])
        return failed(check, f"not reachable by TCP: {told}", "check route and firewall between the workers", facts)
    if refused and begun:
        return failed(
            check,
            f"the job has begun, and no process listens for {_where(sides, refused[:_SHOWN])}",
            "start these ranks, or see why they ended; all ranks need the same membership file",
            facts,
        )
    told = f"{len(others) - len(refused)} of {len(others)} listen"
    return passed(check, told + ("; the hosts of the others answer" if refused else ""), facts)


def _where(sides: Mapping[int, tuple[str, int]], ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {each} at {sides[each][0]}:{sides[each][1]}" for each in ranks)


def _dial(own_ip: str, address: tuple[str, int], wait_s: float) -> int:
    """Connect by TCP and hang up. Return 0 or the errno."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as dialled:
        dialled.settimeout(wait_s)
        try:
            dialled.bind((own_ip, 0))  # peers hear nobody else
            dialled.connect(address)
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or errno.EIO
    return 0


# The copies of a job's slots, by their STATEs: which are idle, which wait, and for which ranks.
#
# A slot has two copies, of odd and of even rounds. The one with the newer round says where the slot is. A slot that is
# COLLECTING waits for ranks below its switch. One that is CLOSED at a leaf of a tree waits for the leaf's parent.


PARITIES = (1, 2)
"""Rounds to ask for: any round of the parity finds the copy."""


class WaitingSlot(NamedTuple):
    """A slot whose sum is not complete."""

    slot: int
    round: int
    contributors: int
    """Bitmap."""
    closed: bool = False
    """No rank below this switch is missing: the sum of this leaf's rack was sent to its parent."""

    def missing(self, rack: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of `rack`, the workers below this switch, that lack a contribution. Empty if `closed`."""
        return () if self.closed else tuple(rank for rank in rack if not self.contributors >> rank & 1)


@dataclass(frozen=True, slots=True)
class SlotStates:
    """The states of all slots that were probed."""

    untouched: int
    """Nothing of this generation came here."""
    complete: int
    """The newest round has its sum."""
    waiting: tuple[WaitingSlot, ...]
    unknown: int
    """A copy gave no answer."""
    newest_round: int
    """0: none."""

    @property
    def begun(self) -> bool:
        """Return whether some rank has contributed to a probed slot in this generation."""
        return self.newest_round > 0

    def still_waiting(self, later: SlotStates) -> tuple[WaitingSlot, ...]:
        """Return the slots that wait with the same round and contributors here and in `later`."""
        return tuple(each for each in self.waiting if each in later.waiting)


def places_of(slots: range | list[int]) -> list[Place]:
    """Return the places to probe for these slots: two for each, one in each parity of rounds."""
    return [(slot, round_) for slot in slots for round_ in PARITIES]


def slot_states(slots: range | list[int], answers: Mapping[Place, Header]) -> SlotStates:
    """Return the states of slots from the answers about their `places_of`. An absent answer makes a slot unknown."""
    untouched = complete = unknown = newest = 0
    waiting = []
    for slot in slots:
        copies = [answers[slot, round_] for round_ in PARITIES if (slot, round_) in answers]
        held = [copy for copy in copies if copy.count != State.EMPTY]
        if len(copies) < len(PARITIES):
            unknown += 1
        elif not held:
            untouched += 1
        else:
            last = max(held, key=lambda copy: copy.held)
            newest = max(newest, last.held)
            if last.count in (State.COLLECTING, State.CLOSED):
                waiting.append(WaitingSlot(slot, last.held, last.contributors, last.count == State.CLOSED))
            else:
                complete += 1
    return SlotStates(untouched, complete, tuple(waiting), unknown, newest)


def stragglers(waiting: Sequence[WaitingSlot], rack: Sequence[int]) -> dict[int, int]:
    """Count by rank of `rack` the waiting slots that lack its contribution, largest count first, zeros left out."""
    counts = Counter(rank for each in waiting for rank in each.missing(rack))
    return dict(counts.most_common())
