# SPDX-License-Identifier: Apache-2.0
"""The report of the demo: tables for people, and one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from hopsum_evaluation.demo.account import ARRIVED, DemoCounts, LostFrames, is_possible, lost_between
from hopsum_topologies.switch_testbed import InterfaceCounters

NMSE_TOLERANCE = 0.2
"""The most that the measured error may differ from theory."""


@dataclass(slots=True)
class DemoReport:
    """Everything that is printed. Bytes are of all workers together, at the interface, with headers."""

    target: str
    codec: str
    workers: int
    steps: int
    data: str
    seed: int
    quorum: int = 0
    """Workers that complete a sum, all of them by default."""
    loss: float = 0.0
    """The share of frames that is lost, at every switch port in both directions."""
    peers: bool = True
    topology: str | None = None
    """The name of a topology of the catalogue. None: one switch."""
    where: str = ""
    loss_first: float = 0.0
    loss_last: float = 0.0
    accuracy: float = 0.0
    accuracy_fp32: float = 0.0
    replicas_equal: bool = False
    parameters: int = 0
    chunk_elements: int | None = None
    """Gradients in one packet of the codec, where that is fixed."""
    counts: DemoCounts = field(default_factory=lambda: DemoCounts(InterfaceCounters(0, 0, 0, 0), {}, {}, 0, {}))
    """Counts of the switches' interfaces and programs."""
    agents: InterfaceCounters = field(default_factory=lambda: InterfaceCounters(0, 0, 0, 0))
    """The counts of the agents themselves."""
    retransmits: int = 0
    updates: int = 0
    """First transmissions of all agents."""
    fetches: int = 0
    """Results that workers asked each other for."""
    repaired: int = 0
    """The results among them that came."""
    nmse_mean: float | None = None
    nmse_theory: float | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.quorum = self.quorum or self.workers

    @property
    def interfaces(self) -> InterfaceCounters:
        """Return what passed the interfaces of the workers' links."""
        return self.counts.interfaces

    @property
    def lost(self) -> LostFrames:
        """Return what full queues lost, or what came too late for anybody, by place."""
        return lost_between(self.agents, self.counts)

    @property
    def counters_agree(self) -> bool:
        """Tell if interfaces, program and agents counted the same but for what was lost, and added no chunk twice."""
        whole = self.quorum == self.workers
        return (
            is_possible(self.lost, self.agents, self.counts)
            and (not whole or self._sent_again())
            and self._added_once(whole)
            and self.counts.events["fault"] == 0
        )

    def _sent_again(self) -> bool:
        """Return True if no more was lost than was sent again: all sums are of all workers, and all workers have them.

        A result that came from a peer may have been lost once more than it was asked for.
        """
        lost, again = self.lost, self.retransmits + self.counts.events["probed"]
        up, down = lost.before_interfaces + lost.before_program, lost.behind_program + lost.before_workers
        return up <= again and down <= again + self.repaired

    def _added_once(self, whole: bool) -> bool:
        added, completed = self.counts.events["added"], self.counts.events["completed"]
        if whole:
            return added == self.updates == completed * self.workers
        return completed * self.quorum <= added <= min(self.updates, completed * self.workers)

    @property
    def all_through_switch(self) -> bool:
        """Whether the switch added as many chunks as the gradients have, and a range for each step's first."""
        chunks = (-(-self.parameters // self.chunk_elements) if self.chunk_elements else 1) + 1
        return self.counts.events["added"] >= self.quorum * self.steps * chunks

    @property
    def nmse_fits(self) -> bool:
        """Whether the measured error of the mean is near theory, where there is one."""
        if self.nmse_theory is None or self.nmse_mean is None:
            return True
        return abs(self.nmse_mean / self.nmse_theory - 1) <= NMSE_TOLERANCE

    @property
    def good(self) -> bool:
        """Whether the demo showed what it promises."""
        counted = self.counters_agree and self.all_through_switch
        return self.replicas_equal and counted and self.nmse_fits and self.loss_last < self.loss_first

    @property
    def bytes_fp32_allreduce(self) -> int:
        """Return the payload that a ring all-reduce in fp32 sends for the same gradients, all workers together."""
        return self.steps * 2 * (self.workers - 1) * 4 * self.parameters

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "target": self.target,
            "codec": self.codec,
            "workers": self.workers,
            "steps": self.steps,
            "data": self.data,
            "seed": self.seed,
            "quorum": self.quorum,
            "loss": self.loss,
            "peers": self.peers,
            "topology": self.topology,
            "parameters": self.parameters,
            "loss_first": round(self.loss_first, 4),
            "loss_last": round(self.loss_last, 4),
            "accuracy": round(self.accuracy, 4),
            "accuracy_fp32": round(self.accuracy_fp32, 4),
            "replicas_equal": self.replicas_equal,
            "counters_agree": self.counters_agree,
            "all_through_switch": self.all_through_switch,
            "bytes_up": self.interfaces.bytes_up,
            "bytes_down": self.interfaces.bytes_down,
            "bytes_fp32_allreduce": self.bytes_fp32_allreduce,
            "packets": self.interfaces.packets_up + self.interfaces.packets_down,
            "retransmits": self.retransmits,
            "fetches": self.fetches,
            "repaired": self.repaired,
            "nmse_mean": self.nmse_mean,
            "nmse_theory": self.nmse_theory,
            "uplinks": self.counts.uplinks,
            "switch_events": self.counts.events,
            "switch_drops": self.counts.drops,
            "lost": self.lost._asdict(),
            "seconds": round(self.seconds, 2),
        }

    def print(self, console: Console) -> None:
        """Print the tables."""
        console.print(self._training())
        console.print(self._network())
        console.print(self._counters())
        verdict = "[bold green]all checks hold" if self.good else "[bold red]something is wrong: see NO above"
        console.print(f"{verdict}[/]  ({self.where}; {self.seconds:.0f} s)")

    def _training(self) -> Table:
        title = f"{self.workers} workers, {self.steps} steps, {self.parameters:,} parameters, {self.data}"
        table = _table(title, "", f"{self.codec} through the switch", "fp32 all-reduce")
        table.add_row("accuracy on the test images", f"{self.accuracy:.2%}", f"{self.accuracy_fp32:.2%}")
        table.add_row("loss, first ten steps and last ten", f"{self.loss_first:.3f} -> {self.loss_last:.3f}", "")
        table.add_row("same parameters on all workers (SHA-256)", _yes(self.replicas_equal), "")
        if self.nmse_mean is not None:
            theory = "" if self.nmse_theory is None else f", theory {self.nmse_theory:.4g}: {_yes(self.nmse_fits)}"
            table.add_row("error of the mean (NMSE)", f"{self.nmse_mean:.4g}{theory}", "0")
        return table

    def _network(self) -> Table:
        worker_steps = self.workers * self.steps
        table = _table("per worker and step, at the interface with all headers", "", "up", "down")
        up, down, ring = (
            value / worker_steps
            for value in (self.interfaces.bytes_up, self.interfaces.bytes_down, self.bytes_fp32_allreduce)
        )
        table.add_row(f"{self.codec}: bytes", f"{up:,.0f}", f"{down:,.0f}")
        table.add_row("fp32 ring all-reduce: bytes (computed, payload only)", f"{ring:,.0f}", f"{ring:,.0f}")
        table.add_row("ratio", f"{ring / up:.2f}", f"{ring / down:.2f}")
        table.add_row(
            f"{self.codec}: packets",
            f"{self.interfaces.packets_up / worker_steps:,.1f}",
            f"{self.interfaces.packets_down / worker_steps:,.1f}",
        )
        return table

    def _counters(self) -> Table:
        table = _table("what was counted", "", "workers", "interfaces", "switch program")
        counts, lost = self.counts, self.lost
        repeated = sum(counts.events[name] for name in ARRIVED) - counts.events["added"]
        up, down = "packets up", "packets down"
        table.add_row(up, f"{self.agents.packets_up:,}", f"{self.interfaces.packets_up:,}", f"{counts.arrived:,}")
        table.add_row(down, f"{self.agents.packets_down:,}", f"{self.interfaces.packets_down:,}", f"{counts.replies:,}")
        table.add_row("lost before here, up", "", f"{lost.before_interfaces:,}", f"{lost.before_program:,}")
        table.add_row("lost before here or late, down", f"{lost.before_workers:,}", f"{lost.behind_program:,}", "")
        for link, packets in counts.uplinks.items():
            table.add_row(f"packets up {link}", "", f"{packets:,}", "")
        table.add_row("bytes up", f"{self.agents.bytes_up:,}", f"{self.interfaces.bytes_up:,}", "")
        table.add_row("bytes down", f"{self.agents.bytes_down:,}", f"{self.interfaces.bytes_down:,}", "")
        table.add_row("contributions added", f"{self.updates:,}", "", f"{counts.events['added']:,}")
        table.add_row("repeated, answered, stale", f"{self.retransmits:,}", "", f"{repeated:,}")
        if self.quorum < self.workers:
            table.add_row("results asked of peers, and got", f"{self.fetches:,}, {self.repaired:,}", "", "")
        table.add_row("dropped", "", "", f"{sum(counts.drops.values()):,}")
        table.add_row("all agree", "", "", _yes(self.counters_agree))
        table.add_row("every gradient went through the switch", "", "", _yes(self.all_through_switch))
        return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    return table


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "[red]NO[/]"
