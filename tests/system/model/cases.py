# SPDX-License-Identifier: Apache-2.0
"""The searches that are made: with every rule, all states counted; and with a rule taken away, its violation found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from .config import CHECKS, Config, make


class Whole(NamedTuple):
    """A search with every rule: it ends, finds nothing, and has exactly so many states and transitions."""

    modes: str
    config: Config
    states: int
    transitions: int
    large: bool = False
    """Searched only with TEST_SCALE above 1."""


class Breach(NamedTuple):
    """A search without `rule`: it finds a violation of this kind."""

    rule: str
    kind: str
    config: Config
    what: str
    """The violation in one line."""

    @property
    def mended(self) -> Config:
        """The same search with the rule, and with all checks."""
        return replace(self.config, off=self.config.off - {self.rule}, checks=frozenset(CHECKS))


def whole(modes: str, n: int, chunks: int, states: int, transitions: int, **changes: Any) -> Whole:
    """Return a search of one all-reduce, or of `reduces`; all `changes` but `large` are fields of Config."""
    large = changes.pop("large", False)
    return Whole(modes, make(modes, n, chunks, **changes), states, transitions, large)


def breach(rule: str, kind: str, modes: str, n: int, chunks: int, what: str, **changes: Any) -> Breach:
    """Return a search without a rule (and without those in `also_off`), for one kind of violation."""
    off = (rule, *changes.pop("also_off", ()))
    return Breach(rule, kind, make(modes, n, chunks, off=off, checks=(kind,), **changes), what)


WHOLE: Final = (
    whole("A", 2, 6, 47, 68, peers=False),
    whole("A", 3, 6, 145, 294, peers=False),
    whole("A", 2, 6, 529, 1_472, slots=2, peers=False),
    whole("A", 3, 6, 4_489, 17_688, slots=2, peers=False),
    whole("A", 3, 6, 4_489, 25_326, slots=2),
    whole("A", 3, 6, 4_489, 25_326, slots=2, leftovers=True),
    whole("A", 3, 6, 145, 414, off=("retain",), retain_by="own"),
    whole("A", 3, 6, 68_921, 393_354, slots=3, peers=False, large=True),
    whole("A", 4, 6, 36_481, 279_624, slots=2, large=True),
    whole("A", 3, 0, 145, 423, reduces=(1, 2, 3), leftovers=True),
    whole("A", 3, 0, 4_489, 25_326, reduces=(1, 2, 3), slots=2, leftovers=True, large=True),
    whole("A", 3, 0, 1_445, 7_224, reduces=(3, 3), slots=2, sequential=True, leftovers=True),
    whole("A", 3, 0, 119, 345, reduces=(3, 2), sequential=True, off=("retain",)),
    whole("B", 2, 6, 16_129, 48_706),
    whole("B", 3, 5, 62_560, 236_961, leftovers=True, large=True),
    whole("B", 3, 6, 377_056, 1_436_481, large=True),
    whole("B", 3, 0, 62_560, 236_961, reduces=(3, 2), sequential=True, leftovers=True, large=True),
    whole("B", 3, 3, 91_913, 299_129, spare_generations=1, large=True),
    whole("C", 2, 6, 73_119, 211_558, large=True),
    whole("C", 3, 4, 55_871, 260_499, flush=1, large=True),
    whole("C", 3, 5, 149_651, 591_942, min_quorum=2, large=True),
    whole("D", 2, 6, 3_839, 8_460),
    whole("D", 3, 4, 18_555, 53_028, large=True),
    whole("D", 2, 4, 42_857, 152_038, slots=2, large=True),
    whole("D", 2, 3, 24_013, 51_657, crashes=2, large=True),
    whole("CD", 2, 0, 69_359, 199_772, reduces=(3,), ranges=True, large=True),
    whole("E", 2, 6, 1_505, 3_380),
    whole("E", 3, 5, 5_457, 16_848),
    whole("E", 2, 4, 9_791, 33_192, slots=2),
    whole("E", 2, 5, 10_321, 22_156, restarts=2),
    whole("E", 2, 0, 743, 1_614, reduces=(2, 2), sequential=True, off=("retain",)),
    whole("E", 2, 0, 1_097, 2_422, reduces=(2, 3), leftovers=True),
    whole("E", 3, 4, 114_539, 560_818, slots=2, large=True),
    whole("BE", 3, 3, 83_619, 274_869, large=True),
    whole("BE", 3, 2, 37_911, 126_126, give_ups=1, large=True),
    whole("CE", 2, 4, 133_809, 366_152, large=True),
    whole("CE", 2, 3, 94_563, 271_614, give_ups=1, large=True),
    whole("DE", 2, 4, 29_795, 63_872, large=True),
    whole("C", 2, 4, 2_859, 7_990),
    whole("C", 2, 5, 14_529, 41_566, large=True),
    whole("C", 3, 2, 1_715, 6_627),
    whole("C", 2, 4, 9_801, 47_124, slots=2),
    whole("B", 3, 3, 1_648, 5_949),
    whole("BC", 3, 2, 1_384, 5_403),
    whole("BE", 3, 2, 9_309, 28_836),
    whole("CD", 2, 2, 7_943, 20_536),
    whole("CE", 2, 2, 10_029, 26_424, give_ups=1),
    whole("DE", 2, 3, 15_433, 32_398, large=True),
    whole("T", 4, 6, 649, 1_640, peers=False),
    whole("T", 4, 6, 44_353, 184_316, large=True),
    whole("T", 4, 4, 28_561, 137_904, slots=2, peers=False, large=True),
    whole("T", 4, 2, 14_529, 74_520, leaf_quorum=1, large=True),
    # With FLUSH, E or D the independent model's trees have more states: it keeps `seen` of a leaf's complete copies
    # (without `canonical` this one has its 7,060 and 26,852, too), and lets a generation into one switch after the
    # other.
    whole("T", 4, 1, 6_364, 27_548, flush=0b1111),
    whole("T", 4, 1, 24_996, 111_788, flush=0b1111, off=("close_on_flush",), large=True),
    whole("T", 4, 1, 459, 2_004, flush=0b1111, min_quorum=2),
    whole("T", 2, 2, 25_088, 86_896, flush=0b11, large=True),
    whole("TB", 4, 2, 12_272, 67_700, large=True),
    whole("TB", 4, 1, 244, 924, off=("relay_stale",)),
    whole("TE", 4, 1, 8_783, 28_166),
    whole("TD", 4, 1, 15_407, 47_734, large=True),
    # A second look-up changes no state: the counts are those without it.
    whole("A", 3, 6, 4_489, 25_326, slots=2, requantizes=True),
    whole("B", 3, 3, 1_648, 5_949, requantizes=True),
    whole("C", 3, 2, 1_715, 6_627, requantizes=True),
    whole("E", 3, 5, 5_457, 16_848, requantizes=True),
    whole("T", 4, 1, 6_364, 27_548, flush=0b1111, requantizes=True),
    whole("TE", 4, 1, 8_783, 28_166, requantizes=True),
    # The independent model has no silent workers: counts of this one, so that a change of them is seen.
    whole("C", 2, 4, 76, 305, silent=0b10),
    whole("C", 3, 3, 90, 395, min_quorum=2, silent=0b100),
    whole("B", 3, 4, 179, 867, silent=0b100),
    # Nor has it generations of fewer workers.
    whole("M", 2, 3, 6_761, 12_672),
    whole("M", 2, 2, 10_571, 26_906, slots=2),
    whole("M", 2, 2, 2_559, 4_762, give_ups=1, crashes=0, restarts=1),
    whole("M", 3, 2, 41_894, 98_751, large=True),
    whole("M", 3, 2, 24_980, 45_696, crashes=2, returns=0),
    whole("M", 4, 1, 17_195, 51_788),
    whole("M", 2, 3, 275_489, 522_243, crashes=2, large=True),
    whole("M", 3, 2, 280_874, 657_600, give_ups=1, large=True),
    whole("ME", 2, 3, 91_293, 169_716, large=True),
    whole("MC", 2, 2, 29_683, 71_386, large=True),
)
"""Down to the remark, the counts are those of an independent model of the same protocol, written before this one."""

BREACHES: Final = (
    breach("global_rounds", "late", "A", 2, 0, "the first all-reduce's result is taken for the second's",
           reduces=(2, 2), sequential=True, peers=False),
    breach("continuous_map", "live", "A", 2, 0, "round 2 overwrites a round 1 that w1 lacks",
           reduces=(1, 1), sequential=True, peers=False),
    breach("window_spans", "nostale", "A", 2, 0, "a worker is told STALE for a round that it waits for",
           reduces=(2, 2), peers=False),
    breach("first_round", "sum", "A", 2, 2, "the first packets are added to garbage",
           garbage=True, also_off=("generation_tag",)),
    breach("no_wrap", "live", "A", 2, 4, "the packet after the largest round is STALE for ever", peers=False),
    breach("generation_switch", "late", "A", 2, 3, "a late packet of the job before replaces the copy", leftovers=True),
    breach("generation_tag", "live", "A", 2, 3, "every packet of the new job is STALE", leftovers=True),
    breach("reset_all", "sum", "A", 2, 3, "round 3 is added to round 1"),
    breach("only_packets_write", "sum", "A", 2, 3, "bitmap cleared: a worker is counted twice", peers=False),
    breach("only_packets_write", "sum", "A", 2, 3, "values cleared: a bitmap without its sum",
           peers=False, clears="values"),
    breach("only_packets_write", "live", "A", 2, 3, "round cleared: the same as a restart",
           peers=False, clears="round"),
    breach("dup_check", "sum", "A", 2, 2, "w0 is added twice"),
    breach("close", "agreement", "B", 3, 2, "a late worker gets another result than the others"),
    breach("or_with_add", "sum", "B", 3, 2, "contributors name a worker that is not in the sum"),
    breach("count_ge", "live", "A", 3, 2, "quorum lowered to what is in: no count ever equals it", lowerings=1),
    breach("answer_dup", "live", "A", 2, 2, "all copies of a result lost: nobody ever gets it"),
    breach("old_apart", "late", "A", 2, 3, "a late packet of round 1 is added to round 3"),
    breach("answer_old", "live", "B", 3, 3, "who lags behind is never told (with ask_on_silence it would ask anyway)",
           also_off=("ask_on_silence",)),
    breach("flush_round", "late", "C", 2, 3, "a late FLUSH of round 1 completes round 3"),
    breach("flush_dup", "live", "C", 2, 1, "w1 sends nothing, w0 is in already: its FLUSH does not close", silent=0b10),
    breach("min_quorum", "quorum", "C", 3, 1, "a round is complete with fewer than the job accepts", min_quorum=2),
    breach("held_sums", "agreement", "A", 2, 1, "a repeated RESULT was looked up twice", requantizes=True),
    breach("root_looks_up", "agreement", "T", 4, 1, "workers of a leaf whose answer was looked up twice",
           requantizes=True),
    breach("leaf_final_bitmap", "sum", "T", 4, 2, "a leaf that waits for w1 names w0 in a sum without it",
           flush=0b1111),
    breach("leaf_match", "late", "T", 4, 4, "a late result of round 1 becomes that of round 3"),
    breach("leaf_resend", "live", "T", 4, 2, "the partial sum is lost, and everybody waits", peers=False),
    breach("partial_once", "sum", "T", 4, 1, "a second partial sum of A adds its contributors, and not its values",
           flush=0b1111, also_off=("close_on_flush",)),
    breach("in_order", "repair", "B", 3, 4, "a contributor of round 3 lacks round 1, which all others dropped"),
    breach("in_order", "hint", "B", 3, 4, "a STALE names a worker that lacks the result, too"),
    breach("frozen_payload", "settle", "A", 2, 2, "its bit is set for bytes that it settles differently"),
    breach("generation_worker", "late", "A", 2, 3, "a result of the job before is taken", leftovers=True),
    breach("generation_worker", "agreement", "BE", 3, 2, "a result of the generation before is taken"),
    breach("stale_match", "agreement", "A", 2, 3, "a late duplicate's STALE settles the round in progress (quorum n)",
           also_off=("stale_fetch",)),
    breach("stale_fetch", "agreement", "B", 3, 3, "zeros in place of a result"),
    breach("ask_on_silence", "live", "B", 3, 3, "no STALE arrives and nobody is asked", also_off=("answer_old",)),
    breach("fetch_generation", "agreement", "BE", 3, 2, "a peer that was given up on gives what is being redone",
           give_ups=1),
    breach("retain", "repair", "B", 3, 0, "dropped at the next all-reduce's first result, which w2 is not in",
           reduces=(3, 2), sequential=True),
    breach("retain", "repair", "B", 3, 0, "dropped at the end of the own all-reduce",
           reduces=(1, 2), sequential=True, retain_by="own"),
    breach("retain", "repair", "E", 2, 3, "quorum n, dropped at the end of the own all-reduce, then a restart",
           retain_by="own"),
    breach("lease_barrier", "live", "A", 2, 3, "the first to finish ends the lease, the other lacks the last result",
           peers=False),
    breach("lease_barrier", "repair", "B", 3, 3, "the first to finish stops to serve"),
    breach("volatile_generation", "live", "E", 2, 3, "w0 is at round 2, w1 at round 1 of empty registers", peers=False),
    breach("volatile_generation", "agreement", "BE", 3, 2, "two different results of round 1"),
    breach("volatile_generation", "agreement", "CE", 2, 2, "the same by FLUSH"),
    breach("volatile_generation", "live", "TE", 4, 2, "a leaf waits for a round that the spine forgot", peers=False),
    breach("crash_bumps", "settle", "D", 2, 2, "the new w0 finds the old one's contribution under its bit"),
    breach("crash_bumps", "live", "D", 2, 3, "the new w0 starts at 1 and is STALE", peers=False),
    breach("crash_bumps", "repair", "BD", 3, 3, "the only copy that was kept died with it"),
    breach("seal", "agreement", "BE", 3, 2, "a result arrives after it was reported as lacking, and is redone"),
    breach("report_ready", "range", "CD", 2, 3, "a sum is decided whose range is redone", ranges=True),
    breach("report_ready", "range", "CD", 2, 0, "a sum is decided whose all-reduce before is redone",
           reduces=(1, 1, 1), ranges=True, sequential=True),
    breach("redecide", "repair", "DE", 2, 3, "the only source crashed after the decision"),
    breach("rejoin_resets", "agreement", "BE", 3, 2, "a silent worker comes back with what the others redo",
           give_ups=1),
    breach("rejoin_resets", "agreement", "M", 2, 1, "a worker that was left out comes back with what the others redo",
           give_ups=1, crashes=0, restarts=1),
    breach("members_complete", "live", "M", 2, 1, "the switch waits for a worker that is lost for good"),
    breach("late_waits", "members", "M", 3, 1, "a worker that comes late is in a sum in the place of another"),
    breach("enough", "quorum", "M", 2, 1, "a sum of fewer workers than the job accepts", min_workers=2),
)  # fmt: skip
