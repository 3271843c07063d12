# SPDX-License-Identifier: Apache-2.0
"""The arbitration state machine, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_switch.p4runtime.service import MAX_ELECTION_ID, Arbitration, Notice
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode

DEVICE = 7


def arbitration() -> Arbitration:
    return Arbitration(DEVICE)


def refused(call: object, *arguments: object) -> RpcCode:
    with pytest.raises(P4RuntimeError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code


def test_the_first_client_becomes_primary_and_may_write() -> None:
    state = arbitration()
    assert refused(state.check_writer, 1) is RpcCode.PERMISSION_DENIED
    assert state.update("a", DEVICE, 1) == [Notice("a", RpcCode.OK, 1)]
    state.check_writer(1)
    assert refused(state.check_writer, 2) is RpcCode.PERMISSION_DENIED
    assert refused(state.check_writer, None) is RpcCode.PERMISSION_DENIED


def test_a_higher_id_takes_over_and_hears_of_it_last() -> None:
    state = arbitration()
    state.update("a", DEVICE, 1)
    assert state.update("b", DEVICE, 2) == [Notice("a", RpcCode.ALREADY_EXISTS, 2), Notice("b", RpcCode.OK, 2)]
    assert refused(state.check_writer, 1) is RpcCode.PERMISSION_DENIED
    state.check_writer(2)


def test_a_lower_id_or_none_is_a_backup_and_only_it_is_told() -> None:
    state = arbitration()
    state.update("a", DEVICE, 5)
    assert state.update("b", DEVICE, 4) == [Notice("b", RpcCode.ALREADY_EXISTS, 5)]
    assert state.update("c", DEVICE, None) == [Notice("c", RpcCode.ALREADY_EXISTS, 5)]
    assert state.primary == "a"


def test_zero_is_an_id_and_none_is_not() -> None:
    state = arbitration()
    assert state.update("a", DEVICE, None) == [Notice("a", RpcCode.NOT_FOUND, None)]
    assert state.update("b", DEVICE, 0) == [Notice("a", RpcCode.ALREADY_EXISTS, 0), Notice("b", RpcCode.OK, 0)]


def test_ids_have_128_bits() -> None:
    state = arbitration()
    state.update("a", DEVICE, (1 << 64) - 1)
    assert state.update("b", DEVICE, 1 << 64)[-1] == Notice("b", RpcCode.OK, 1 << 64)
    assert state.update("c", DEVICE, MAX_ELECTION_ID)[-1] == Notice("c", RpcCode.OK, MAX_ELECTION_ID)
    assert refused(state.update, "d", DEVICE, MAX_ELECTION_ID + 1) is RpcCode.INVALID_ARGUMENT


def test_nobody_succeeds_a_lost_primary_until_somebody_asks() -> None:
    state = arbitration()
    state.update("a", DEVICE, 9)
    state.update("b", DEVICE, 8)
    assert state.disconnect("a") == [Notice("b", RpcCode.NOT_FOUND, 9)]
    assert refused(state.check_writer, 9) is RpcCode.PERMISSION_DENIED
    assert state.update("b", DEVICE, 8) == [Notice("b", RpcCode.NOT_FOUND, 9)]
    assert state.update("c", DEVICE, 9) == [Notice("b", RpcCode.ALREADY_EXISTS, 9), Notice("c", RpcCode.OK, 9)]


def test_a_lost_backup_is_nobodys_news() -> None:
    state = arbitration()
    state.update("a", DEVICE, 9)
    state.update("b", DEVICE, 8)
    assert state.disconnect("b") == []
    assert state.disconnect("never seen") == []
    state.check_writer(9)


def test_a_primary_can_step_down() -> None:
    state = arbitration()
    state.update("a", DEVICE, 9)
    state.update("b", DEVICE, 3)
    assert state.update("a", DEVICE, 2) == [Notice("a", RpcCode.NOT_FOUND, 9), Notice("b", RpcCode.NOT_FOUND, 9)]
    assert state.primary is None


def test_a_primary_can_raise_its_id() -> None:
    state = arbitration()
    state.update("a", DEVICE, 1)
    state.update("a", DEVICE, 10)
    assert refused(state.check_writer, 1) is RpcCode.PERMISSION_DENIED
    state.check_writer(10)


def test_an_id_in_use_is_refused_and_changes_nothing() -> None:
    state = arbitration()
    state.update("a", DEVICE, 1)
    state.update("b", DEVICE, 0)
    assert refused(state.update, "c", DEVICE, 1) is RpcCode.INVALID_ARGUMENT
    assert refused(state.update, "b", DEVICE, 1) is RpcCode.INVALID_ARGUMENT
    assert state.update("a", DEVICE, 1) == [Notice("b", RpcCode.ALREADY_EXISTS, 1), Notice("a", RpcCode.OK, 1)]


def test_other_devices_and_roles_are_refused() -> None:
    state = arbitration()
    assert refused(state.update, "a", DEVICE + 1, 1) is RpcCode.NOT_FOUND
    assert refused(state.update, "a", DEVICE, 1, "operator") is RpcCode.INVALID_ARGUMENT
    state.update("a", DEVICE, 1)
    assert refused(state.update, "a", DEVICE + 1, 1) is RpcCode.FAILED_PRECONDITION


EVENTS = st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 4), st.just("leave"))))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(EVENTS)
def test_in_every_history_told_states_agree_with_who_may_write(
    events: list[tuple[str, int | str | None]],
) -> None:
    state, told, ids, highest = arbitration(), dict[str, RpcCode](), dict[str, int | None](), -1
    for client, action in events:
        if action == "leave":
            notices = state.disconnect(client)
            told.pop(client, None)
            ids.pop(client, None)
        else:
            assert action is None or isinstance(action, int)
            try:
                notices = state.update(client, DEVICE, action)
            except P4RuntimeError:
                continue
            ids[client] = action
        for notice in notices:
            told[str(notice.client)] = notice.code
        primaries = [name for name, code in told.items() if code is RpcCode.OK]
        highest = max([highest, *(ids[name] for name in primaries if ids[name] is not None)])  # type: ignore[type-var]
        assert primaries == ([state.primary] if state.primary else [])
        assert all(ids[name] == highest for name in primaries), "the primary has the highest id ever"
        assert set(told) == set(ids)
        backups = {code for code in told.values() if code is not RpcCode.OK}
        assert backups <= ({RpcCode.ALREADY_EXISTS} if primaries else {RpcCode.NOT_FOUND})
