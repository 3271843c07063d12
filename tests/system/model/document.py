# SPDX-License-Identifier: Apache-2.0
"""The parts of docs/protocol.md that are generated: the decision table, the traces, the bounds.

They are between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hopsum_oracle.decision import TABLE, CloseThreshold, DecisionRow, LaneAction, PacketClass, Reply

from .cases import BREACHES, WHOLE, Breach, Whole
from .config import CHECKS, MODES, Config
from .rules import RULES
from .search import explore

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
BLOCK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

MEETS: Final = {
    PacketClass.NEW: "another generation, or a newer round than the copy's",
    PacketClass.FIRST: "the copy's round, collecting, child not seen",
    PacketClass.REPEAT: "the copy's round, collecting, child seen",
    PacketClass.COMPLETE: "the copy's round, complete",
    PacketClass.CLOSED: "the copy's round, closed (at a leaf)",
    PacketClass.OLD: "the copy's generation, an older round",
}
LANES: Final = {LaneAction.WRITE: "written", LaneAction.ADD: "added", LaneAction.KEEP: "kept"}
REGISTERS: Final = {
    PacketClass.NEW: "tag, seen, contributors := the packet's; ctr := 1",
    PacketClass.FIRST: "seen + its bit; contributors + the packet's; ctr + 1",
    PacketClass.REPEAT: "as they are",
    PacketClass.COMPLETE: "seen + its bit",
    PacketClass.CLOSED: "seen + its bit",
    PacketClass.OLD: "as they are",
}
CLOSES: Final = {
    CloseThreshold.AT_NEED: "at ctr >= need",
    CloseThreshold.AT_MIN_QUORUM_IF_FLUSH: "with FLUSH, at ctr >= min_quorum",
    CloseThreshold.NEVER: "never",
}
REPLIES: Final = {
    Reply.NONE: "nothing",
    Reply.RESULT_TO_SENDER: "RESULT to the sender",
    Reply.STALE_TO_SENDER: "STALE to the sender",
    Reply.PARTIAL_TO_PARENT: "PARTIAL to the parent",
}


def rewritten(page: str, parts: dict[str, Callable[[], str]] | None = None) -> str:
    """Return the page with its generated parts (or those in `parts` only) made anew."""
    parts = PARTS if parts is None else parts

    def fresh(block: re.Match[str]) -> str:
        return f"{block[1]}{parts[block[2]]()}{block[3]}" if block[2] in parts else block[0]

    return BLOCK.sub(fresh, page)


def decision_table() -> str:
    """Return hopsum_oracle.decision.TABLE as a table."""
    head = "| class | the packet meets | lanes | registers | closes | otherwise out | counted as |\n"
    return head + "|---" * 7 + "|\n" + "".join(_row(packet_class, TABLE[packet_class]) for packet_class in MEETS)


def _row(packet_class: PacketClass, row: DecisionRow) -> str:
    cells = (
        packet_class.name, MEETS[packet_class], LANES[row.lanes], REGISTERS[packet_class], CLOSES[row.closes],
        REPLIES[row.reply], row.event.name,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def traces() -> str:
    """Return, for every rule, what it says and the shortest ways to break the protocol without it."""
    lines = []
    for name, rule in RULES.items():
        lines.append(f"- **{rule.letter}** `{name}` {rule.text}\n")
        lines += [_trace(breach) for breach in BREACHES if breach.rule == name]
    return "".join(lines)


def _trace(breach: Breach) -> str:
    others = sorted(breach.config.off - {breach.rule})
    also = f", also without {', '.join(f'`{other}`' for other in others)}" if others else ""
    where = ", ".join(filter(None, bounds(breach.config)))
    return f"  - *{breach.kind}*: {breach.what} ({where}{also}).\n    `{explore(breach.config).trace}`\n"


def searches() -> str:
    """Return the table of the complete searches."""
    lines = ["| modes | bounds | states | transitions | |\n", "|---|---|---:|---:|---|\n"]
    return "".join(lines + [_search(case) for case in WHOLE])


def _search(case: Whole) -> str:
    when = "with SCALE > 1" if case.large else ""
    off = ", ".join(f"without `{name}` (not needed here)" for name in sorted(case.config.off))
    where = ", ".join(filter(None, (*bounds(case.config), off)))
    return f"| {case.modes} | {where} | {case.states:,} | {case.transitions:,} | {when} |\n"


def bounds(config: Config) -> tuple[str, ...]:
    """Return what a search covers, in words; empty strings where there is nothing to say."""

    def ranks(bitmap: int) -> str:
        return " ".join(f"w{rank}" for rank in range(config.n) if bitmap >> rank & 1)

    return (
        f"n = {config.n}",
        f"S = {config.slots}" if config.slots > 1 else "",
        f"{'+'.join(map(str, config.reduces))} chunk{'s' * (config.chunks > 1)}",
        f"quorum {config.quorum}{' of the spine' * config.tree}" if config.quorum else "",
        f"quorum {config.leaf_quorum} of the leaves" if config.leaf_quorum else "",
        f"FLUSH by {'all' if config.flush == config.everybody else ranks(config.flush)}" if config.flush else "",
        f"min_quorum {config.min_quorum}" if config.min_quorum > 1 else "",
        f"{config.min_workers} worker{'s' * (config.min_workers > 1)} at least" if config.min_workers else "",
        f"{ranks(config.silent)} silent" if config.silent else "",
        *(
            f"{budget} x {what}" if budget > 1 else what if budget else ""
            for budget, what in [
                (config.crashes, "crash"),
                (config.restarts, "restart"),
                (config.returns, "worker back"),
                (config.give_ups, "worker given up on"),
                (config.spare_generations, "generation change without cause"),
                (config.lowerings, "quorum lowered"),
                (config.requantizes, "sums looked up again"),
                (config.leftovers, "leftovers of an earlier job"),
                (config.garbage, "garbage in the registers"),
                (config.sequential, "one all-reduce after the other"),
                (config.ranges, "ranges"),
                (not config.peers, "no peers"),
            ]
        ),
    )


def checks() -> str:
    """Return what is checked."""
    return "".join(f"- *{name}*: {text}.\n" for name, text in CHECKS.items())


def modes() -> str:
    """Return what the letters mean."""
    return ", ".join(f"**{letter}** {text}" for letter, text in MODES.items()) + ".\n"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "decision": decision_table,
    "traces": traces,
    "checks": checks,
    "modes": modes,
    "searches": searches,
}
