# SPDX-License-Identifier: Apache-2.0
"""Election ids that count sessions, against the switch's own state machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopsum_controlplane.devices.p4runtime_session import OWNERS, Answer, ElectionId, next_id, same_owner
from hopsum_switch.p4runtime.service import Arbitration
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode

HIGHS, OWN = (1, 2), (0, 5, 6)


class Switch:
    """The clients of one switch, by a number each."""

    def __init__(self) -> None:
        self.arbitration = Arbitration(0)
        self.ids: dict[int, ElectionId] = {}
        self.owners: dict[int, int] = {}

    def ask(self, client: int, election_id: ElectionId) -> Answer:
        high, low = election_id
        notices = self.arbitration.update(client, 0, high << 64 | low)
        (told,) = [notice for notice in notices if notice.client == client]
        self.ids[client] = election_id
        highest = told.election_id or 0
        return Answer(
            told.code is RpcCode.OK, told.code is RpcCode.ALREADY_EXISTS, (highest >> 64, highest % (1 << 64))
        )

    def open(self, client: int, high: int, owner: int) -> bool:
        """Return whether a session of this owner is primary when it has asked as a controller does."""
        try:
            answer = self.ask(client, (high, 0))
            following = next_id((high, 0), owner, answer)
            if following is not None:
                answer = self.ask(client, following)
        except P4RuntimeError:
            answer = Answer(False, True, (high, 0))
        self.owners[client] = owner
        if not answer.ours:
            self.close(client)
        return answer.ours

    def close(self, client: int) -> None:
        self.arbitration.disconnect(client)
        self.ids.pop(client, None)
        self.owners.pop(client, None)


@given(st.lists(st.tuples(st.sampled_from(HIGHS), st.sampled_from(OWN), st.integers(0, 3)), max_size=12))
def test_the_newer_session_of_an_owner_wins_and_nobody_elses(steps: list[tuple[int, int, int]]) -> None:
    switch = Switch()
    highest = 0
    for client, (high, owner, closes) in enumerate(steps):
        primary = switch.arbitration.primary
        holder = None if primary is None else (switch.ids[int(str(primary))], switch.owners[int(str(primary))])
        won = switch.open(client, high, owner)
        if high < highest:
            assert not won
        elif holder is None or holder[0][0] < high or (owner and holder[1] == owner):
            assert won
        else:
            assert not won, "another controller with this id has it"
        assert (switch.arbitration.primary == client) == won
        if not won:
            assert switch.arbitration.primary == primary
        highest = max(highest, high) if won else highest
        live = list(switch.ids)
        if closes and live:
            switch.close(live[closes % len(live)])


def test_ids_as_they_are_configured_are_left_alone() -> None:
    for answer in (Answer(True, False, (0, 9)), Answer(False, True, (1, 3)), Answer(False, False, (5, 5))):
        assert next_id((0, 9), 7, answer) is None
    assert next_id((1, 0), 0, Answer(True, False, (1, 0))) is None
    assert next_id((1, 0), 7, Answer(False, False, (1, (OWNERS - 1) << 32 | 7))) is None, "there is no higher one"
    assert not same_owner((1, 0), 0)
    assert same_owner((1, 3 << 32 | 7), 7)
