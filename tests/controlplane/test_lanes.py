# SPDX-License-Identifier: Apache-2.0
"""The lane proof and the lookup table."""

from __future__ import annotations

import pytest

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.lanes import check_lane_overflow, check_table

IDENTITY = tuple(range(16))


@pytest.mark.parametrize(("workers", "granularity"), [(17, 15), (8, 31), (1, 255), (5, 51)])
def test_the_largest_sum_fits(workers: int, granularity: int) -> None:
    check_lane_overflow(workers, granularity)
    with pytest.raises(ControlPlaneError):
        check_lane_overflow(workers, granularity + 1 if workers > 1 else 256)


def test_a_refusal_has_all_the_numbers() -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_lane_overflow(10, 30)
    assert str(error.value) == (
        "n * g = 10 workers * granularity 30 = 300 may overflow a lane of 8 bits, whose maximum is 255: "
        "granularity 30 allows 8 workers, 10 workers allow granularity 25; "
        "use fewer workers or a coarser table"
    )


def test_a_refusal_says_when_no_table_is_coarse_enough() -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_lane_overflow(300, 15)
    assert "granularity 15 allows 17 workers, 300 workers allow no table (at least 1)" in str(error.value)


def test_other_widths() -> None:
    check_lane_overflow(64, 1023, lane_bits=16)
    with pytest.raises(ControlPlaneError, match="maximum is 65535"):
        check_lane_overflow(64, 1024, lane_bits=16)


def test_the_granularity_is_the_last_value() -> None:
    assert check_table(IDENTITY) == 15
    assert check_table((*range(15), 200)) == 200
    assert check_table((0, 2, 3, 5, *[5] * 12)) == 5
    assert check_table((*range(15), 14)) == 14, "15 codes"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (IDENTITY[:15], "15 entries"),
        ((*IDENTITY, 16), "17 entries"),
        ((1, *range(2, 17)), "T[0] = 1"),
        ((*range(15), 13), "T[15] = 13 is not above T[14] = 14"),
        ((0, 1, 1, *range(2, 15)), "T[2] = 1 is not above T[1] = 1"),
        ((0,) * 16, "T[1] = 0 is not above T[0] = 0"),
        ((*range(15), 15.0), "T[15] = 15.0 is not an int"),
        ((False, *range(1, 16)), "T[0] = False is not an int"),
    ],
)
def test_a_wrong_table_is_refused(table: tuple[int, ...], message: str) -> None:
    with pytest.raises(ControlPlaneError) as error:
        check_table(table)
    assert message in str(error.value)
