# SPDX-License-Identifier: Apache-2.0
"""Section `delay`: an all-reduce by rate and round-trip time, hopsum beside gloo and two-shot. It needs root.

An all-reduce of one vector, medians. The round trip is between two sites; a process in user space delays every frame,
and shares this machine's cores. thc: one embedded switch half way. thc at hosts: a switch at every site. A job has as
many slots as a round trip at 1 Gbit/s needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from rich.console import Console

from hopsum.protocol.slot_count import slots_for
from hopsum_evaluation.bench.allreduce import GLOO, AllReduceSetting, RateFinding, WrongMeanError, unavailable
from hopsum_evaluation.bench.allreduce import run as run_rates
from hopsum_evaluation.charts import Plot, Series
from hopsum_evaluation.report.claims import Basis, Claim, Relation
from hopsum_evaluation.report.experiment import (
    NotRunError,
    Result,
    Settings,
    Shown,
    ShownTable,
    Tell,
    measure_apart,
)
from hopsum_evaluation.units import figure, rate_bits_per_s

OURS, AT_HOSTS = "thc", "thc at hosts"
_TWO_SHOT: Final = "two-shot-4"
_OTHERS: Final = (*GLOO, _TWO_SHOT)
_SLOW: Final = "200mbit"
CLAIMS: Final = tuple(
    Claim(
        name,
        f"seconds of an all-reduce, {_SLOW} links, all round trips and numbers of sites: {rival} over thc",
        "goal",
        Basis.OWN,
        1.0,
        Relation.AT_LEAST,
    )
    for name, rival in (("delay-slow", "the faster of gloo's fp32 and fp16"), ("delay-two-shot", "two-shot in 4 bits"))
)
_Place = tuple[int, float]
"""Sites, and seconds of a round trip between two of them."""


def run(settings: Settings, tell: Tell) -> Result:
    """Time an all-reduce at every rate and round-trip time. Raises NotRunError."""
    if reason := unavailable():
        raise NotRunError(reason)
    elements = settings.pick(50_000, 1_000_000, 1_000_000)
    rates = settings.pick((_SLOW,), (_SLOW, "1gbit"), ("50mbit", _SLOW, "1gbit"))
    trips_s = settings.pick((0.004,), (0.0, 0.01), (0.0, 1e-3, 10e-3, 50e-3))
    sites = settings.pick((2,), (4,), (2, 4))
    runs, seed = settings.pick(2, 3, 3), settings.stream("data", "delay") % (1 << 31)
    # Without torch hopsum alone is measured, and the claims have no samples.
    others = _OTHERS if find_spec("torch") is not None else ()
    # Other schemes use no switch: with switches on hosts they would be measured twice.
    places = [("fabric", (OURS, *others)), ("hosts", (OURS,))]
    todo = [(n, trip_s, *place) for n in sites for trip_s in trips_s for place in places]
    cells: list[dict[str, Any]] = []
    for number, (workers, trip_s, placement, subjects) in enumerate(todo):
        tell(number / len(todo), f"{workers} sites, {1000 * trip_s:g} ms, {placement}")
        setting = AllReduceSetting(
            rates, workers, (elements,), 1, slots_for(1e9, trip_s), runs, seed, subjects, "auto", placement,
            round_trip_s=trip_s,
        )  # fmt: skip
        for found in measure_apart(measure_quietly, setting):
            name = AT_HOSTS if placement == "hosts" else found.subject
            cells.append({
                "sites": workers, "round_trip_s": trip_s, "rate": found.rate, "scheme": name,
                "seconds": found.seconds, "retransmits": found.retransmits, "window": setting.window,
            })  # fmt: skip
    return {"elements": elements, "cells": cells}


def measure_quietly(setting: AllReduceSetting) -> list[RateFinding]:
    """Measure as `hopsum bench allreduce` does, without its words. Raises NotRunError for a wrong mean."""
    try:
        return run_rates(setting, Console(quiet=True))
    except WrongMeanError as error:
        raise NotRunError(str(error)) from None


def show(result: Result) -> Shown:
    """Make tables, a plot and the samples of the claims from a result of `run`."""
    cells = result["cells"]
    places: list[_Place] = list(dict.fromkeys((each["sites"], each["round_trip_s"]) for each in cells))
    rates = list(dict.fromkeys(each["rate"] for each in cells))
    seconds = {place: {rate: _seconds(cells, place, rate) for rate in rates} for place in places}
    slow = [found[_SLOW] for found in seconds.values() if _SLOW in found]
    fastest_rows = [[_named(place), *(fastest(found[rate]) for rate in rates)] for place, found in seconds.items()]
    return Shown(
        tables=[
            ShownTable("delay-fastest", ("sites, round trip", *rates), fastest_rows),
            _seconds_table(cells),
        ],
        plots=[_plot(seconds)],
        samples={
            "delay-slow": [over for found in slow if (over := _over_ours(found, GLOO)) is not None],
            "delay-two-shot": [over for found in slow if (over := _over_ours(found, (_TWO_SHOT,))) is not None],
        },
        reasons=dict.fromkeys(("delay-slow", "delay-two-shot"), "not measured: it needs torch"),
    )


def _seconds(cells: Sequence[dict[str, Any]], place: _Place, rate: str) -> dict[str, float]:
    return {
        each["scheme"]: median(each["seconds"])
        for each in cells
        if ((each["sites"], each["round_trip_s"]), each["rate"]) == (place, rate)
    }


def _over_ours(seconds: dict[str, float], others: Sequence[str]) -> float | None:
    """Divide the seconds of the fastest of `others` by those of thc, or return None without one of them."""
    found = [seconds[name] for name in others if name in seconds]
    return min(found) / seconds[OURS] if found and OURS in seconds else None


def fastest(seconds: dict[str, float]) -> str:
    """Name the fastest scheme, and how many times longer the best of the other kind takes, with or without hopsum."""
    best = min(seconds, key=lambda name: seconds[name])
    others = [value for name, value in seconds.items() if (name in _OTHERS) != (best in _OTHERS)]
    return f"{best} {figure(min(others) / seconds[best], 2)}x" if others else best


def _seconds_table(cells: Sequence[dict[str, Any]]) -> ShownTable:
    rows = [
        [f"{_named((each['sites'], each['round_trip_s']))}, {each['rate']}", each["scheme"],
         figure(median(each["seconds"])), figure(min(each["seconds"])), figure(max(each["seconds"])),
         str(each["window"]) if each["scheme"] not in _OTHERS else "-", str(each["retransmits"])]
        for each in cells
    ]  # fmt: skip
    heads = ("sites, round trip, links", "scheme", "median, s", "least, s", "most, s", "slots", "sent again")
    return ShownTable("delay-seconds", heads, rows)


def _named(place: _Place) -> str:
    sites, trip_s = place
    return f"{sites} sites, {'no delay added' if trip_s == 0 else f'{1000 * trip_s:g} ms'}"


def _plot(seconds: dict[_Place, dict[str, dict[str, float]]]) -> Plot:
    series = []
    for place, by_rate in seconds.items():
        points = [
            (rate_bits_per_s(rate) / 1e6, ratio)
            for rate, found in by_rate.items()
            if (ratio := _over_ours(found, _OTHERS))
        ]
        if points:
            series.append(Series.of(_named(place), points))
    if series:
        first = series[0].x
        series.append(Series("as fast as the best other", first, [1.0] * len(first), reference=True))
    return Plot("delay", "The fastest of gloo and two-shot over thc, by rate and round trip", "Mbit/s", "ratio",
                series, True, True)  # fmt: skip
