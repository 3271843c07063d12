# SPDX-License-Identifier: Apache-2.0
"""Captures and exchanges, as text for people and as values for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from hopsum_cli.packet.capture import Capture
from hopsum_cli.packet.exchange import PacketExchange
from hopsum_cli.packet.layers import text_of, values_of
from hopsum_cli.packet.rounds import Generation, Round
from hopsum_wire._layout import Op

NO_ANSWER = """\
no answer. A switch answers an UPDATE when its round is complete, a PROBE at once, and a packet that it drops never.
The counter `drops` of the switch has the reason: hopsum switch-ctl snapshot --name HopsumIngress.drops"""

_HEADING: Final = ("slot", "round", "op", "sent by", "again", "sum of", "result to", "stale", "missing, and the rest")


def print_exchange(exchange: PacketExchange) -> None:
    """Print the packet that was sent and its answers as layers."""
    print(f"sent, {exchange.way}\n{text_of(exchange.sent)}")
    for number, answer in enumerate(exchange.answers, 1):
        print(f"\nanswer {number}, after {answer.after_s * 1e3:.1f} ms\n{text_of(answer.packet)}")
    if not exchange.answers:
        print(f"\n{NO_ANSWER}")


def exchange_values(exchange: PacketExchange) -> dict[str, Any]:
    """Return the same as JSON values."""
    answers = [{"after_s": answer.after_s, **values_of(answer.packet)} for answer in exchange.answers]
    return {"way": exchange.way, "sent": values_of(exchange.sent), "answers": answers}


def print_captures(captures: Sequence[Capture], generations: Sequence[tuple[Generation, Sequence[Round]]]) -> None:
    """Print what is in files, and these rounds of each generation."""
    for capture in captures:
        print(_capture_line(capture))
        for note in capture.notes:
            print(f"  {note}")
    for generation, rounds in generations:
        print(f"\n{_generation_line(generation)}")
        for line in _table(generation, rounds) if rounds else ():
            print(line)
        if len(rounds) < len(generation.rounds):
            print(f"{len(generation.rounds) - len(rounds)} rounds are not shown")


def _capture_line(capture: Capture) -> str:
    parts = [f"{capture.path}: {capture.frames} frames, {len(capture.packets)} hopsum packets"]
    for what, counts in (("foreign", capture.foreign), ("malformed", capture.malformed)):
        if counts:
            parts.append(f"{counts.total()} {what} ({_counts(counts)})")
    return ", ".join(parts)


def _generation_line(generation: Generation) -> str:
    rounds = generation.rounds.values()
    complete = sum(found.complete for found in rounds)
    slots = len({found.slot for found in rounds})
    return (
        f"generation {generation.number}: workers {_ranks(generation.workers)}; {len(rounds)} rounds in {slots} slots,"
        f" {complete} complete; {_counts(generation.packets)}; {sum(found.sent_again for found in rounds)} sent again,"
        f" {sum(found.answered_again for found in rounds)} answered again"
    )


def _table(generation: Generation, rounds: Iterable[Round]) -> Iterator[str]:
    """Yield a heading and a line for each round, as wide as the widest needs: a terminal may be narrower."""
    rows = [_HEADING, *(_row(found, generation.workers) for found in rounds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(found: Round, workers: set[int]) -> tuple[str, ...]:
    return (
        str(found.slot),
        str(found.round),
        _op(found.op),
        _ranks(found.updates),
        str(found.sent_again or ""),
        _ranks(found.contributors),
        _times(found.results),
        _times(found.stale),
        "; ".join(remarks(found, workers)),
    )


def remarks(found: Round, workers: set[int]) -> list[str]:
    """Return what is missing in a round, and what happened beside contributions and results."""
    said = [] if found.complete else ["no RESULT"]
    for words, ranks in (
        ("no UPDATE of", found.silent(workers)),
        ("not in the sum:", found.left_out()),
        ("no RESULT to", found.without_result()),
    ):
        if ranks:
            said.append(f"{words} {_ranks(ranks)}")
    if found.held:
        said.append(f"the slot held round {', '.join(map(str, sorted(found.held)))}")
    for words, count in (
        ("FLUSH", found.flushes),
        ("PROBE", found.probes.total()),
        ("STATE", found.states.total()),
        ("PARTIAL", found.partials.total()),
    ):
        if count:
            said.append(f"{count} {words}")
    return said


def capture_values(
    captures: Sequence[Capture], generations: Sequence[tuple[Generation, Sequence[Round]]]
) -> dict[str, Any]:
    """Return files, generations and these rounds as JSON values."""
    files = [
        {
            "file": str(capture.path),
            "frames": capture.frames,
            "hopsum": len(capture.packets),
            "foreign": dict(capture.foreign),
            "malformed": dict(capture.malformed),
            "notes": capture.notes,
        }
        for capture in captures
    ]
    return {"files": files, "generations": [_generation_values(*each) for each in generations]}


def _generation_values(generation: Generation, rounds: Sequence[Round]) -> dict[str, Any]:
    everything = generation.rounds.values()
    return {
        "generation": generation.number,
        "workers": sorted(generation.workers),
        "packets": dict(generation.packets),
        "rounds_seen": len(everything),
        "rounds_complete": sum(found.complete for found in everything),
        "sent_again": sum(found.sent_again for found in everything),
        "answered_again": sum(found.answered_again for found in everything),
        "rounds": [_round_values(found, generation.workers) for found in rounds],
    }


def _round_values(found: Round, workers: set[int]) -> dict[str, Any]:
    counted = ("updates", "partials", "results", "stale", "probes", "states")
    return {
        "slot": found.slot,
        "round": found.round,
        "op": _op(found.op),
        "first_s": found.first_s,
        "last_s": found.last_s,
        "complete": found.complete,
        **{name: {str(rank): count for rank, count in sorted(getattr(found, name).items())} for name in counted},
        "flushes": found.flushes,
        "contributors": sorted(found.contributors),
        "held": sorted(found.held),
        "silent": sorted(found.silent(workers)),
        "left_out": sorted(found.left_out()),
        "without_result": sorted(found.without_result()),
    }


def _op(op: int) -> str:
    return Op(op).name if op in list(Op) else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _ranks(ranks: Iterable[int]) -> str:
    return " ".join(map(str, sorted(ranks)))


def _times(counts: Counter[int]) -> str:
    """Return ranks, with the number of answers where there were several."""
    return " ".join(f"{rank}x{count}" if count > 1 else str(rank) for rank, count in sorted(counts.items()))
