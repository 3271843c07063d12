# SPDX-License-Identifier: Apache-2.0
"""The checks of drills see what is wrong: journals of a training in memory, as they are and falsified."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.codec import ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.simulate import simulate_switch

from .drill_training import added
from .journal import Journal, Probes, digest, mass, norm, read_journal, replicas_equal

WORKERS, ELEMENTS, STEPS = 3, 3000, 6
Journals = dict[int, list[dict[str, Any]]]


class Training:
    """Workers that sum in memory and write journals."""

    def __init__(self) -> None:
        self.codec = make_codec("thc:result_bits=8", workers=WORKERS, backend="numpy")
        self.probes, self.generator = Probes(ELEMENTS, 1), np.random.default_rng(5)
        self.feedback = [ErrorFeedback(ELEMENTS) for _ in range(WORKERS)]
        self.weights = np.zeros(ELEMENTS, np.float32)
        self.journals: Journals = {rank: [{"kind": "life"}] for rank in range(WORKERS)}
        self.live = list(range(WORKERS))

    def step(
        self,
        step: int,
        *,
        late: int | None = None,
        dies: int | None = None,
        large: int | None = None,
        alone: int | None = None,
    ) -> None:
        """Take a step. Rank `late` comes too late for its sum, rank `dies` has contributed to it and dies, rank `large`
        has a gradient ten times as large as the others', and only rank `alone` gets the result, and is evicted.
        """
        reductions = {}
        for rank in self.live:
            gradient = (10 if rank == large else 1) * self.generator.normal(size=ELEMENTS).astype(np.float32)
            size = norm(gradient + self.feedback[rank].residual)
            entry = {"kind": "begin", "step": step, "gradient": self.probes.of(gradient), "size": size}
            self.journals[rank].append(entry)
            reductions[rank] = self.codec.start(gradient, ReductionContext(1, step, rank), self.feedback[rank])
        first = reductions[self.live[0]]
        while (phase := first.phase) is not None:
            present = [rank for rank in self.live if not (phase.last and rank == late)]
            rows = {rank: reductions[rank].phase.payloads for rank in present}
            payloads = [rows.get(rank, np.zeros_like(phase.payloads)) for rank in range(WORKERS)]
            inside = np.array([[rank in present] * len(phase.payloads) for rank in range(WORKERS)])
            results, bits = simulate_switch(phase.op, payloads, self.codec.lookup, inside)
            for rank in self.live:
                if alone is None or rank == alone or not phase.last:
                    reductions[rank].on_results(results, bits)
            if alone is not None and phase.last:
                self._give_up(step, alone, reductions, bits)
                return
        self.weights = self.weights - first.mean
        self.live = [rank for rank in self.live if rank != dies]
        for rank in self.live:
            self.journals[rank].append(
                self._entry(step, rank, added(first.mean, bits, self.codec.block_elements), bits)
            )

    def _give_up(self, step: int, alone: int, reductions: dict[int, Any], bits: Any) -> None:
        """Write that one rank has a step's result, and is evicted, while the others have their vectors back."""
        mean = reductions[alone].mean
        self.journals[alone].append(self._entry(step, alone, added(mean, bits, self.codec.block_elements), bits))
        gradient = self.generator.normal(size=ELEMENTS).astype(np.float32)
        own = {"gradient": self.probes.of(gradient), "size": norm(gradient + self.feedback[alone].residual)}
        back = {"residual": self.probes.of(gradient + self.feedback[alone].residual), "residual_norm": own["size"]}
        self.journals[alone] += [
            {"kind": "begin", "step": step + 1, **own},
            {"kind": "failed", "step": step + 1, "taken": True, **back},
            {"kind": "life"},  # which takes that step, with the others
        ]
        for rank in self.live:
            if rank != alone:
                reductions[rank].abort()
                entry = self._entry(step, rank, mean, bits)
                self.journals[rank].append({**entry, "kind": "void", "taken": True})
        self.feedback[alone] = ErrorFeedback(ELEMENTS)

    def _entry(self, step: int, rank: int, applied: Any, bits: Any) -> dict[str, Any]:
        residual = self.feedback[rank].residual
        return {
            "kind": "step",
            "step": step,
            "generation": 1,
            "digest": digest(self.weights),
            "contributors": [int(each) for each in bits],
            "applied": self.probes.of(applied),
            "residual": self.probes.of(residual),
            "residual_norm": norm(residual),
        }


def trained(**special: int) -> Journals:
    """Return the journals of some steps, in one of which a rank is `late`, `dies` or is `large` (`Training.step`)."""
    training = Training()
    for step in range(STEPS):
        training.step(step, **(special if step == STEPS // 2 else {}))
    for rank in training.live:
        training.journals[rank].append({"kind": "end"})
    return training.journals


@pytest.fixture(scope="module")
def plain() -> Journals:
    return trained()


def test_a_training_that_is_right(plain: Journals) -> None:
    assert replicas_equal(plain).ok
    found = mass(plain)
    assert found.check.ok, found.check
    assert (found.steps, found.lost_norms) == (STEPS, {})
    assert 0 < found.error < 1e-6


def test_a_contribution_that_came_too_late_is_in_the_error_feedback() -> None:
    found = mass(trained(late=1))
    assert found.check.ok, found.check
    assert found.lost_norms == {}


def test_the_error_feedback_of_a_dead_worker_is_lost_and_nothing_else() -> None:
    journals = trained(dies=2)
    found = mass(journals)
    assert found.check.ok, found.check
    last = [entry for entry in journals[2] if entry["kind"] == "step"][-1]
    assert found.lost_norms == {2: last["residual_norm"]}
    assert "lost with rank 2" in found.check.why


def test_a_dead_workers_error_of_quantisation_is_of_the_largest_workers_range() -> None:
    found = mass(trained(dies=2, large=1))
    assert found.check.ok, found.check


def test_a_result_that_only_a_rank_took_which_was_given_up_is_none() -> None:
    journals = trained(alone=1)
    found = mass(journals)
    assert found.check.ok, found.check
    assert 1 in found.lost_norms
    void = next(entry for entry in journals[0] if entry["kind"] == "void")
    void["residual"] = [0.0] * len(void["residual"])
    assert not mass(journals).check.ok, "the others have not their vectors back"


def test_a_dead_workers_contribution_that_never_arrived_is_seen() -> None:
    journals = trained(dies=2)
    begun = journals[2][-1]
    for journal in (journals[0], journals[1]):
        entry = next(entry for entry in journal if entry["kind"] == "step" and entry["step"] == begun["step"])
        entry["applied"] = [one - own for one, own in zip(entry["applied"], begun["gradient"], strict=True)]
    assert "ended in it" in mass(journals).check.why


def lose(journals: Journals) -> None:
    """A residual that was forgotten: what had not been delivered is gone."""
    entry = journals[1][4]
    assert entry["kind"] == "step"
    entry["residual"] = [0.0] * len(entry["residual"])


def double(journals: Journals) -> None:
    """A contribution that was added twice."""
    begun, done = journals[0][3], [journal[4] for journal in journals.values()]
    for entry in done:
        entry["applied"] = [one + more for one, more in zip(entry["applied"], begun["gradient"], strict=True)]


def forget_bit(journals: Journals) -> None:
    """A sum that has fewer contributors than it says: the mean was divided by one too many."""
    for journal in journals.values():
        journal[4]["applied"] = [2 / 3 * value for value in journal[4]["applied"]]


def invent(journals: Journals) -> None:
    """A contribution of a rank that had not begun: its lines are not there."""
    del journals[2][3:5]


@pytest.mark.parametrize("falsify", [lose, double, forget_bit, invent])
def test_mass_that_is_missing_or_there_twice_is_seen(plain: Journals, falsify: Callable[[Journals], None]) -> None:
    journals = copy.deepcopy(plain)
    falsify(journals)
    assert mass(journals).check.ok is False


def test_a_dead_worker_may_not_take_a_whole_gradient_with_it() -> None:
    journals = trained(dies=2)
    begun = journals[2][-1]
    assert begun["kind"] == "begin"
    begun["gradient"] = [3 * value + 1000 for value in begun["gradient"]]
    assert mass(journals).check.ok is False


@pytest.mark.parametrize(("what", "value"), [("digest", "0"), ("contributors", [1])])
def test_replicas_that_differ_are_seen(plain: Journals, what: str, value: Any) -> None:
    journals = copy.deepcopy(plain)
    journals[1][6][what] = value
    check = replicas_equal(journals)
    assert check.ok is False
    assert "step 2" in check.why


def test_nothing_compared_is_no_success() -> None:
    assert replicas_equal({0: [], 1: []}).ok is False
    assert mass({0: [{"kind": "life"}]}).check.ok is False


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path) == []
    journal = Journal(path)
    journal.write("life", step=0)
    journal.write("begin", step=0)
    with path.open("a") as file:
        file.write('{"kind": "st')
    assert [entry["kind"] for entry in read_journal(path)] == ["life", "begin"]
