# SPDX-License-Identifier: Apache-2.0
"""Features that the Tofino program lacks, and the data-plane cases that test them."""

from __future__ import annotations

_REASONS = {
    "it answers neither ARP nor ping: workers have a static neighbour entry": (
        "address.AnswersArp", "address.ArpPadding", "address.AnswersPing", "address.PingChecksums",
        "address.PingWithABadHeader",
    ),
    "its parser drops a frame that ends inside an IPv4 or UDP header, which others forward": (
        "address.OtherPings", "malformed.TruncatedBelow",
    ),
    "its first pass does not see the payload: neither a cut one nor a set top bit under MAX32 is refused": (
        "admission.FirstFailingCheckCounts", "arithmetic.MaximumRefusesTheTopBit",
        "lanes.TopBitsMatterToTheMaximumAlone", "malformed.TruncatedPayload",
    ),
    "8-bit lanes are four to an addition of 32 bits: a sum beyond 255 carries into the next lane": (
        "arithmetic.SmallLanesDoNotCarry", "lanes.EveryOperationInElementOrder", "lanes.NarrowLanesDoNotCarry",
        "lanes.SumsOfManyWorkersWrap",
    ),
    "it has neither ADD16 nor LOOKUP_ADD16, and refuses them as BAD_OP": (
        "lanes.MediumLanesDoNotCarry", "operations.OperationOfAnotherSize", "probing.ObserversMayOnlyAsk",
    ),
    "it looks no sum up again: LOOKUP_ADD_LOOKUP4, 3 and 2 are BAD_OP": (
        "requantize.EverySumAndManyThresholds", "requantize.EveryCodeInEveryPlace", "requantize.SumsOfManyWorkers",
        "requantize.EveryReplyIsOfEqualBytes", "requantize.TablesOfTwoJobs", "requantize.LookupsOfAllKindsByTurns",
        "requantize.CodesOfAnotherSize",
    ),
    "bytes behind the datagram come back behind the reply's": ("malformed.PaddedFrame", "probing.PaddedQuestion"),
    "it has no loss simulator": (
        "loss.OffUntilItIsSet", "loss.AllThatComesIn", "loss.OtherPortsLoseNothing", "loss.AllThatGoesOut",
        "loss.BothWaysOfSeveralPorts", "loss.Replaced", "loss.HalfOfWhatComesIn", "loss.HalfOfWhatGoesOut",
    ),
    "it is alone: no leaf and no spine of a tree": (
        "tree.LeafSendsItsSumUp", "tree.LeafPassesTheResultDown", "tree.ClosedLeafSendsAgain",
        "tree.ClosedLeafAddsNobody",
        "tree.ResultOfARoundThatIsOpen", "tree.LateResultOfAnOlderRound", "tree.FlushGoesUp",
        "tree.LookupsHappenOnceOnTheWay", "tree.StaleIsPassedDown", "tree.SpineCompletesWithItsLeaves",
        "tree.SpineAnswersItsLeaves", "tree.SpineWithAWorkerOfItsOwn", "tree.AMiddleSwitchHasBoth",
        "tree.StrangersToTheTree", "tree.WhoMayBeInAPartialSum", "tree.EveryOperationInATree",
        "tree.ResultsOfCodesInATree", "tree.CodesOfARoundThatALeafDoesNotKnow", "tree.RootWithoutThresholds",
        "tree.SumsAndCodesOfTheOtherSize",
    ),
    "all operations, and sums of ADD8 that carry: tests/system/tna has streams of what the program has": (
        "random_traffic.MostlyGoodTraffic", "random_traffic.MostlyBrokenTraffic",
        "random_traffic.TrafficWithSmallQuorum",
    ),
}  # fmt: skip

SKIPS = {case: reason for reason, cases in _REASONS.items() for case in cases}
"""Reasons by case."""
