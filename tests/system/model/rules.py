# SPDX-License-Identifier: Apache-2.0
"""The rules of the protocol that the model can take away, by name.

The letters are those of docs/protocol.md. A rule in `off` of a Config does not hold; everything else does.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Rule(NamedTuple):
    """One rule: its letter in docs/protocol.md, and what it says."""

    letter: str
    text: str


RULES: Final[dict[str, Rule]] = {
    # numbers
    "global_rounds": Rule(
        "N1", "Rounds never restart within a generation: all-reduces follow each other in one stream."
    ),
    "continuous_map": Rule("N2", "Slot and version follow the stream position, also across all-reduces."),
    "window_spans": Rule("N3", "The window (one open round per slot) spans all-reduces."),
    "first_round": Rule("N4", "Rounds start at 1, so that no round is what an unused register holds."),
    "no_wrap": Rule("N4", "Rounds do not wrap: a generation ends before its rounds do."),
    # switch
    "generation_switch": Rule("S1", "The switch drops every packet of a generation that is not the admitted one."),
    "generation_tag": Rule("S2", "A copy whose tag has another generation is empty."),
    "reset_all": Rule("S3", "A newer round overwrites all of the copy, values included."),
    "only_packets_write": Rule("S3", "Nobody but the packets writes a register; the controller clears nothing."),
    "dup_check": Rule("S4", "A worker is added once to a round."),
    "close": Rule("S4", "A complete copy takes nothing more."),
    "or_with_add": Rule("S4", "Contributors change only in the packet that changes the values."),
    "count_ge": Rule("S5", "A round completes when the count reaches the quorum or is beyond it."),
    "answer_dup": Rule("S6", "An UPDATE of a complete round is answered with its RESULT."),
    "old_apart": Rule("S7", "An older round touches nothing."),
    "answer_old": Rule("S7", "An older round is answered with STALE."),
    "flush_round": Rule("S8", "FLUSH acts only on the round that its packet names."),
    "flush_dup": Rule("S8", "FLUSH acts also in a packet that is recognised as a duplicate."),
    "min_quorum": Rule("S8", "FLUSH closes at min_quorum contributions, not below."),
    "held_sums": Rule("S9", "The sum is looked up again for each RESULT anew: the copy holds the sum itself."),
    # trees
    "leaf_final_bitmap": Rule("T1", "With the final values a leaf stores the final contributors."),
    "leaf_match": Rule("T2", "A leaf takes a RESULT only of the round that it holds, not complete, or of a newer one."),
    "leaf_resend": Rule("T3", "A leaf that has closed and has no result sends its partial sum again when asked."),
    "partial_once": Rule("T4", "One partial sum of a leaf enters a round, with the contributors that came with it."),
    "close_on_flush": Rule("T5", "A leaf that is flushed closes: it collects no more."),
    "relay_stale": Rule("T6", "A leaf passes STALE down."),
    "root_looks_up": Rule("T8", "Only the root looks a sum up again: a leaf passes on what its parent sent."),
    # worker
    "in_order": Rule("W1", "Round r of a slot is sent only when all earlier rounds of that slot are held."),
    "frozen_payload": Rule("W2", "The bytes of a round never change between retransmissions."),
    "generation_worker": Rule("W3", "A worker takes a RESULT only of its own generation."),
    "stale_match": Rule("W4", "STALE counts only for the round that it names."),
    "stale_fetch": Rule("W4", "STALE settles nothing: the result is fetched from a peer."),
    "ask_on_silence": Rule("W6", "A worker whose retransmissions stay unanswered asks its peers, too."),
    # repair
    "fetch_generation": Rule("R1", "A peer answers a FETCH only in its own generation."),
    "retain": Rule("R2", "A result is dropped only when every worker is proved to hold it."),
    "lease_barrier": Rule("R3", "The lease lives, and peers serve, until every worker is done."),
    # generations
    "volatile_generation": Rule("E1", "A switch that lost its registers admits only a new generation."),
    "crash_bumps": Rule("E1", "A worker that lost its memory takes part again only in a new generation."),
    "seal": Rule("E2", "A worker that has reported accepts nothing more in that generation."),
    "report_ready": Rule("E2", "A worker reports a result only if it could have encoded that chunk itself."),
    "redecide": Rule("E3", "When the source of a decided result is lost before all have joined, all decide again."),
    "rejoin_resets": Rule("E4", "A worker that is in no report joins empty, whatever it still holds."),
    # generations of MIN:MAX workers
    "members_complete": Rule("M1", "The workers of a generation, all of them and nobody else, complete its rounds."),
    "late_waits": Rule("M2", "A worker that comes late takes part from the next generation on."),
    "enough": Rule("M3", "A generation begins with MIN workers at least."),
}

NOT_NEEDED: Final = {"close_on_flush", "relay_stale"}
"""Rules without which nothing breaks, kept for what they save: a second partial sum that nobody adds; a time-out."""
