# SPDX-License-Identifier: Apache-2.0
"""An agent's view of its job's generations: whether the agent is new itself, and which ranks were replaced since.

    state     input                                        next      also
    KNOWN     a generation whose newcomers it had not met      REPLACED
    REPLACED  another such generation                           REPLACED  the ranks of both, the start of the later one
    REPLACED  the program's answer                         KNOWN     ResumeCommand
    any       a generation without newcomers, or known ones    same

A newcomer is KNOWN from the generation in which it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from hopsum.agent.network import ResumeCommand
from hopsum.errors import WorkersReplacedError
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership, MembershipError


@dataclass(frozen=True, slots=True)
class Replaced:
    """Workers whose places others have, and where these begin."""

    newcomers: dict[int, int]
    """The generation in which each newcomer begins, by rank."""
    start_generation: int
    starts: tuple[int, ...]
    """The starts by shard."""
    allreduces: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return whose places they were."""
        return tuple(sorted(self.newcomers))


class Generations:
    """The generations of one agent, from its first. Not thread-safe.

    Raises:
        MembershipError: the job goes on, but does not say that this rank is new.
    """

    def __init__(self, membership: JobMembership, rank: int) -> None:
        resume = membership.resume
        self._job = membership.job
        self._latest = membership.generation
        self.replaced: Replaced | None = None
        """The workers replaced since the program's last answer."""
        self.is_newcomer = resume is not None
        self.start_generation = membership.generation
        """The generation in which the newcomers begin that this agent met last. It is one of them at first."""
        self.allreduces = 0
        """The all-reduces of the job before this agent's first."""
        if resume is not None:
            new = resume.start_generation == membership.generation and rank in resume.replaced
            if not new or resume.allreduces is None:
                raise MembershipError(
                    f"generation {membership.generation} of job {self._job!r} goes on from another one, with ranks "
                    f"{list(resume.replaced)} as newcomers, but rank {rank} is new here: connect again"
                )
            self.allreduces = resume.allreduces

    def enter(self, membership: JobMembership, resume: Resume) -> None:
        """Note another generation."""
        known, self._latest = self._latest, membership.generation
        if resume.start is None or resume.allreduces is None or known >= resume.start_generation:
            return
        newcomers = {} if self.replaced is None else dict(self.replaced.newcomers)
        newcomers |= dict.fromkeys(resume.replaced, resume.start_generation)
        self.start_generation = resume.start_generation
        starts = tuple(shard.resume.start or 0 for shard in membership.shards if shard.resume is not None)
        self.replaced = Replaced(newcomers, resume.start_generation, starts, resume.allreduces)

    def answer(self, only: int | None = None) -> tuple[ResumeCommand, Replaced] | None:
        """Return what lets the stream go on, and with whom, None where nobody was replaced. They are known from now on.

        Args:
            only: the generation in which newcomers begin. Others are no matter.
        """
        replaced = self.replaced
        if replaced is None or only not in (None, replaced.start_generation):
            return None
        self.replaced = None
        ranks = ", ".join(map(str, replaced.ranks))
        error = WorkersReplacedError(
            f"ranks {ranks} of job {self._job!r} were replaced, and the all-reduce that this one promised to follow it "
            "was not submitted before resume()",
            replaced.ranks,
        )
        return ResumeCommand(replaced.start_generation, replaced.starts, replaced.allreduces, error), replaced
