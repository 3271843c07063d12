# SPDX-License-Identifier: Apache-2.0
"""A case of a grader: a rule of the handout, its points, and the packets that show whether the program keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Failed(Exception):  # noqa: N818 - a verdict on the student's program, no error of ours
    """The program broke the rule. The text says which packet, what was expected, and what came."""


class LabError(Exception):
    """Something that the student or the installation has to mend. The text says what and how."""


@dataclass(frozen=True)
class Case:
    """One rule. `check` raises Failed.

    A case of a program gets a `Testbed` that runs it. A case of a worker gets `all_reduce`, then a `Testbed` that runs
    the solution. The switch has no entries yet.
    """

    name: str
    rule: str
    points: int
    check: Callable[..., None]


def expect(condition: bool, text: str) -> None:
    """Raise Failed with `text` unless `condition` holds."""
    if not condition:
        raise Failed(text)
