# SPDX-License-Identifier: Apache-2.0
"""The errors that end a worker's generation, in words: the missing result, the ranks it waits for, and the remedy."""

from __future__ import annotations

from typing import Final

from hopsum.errors import AllReduceTimeoutError, FellBehindError, RankLeftError, ResultLostError, name_ranks
from hopsum.protocol.round_report import RoundReport
from hopsum.protocol.stream import NEW_GENERATION, SlotRound
from hopsum.protocol.worker_state import AllReduce, IgnoredPackets, Membership
from hopsum_wire import Header, Kind

_REMEDIES: Final = {
    "EMSGSIZE": "raise the MTU of the way to the switch (ip link set dev INTERFACE mtu 1500)",
    "EPERM": "let this host's firewall pass UDP (nft list ruleset, iptables -L OUTPUT)",
    "ENETDOWN": "set the interface up (ip link set dev INTERFACE up)",
    "ENETUNREACH": "add a route (ip route get ADDRESS)",
    "EHOSTUNREACH": "see why the next hop does not answer (ip neigh)",
    "ENOBUFS": "see the queue of the interface (tc -s qdisc)",
    "EINVAL": "compare the offloads of the interface (ethtool -k), or take gso='off' (HOPSUM_GSO=off)",
}


def unsent_remedy(errno_name: str) -> str:
    """Return ", " and the remedy for a send that fails by an errno, or an empty string for an unknown errno."""
    name = {"EACCES": "EPERM", "EIO": "EINVAL", "EHOSTDOWN": "EHOSTUNREACH"}.get(errno_name, errno_name)
    return f", {_REMEDIES[name]}" if name in _REMEDIES else ""


def round_lost(own: Membership, stale: Header) -> ResultLostError:
    """Return the error of a worker without peers that got STALE for a round for which it waits."""
    ranks = [rank for rank in range(own.workers) if stale.contributors >> rank & 1]
    return ResultLostError(
        f"rank {own.rank} lacks the result of generation {own.generation}, slot {stale.slot}, round {stale.round}, and "
        f"{own.switch} no longer has it: the slot has moved on to round {stale.held} with workers {ranks}. "
        f"{NEW_GENERATION}"
    )


def duplicate_rank(own: Membership, told: Header) -> ResultLostError:
    """Return the error of a worker if another process sends as its rank. `told` is the switch's STALE or STATE."""
    return ResultLostError(
        f"somebody else sends as rank {own.rank}: {own.switch} has round {told.held} of slot {told.slot} from it, and "
        f"this process, which still waits for round {told.round}, has sent no later one. Either rank {own.rank} runs "
        "twice with the same membership, or datagrams are forged with its address, as root on this host or in its "
        f"network can: what came before may be wrong too. Start from a checkpoint. {NEW_GENERATION}"
    )


def fell_behind(own: Membership, place: SlotRound) -> FellBehindError:
    """Return the error of a worker whose missing result no peer keeps any longer."""
    return FellBehindError(
        f"rank {own.rank} fell behind in generation {own.generation}: neither {own.switch} nor any of its peers "
        f"still has the result of {place}; the others continued without this worker. Its model is not theirs any more: "
        "load parameters and optimiser state of another rank, drop the error feedback, and connect again"
    )


def no_answer(
    own: Membership, reduce: AllReduce, oldest: SlotRound, sent: int, waited_s: float,
    told: tuple[IgnoredPackets, RoundReport],
) -> AllReduceTimeoutError:  # fmt: skip
    """Return the error of an all-reduce past its deadline, whose oldest open chunk was sent `sent` times."""
    ignored, report = told
    return AllReduceTimeoutError(
        f"no result from {own.switch} within {waited_s:.3g} s: generation {own.generation}, rank {own.rank}, {oldest}, "
        f"UPDATE sent {sent} times, {reduce.datagrams.shape[1]} bytes each; {ignored}. {reduce.missing} of "
        f"{len(reduce.held)} chunks lack their result. {report}. {report.other_op(reduce.op)}"
        f"{_advice(own, report.missing_ranks)}. {NEW_GENERATION}",
        report.missing_ranks,
    )


def _advice(own: Membership, missing: tuple[int, ...]) -> str:
    """Return the remedy, by the ranks that the switch waits for."""
    same = "with the codec, the options and the vector lengths of the others"
    if missing:
        verb = "runs" if len(missing) == 1 else "run"
        return f"Check that {name_ranks(missing)} still {verb}, and {verb} this all-reduce {same}"
    return (
        f"The switch is silent until its quorum is in: check that all {own.workers} workers run this all-reduce "
        f"{same}, that the switch has the entries of generation {own.generation}, and its drop counters"
    )


def switch_gone(own: Membership, answers: int, lasted_s: float) -> AllReduceTimeoutError:
    """Return the error of a worker whose datagrams all came back as 'port unreachable', `answers` times."""
    return AllReduceTimeoutError(
        f"{own.switch} is not there: all that rank {own.rank} sent to it for {lasted_s:.3g} s came back as 'port "
        f"unreachable' ({answers} times), and nothing came from the switch. Check that the switch runs and listens at "
        f"this address. A switch that was restarted has lost the job (generation {own.generation}): make the job "
        "again, and connect again. Or wait longer (unreachable_s)"
    )


def address_gone(own: Membership, ip: str, lasted_s: float) -> AllReduceTimeoutError:
    """Return the error of a worker whose socket's address has left its host."""
    return AllReduceTimeoutError(
        f"{ip}, by which {own.switch} knows rank {own.rank}, has not been an address of this host for {lasted_s:.3g} "
        f"s, and nothing comes from the switch. See `ip addr`: give the address back, or start this rank again, which "
        f"registers the new one. Or wait longer (unreachable_s). {NEW_GENERATION}",
        (own.rank,),
    )


def never_answered(own: Membership, probes: int, waited_s: float) -> AllReduceTimeoutError:
    """Return the error of a worker that its switch does not know."""
    return AllReduceTimeoutError(
        f"{own.switch} has never answered rank {own.rank}: {waited_s:.3g} s, {probes} PROBEs. Either nothing reaches "
        "it (a firewall, a route), or it drops all datagrams of this rank since they come from another address or port "
        "than this rank has registered (address translation, NAT). `hopsum doctor` on this host says which; "
        "`hopsum job show` names a rank that calls from another address, and `hopsum top` has the switch's drops "
        f"(wrong_source). Take the translation away, or set `ip`. Or wait longer (unreachable_s). {NEW_GENERATION}",
        (own.rank,),
    )


def long_ones_lost(own: Membership, place: SlotRound, kind: Kind, sent: int, lasted_s: float) -> AllReduceTimeoutError:
    """Return the error of a worker whose PROBEs are answered, while its UPDATE or the RESULT of a place is lost."""
    if kind is Kind.UPDATE:
        found, lost = "the switch does not have this rank's UPDATE", "sent to the switch are lost"
    else:
        found, lost = "the switch has the sum, and its RESULT does not arrive here", "sent by the switch are lost"
    return AllReduceTimeoutError(
        f"{own.switch} has answered rank {own.rank} for {lasted_s:.3g} s, but {found}: {place}, UPDATE sent {sent} "
        f"times. So long datagrams {lost}, and short ones are not. Look for a smaller MTU on the way or at its ends "
        "(ip link set dev INTERFACE mtu 1500), and try without UDP_SEGMENT "
        f"(HOPSUM_GSO=off here, --udp ...,gso=off at the switch). Or wait longer (unreachable_s). {NEW_GENERATION}",
        (own.rank,) if kind is Kind.UPDATE else (),
    )


def finished_early(own: Membership, place: SlotRound, ranks: tuple[int, ...]) -> RankLeftError:
    """Return the error of an all-reduce that waits for `ranks`, which have sent LEAVE."""
    has = "has" if len(ranks) == 1 else "have"
    return RankLeftError(
        f"rank {own.rank} waits for {name_ranks(ranks)}, which {has} finished and closed: {place} "
        f"of generation {own.generation} can never be complete. All ranks have to run the same number of "
        "all-reduces: give each rank the same number of batches, or stop all ranks at the same step",
        ranks,
    )


def not_caught_up(own: Membership, place: SlotRound, lacking: int, waited_s: float) -> AllReduceTimeoutError:
    """Return the error of an all-reduce whose decided results, the first of them at `place`, no peer has sent."""
    return AllReduceTimeoutError(
        f"rank {own.rank} lacks {lacking} results that were decided when generation {own.generation} began, the first "
        f"of them {place}, and no peer that holds them answered within {waited_s:.3g} s. Check that the workers run "
        f"and that their side channels can be reached. {NEW_GENERATION}"
    )


def held_back(own: Membership, waited_s: float, ranks: list[int]) -> AllReduceTimeoutError:
    """Return the error of an all-reduce that never began, since other workers are too far behind."""
    return AllReduceTimeoutError(
        f"rank {own.rank} did not begin an all-reduce of generation {own.generation} within {waited_s:.3g} s: "
        f"{name_ranks(ranks)} did not say to hold an earlier one, whose results are kept for it. Check that it runs "
        "and that its side channel can be reached, or let straggler_s be below deadline_s. "
        f"{NEW_GENERATION}",
        tuple(ranks),
    )
