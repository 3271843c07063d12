# SPDX-License-Identifier: Apache-2.0
"""Section `delay`: an all-reduce by rate and round-trip time, hopsum beside gloo and two-shot. It needs root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from hopsum.plan import (
    SLOTS_LEAST,
    PlannedJob,
    predict_ring,
    predict_summed,
    predict_two_shot,
    shipped_costs,
    slots_for,
)
from hopsum_evaluation.bench.allreduce import unavailable
from hopsum_evaluation.bench.allreduce_report import GLOO
from hopsum_evaluation.bench.allreduce_run import AllReduceSetting
from hopsum_evaluation.plan.forecast import codec_of
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.growth_run import apart, find_rates
from hopsum_evaluation.report.settings import NotRunError, Result, Settings, Tell
from hopsum_evaluation.report.shown import Plot, Series, Shown, ShownTable, figure
from hopsum_wire import MAX_SLOTS

OURS, AT_HOSTS = "thc", "thc at hosts"
_TWO_SHOT: Final = "two-shot-4"
_OTHERS: Final = (*GLOO, _TWO_SHOT)
_SLOW: Final = "200mbit"
_PREDICTED: Final = (2.5e9, 10e9)
"""Rates that the delay in user space does not carry on two cores: the plan's are shown."""
CLAIMS: Final = (
    Claim(
        "delay-slow",
        f"seconds of an all-reduce, the faster of gloo's fp32 and fp16 over thc, links of {_SLOW}, mean of all round "
        "trips and numbers of sites",
        "a goal of this project",
        Basis.OWN,
        1.0,
        Relation.AT_LEAST,
    ),
    Claim(
        "delay-two-shot",
        f"seconds of an all-reduce, two-shot in 4 bits over thc, links of {_SLOW}, mean of all round trips and numbers "
        "of sites",
        "a goal of this project",
        Basis.OWN,
        1.0,
        Relation.AT_LEAST,
    ),
)


def run(settings: Settings, tell: Tell) -> Result:
    """Measure every rate at every round-trip time. Raises NotRunError where that cannot run here."""
    if reason := unavailable():
        raise NotRunError(reason)
    elements = settings.pick(50_000, 1_000_000, 1_000_000)
    rates = settings.pick((_SLOW,), (_SLOW, "1gbit"), ("50mbit", _SLOW, "1gbit"))
    trips_s = settings.pick((0.0, 0.004), (0.0, 0.01), (0.0, 1e-3, 10e-3, 50e-3))
    sites = settings.pick((2,), (4,), (2, 4))
    runs, seed = settings.pick(2, 3, 3), settings.stream("data", "delay") % (1 << 31)
    others = _OTHERS if find_spec("torch") is not None else ()
    places = [("fabric", (OURS, *others)), ("hosts", (OURS,))]
    todo = [(n, trip_s, *place) for n in sites for trip_s in trips_s for place in places]
    cells: list[dict[str, Any]] = []
    for number, (workers, trip_s, placement, subjects) in enumerate(todo):
        tell(number / len(todo), f"{workers} sites, {1000 * trip_s:g} ms, {placement}")
        setting = AllReduceSetting(
            rates, workers, elements, 1, slots_for(1e9, trip_s), runs, seed, subjects, "auto", placement,
            round_trip_s=trip_s,
        )  # fmt: skip
        for found in apart(find_rates, setting):
            name = AT_HOSTS if placement == "hosts" else found.subject
            cells.append({
                "sites": workers, "round_trip_s": trip_s, "rate": found.rate, "scheme": name,
                "seconds": found.seconds, "retransmits": found.retransmits, "window": setting.window,
            })  # fmt: skip
    return {"elements": elements, "cells": cells, "predicted": _predict(elements, sites, trips_s)}


def _predict(elements: int, sites: Sequence[int], trips_s: Sequence[float]) -> list[dict[str, Any]]:
    costs, found = shipped_costs(), []
    for workers in sites:
        for trip_s in trips_s:
            for bits_per_s in _PREDICTED:
                job = PlannedJob(elements, workers, 0.0, bits_per_s, vectors=1, round_trip_s=trip_s)
                middle = replace(job, round_trip_s=trip_s / 2)  # the switch is half way
                seconds = {
                    OURS: predict_summed(middle, costs, codec_of(OURS, workers), "embedded").allreduce_s,
                    AT_HOSTS: predict_summed(job, costs, codec_of(OURS, workers), "hosts").allreduce_s,
                    **{f"gloo-{each}": predict_ring(job, costs, each).allreduce_s for each in ("fp32", "fp16")},
                    _TWO_SHOT: predict_two_shot(job, costs, 4).allreduce_s,
                }
                found.append({"sites": workers, "round_trip_s": trip_s, "bits_per_s": bits_per_s, "seconds": seconds})
    return found


def show(result: Result) -> Shown:
    """Return what the page says of a result of `run`, and nothing else."""
    cells = result["cells"]
    places = list(dict.fromkeys((each["sites"], each["round_trip_s"]) for each in cells))
    rates = list(dict.fromkeys(each["rate"] for each in cells))
    seconds = {place: {rate: _seconds(cells, place, rate) for rate in rates} for place in places}
    slow = [found[_SLOW] for found in seconds.values() if _SLOW in found]
    return Shown(
        words=[
            f"An all-reduce of {result['elements']:,} float32 in one vector, medians. The round trip is between two "
            "sites. thc: one embedded switch half way. thc at hosts: a switch at every site, which sums a share of "
            "the vector. gloo: a ring. two-shot-4: codes of 4 bits, all to all, summed, and to all, over gloo. A "
            "process in user space delays every frame and shares this machine's cores. "
            f"A job of hopsum has as many slots as a round trip at 1 Gbit/s needs, from {SLOTS_LEAST} up to the "
            f"{MAX_SLOTS:,} of a switch.",
            "A number after the fastest scheme is the ratio of the best of the other kind, with or without hopsum, to "
            "it. Columns marked with * are predictions of `hopsum plan` for machines of their own, which knows "
            "nothing of the windows of TCP and of hopsum.",
        ],
        tables=[_fastest_table(seconds, result["predicted"]), _seconds_table(cells)],
        plots=[_plot(seconds)],
        samples={
            "delay-slow": list(filter(None, (_over_ours(found, GLOO) for found in slow))),
            "delay-two-shot": list(filter(None, (_over_ours(found, (_TWO_SHOT,)) for found in slow))),
        },
        reasons=dict.fromkeys(("delay-slow", "delay-two-shot"), "not measured: it needs torch"),
    )


def fastest_links(result: Result) -> str:
    """Return the links on which hopsum has the fastest all-reduce, in a sentence."""
    cells = result["cells"]
    links = dict.fromkeys((each["rate"], each["sites"], each["round_trip_s"]) for each in cells)
    won = []
    for rate, *place in links:
        seconds = _seconds(cells, (place[0], place[1]), rate)
        if min(seconds, key=lambda name: seconds[name]) not in _OTHERS:
            won.append(f"{rate}, {_named((place[0], place[1]))}: {fastest(seconds)}")
    listed = f" ({'; '.join(won)})" if won else ""
    return f"hopsum has the fastest all-reduce on {len(won)} of {len(links)} links{listed}"


_Place = tuple[int, float]


def _seconds(cells: Sequence[dict[str, Any]], place: _Place, rate: str) -> dict[str, float]:
    return {
        each["scheme"]: median(each["seconds"])
        for each in cells
        if ((each["sites"], each["round_trip_s"]), each["rate"]) == (place, rate)
    }


def _over_ours(seconds: dict[str, float], others: Sequence[str]) -> float | None:
    """Return the seconds of the fastest of `others` over those of thc, or None without one."""
    found = [seconds[name] for name in others if name in seconds]
    return min(found) / seconds[OURS] if found and OURS in seconds else None


def fastest(seconds: dict[str, float]) -> str:
    """Return the fastest scheme, and how many times longer the best of the other kind takes."""
    best = min(seconds, key=lambda name: seconds[name])
    others = [value for name, value in seconds.items() if (name in _OTHERS) != (best in _OTHERS)]
    return f"{best} {figure(min(others) / seconds[best], 2)}x" if others else best


def _fastest_table(
    seconds: dict[_Place, dict[str, dict[str, float]]], predicted: Sequence[dict[str, Any]]
) -> ShownTable:
    rates = list(next(iter(seconds.values())))
    rows = []
    for place, by_rate in seconds.items():
        planned = [each for each in predicted if (each["sites"], each["round_trip_s"]) == place]
        rows.append([_named(place), *(fastest(by_rate[rate]) for rate in rates),
                     *(fastest(each["seconds"]) for each in planned)])  # fmt: skip
    heads = ("sites, round trip", *rates, *(f"{bits / 1e9:g}gbit *" for bits in _PREDICTED))
    return ShownTable("The fastest scheme, by rate and round trip", heads, rows)


def _seconds_table(cells: Sequence[dict[str, Any]]) -> ShownTable:
    rows = [
        [f"{_named((each['sites'], each['round_trip_s']))}, {each['rate']}", each["scheme"],
         figure(median(each["seconds"])), figure(min(each["seconds"])), figure(max(each["seconds"])),
         str(each["window"]) if each["scheme"] not in _OTHERS else "-", str(each["retransmits"])]
        for each in cells
    ]  # fmt: skip
    heads = ("sites, round trip, links", "scheme", "median, s", "least, s", "most, s", "slots", "sent again")
    return ShownTable("Seconds of an all-reduce", heads, rows)


def _named(place: _Place) -> str:
    sites, trip_s = place
    return f"{sites} sites, {'no delay added' if trip_s == 0 else f'{1000 * trip_s:g} ms'}"


def _plot(seconds: dict[_Place, dict[str, dict[str, float]]]) -> Plot:
    series = []
    for place, by_rate in seconds.items():
        points = [(_megabits(rate), ratio) for rate, found in by_rate.items() if (ratio := _over_ours(found, _OTHERS))]
        if points:
            series.append(Series.of(_named(place), points))
    if series:
        first = series[0].x
        series.append(Series("as fast as the best other", first, [1.0] * len(first), reference=True))
    return Plot("delay", "The fastest of gloo and two-shot over thc, by rate and round trip", "Mbit/s", "ratio",
                series, True, True)  # fmt: skip


def _megabits(rate: str) -> float:
    return float(rate.removesuffix("mbit")) if rate.endswith("mbit") else 1000 * float(rate.removesuffix("gbit"))
