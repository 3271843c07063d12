# SPDX-License-Identifier: Apache-2.0
"""An agent's view of its job's generations: whether the agent is a newcomer, and which ranks were replaced since.

    state     input                                               next      also
    KNOWN     a generation with newcomers unknown to the program  REPLACED
    REPLACED  another such generation                             REPLACED  ranks of both, start of the later one
    REPLACED  the program's answer                                KNOWN     ResumeCommand
    any       a generation without unknown newcomers              same

A newcomer begins as KNOWN.
"""

from __future__ import annotations

from hopsum.agent.phase_order import ResumeCommand
from hopsum.errors import WorkersReplacedError
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership, MembershipError


class Generations:
    """The generations of one agent, from its first. Not thread-safe.

    Raises:
        MembershipError: the job continues, but the membership does not name this rank as a newcomer.
    """

    def __init__(self, membership: JobMembership, rank: int) -> None:
        resume = membership.resume
        self._job = membership.job
        self._latest = membership.generation
        self.replaced: ResumeCommand | None = None
        """The workers replaced since the program's last answer."""
        self.is_newcomer = resume is not None
        self.start_generation = membership.generation
        """The generation in which the latest known newcomers begin; at first the agent's own."""
        self.allreduces = 0
        """The all-reduces of the job before this agent's first."""
        if resume is not None:
            new = resume.start_generation == membership.generation and rank in resume.replaced
            if not new or resume.allreduces is None:
                raise MembershipError(
                    f"generation {membership.generation} of job {self._job!r} continues another one, with ranks "
                    f"{list(resume.replaced)} as newcomers, but rank {rank} is new here: connect again"
                )
            self.allreduces = resume.allreduces

    def enter(self, membership: JobMembership, resume: Resume) -> None:
        """Record a new generation. Add its newcomers to `replaced` unless they are known.

        Args:
            resume: the continuation of the stream at the first shard.
        """
        known, self._latest = self._latest, membership.generation
        if resume.start is None or resume.allreduces is None or known >= resume.start_generation:
            return
        newcomers = {} if self.replaced is None else dict(self.replaced.newcomers)
        newcomers |= dict.fromkeys(resume.replaced, resume.start_generation)
        self.start_generation = resume.start_generation
        starts = tuple(shard.resume.start or 0 for shard in membership.shards if shard.resume is not None)
        error = WorkersReplacedError(
            f"ranks {', '.join(map(str, sorted(newcomers)))} of job {self._job!r} have new workers, and the all-reduce "
            "that this one promised to follow it was not submitted before resume()",
            tuple(sorted(newcomers)),
        )
        self.replaced = ResumeCommand(newcomers, resume.start_generation, starts, resume.allreduces, error)

    def answer(self, only: int | None = None) -> ResumeCommand | None:
        """Pop `replaced`: the command that continues the stream with the newcomers, None without unknown newcomers.

        Args:
            only: leave `replaced` and return None unless its newcomers begin in this generation. None: any.
        """
        replaced = self.replaced
        if replaced is None or only not in (None, replaced.start_generation):
            return None
        self.replaced = None
        return replaced
