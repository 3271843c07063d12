# SPDX-License-Identifier: Apache-2.0
"""An operation is a row of `SHAPES`. What does not follow from the row by itself has a field or a row of its own."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hopsum_controlplane import JobSpec
from hopsum_evaluation import selftest
from hopsum_oracle.switch_config import JobConfig
from hopsum_wire import Op
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.payload import SHAPES, TABLE_NAMES

ASKED = set(pb.CreateJobRequest.DESCRIPTOR.fields_by_name)
HOLDERS = {"JobConfig": {each.name for each in fields(JobConfig)}, "CreateJobRequest": ASKED}


def test_every_operation_of_the_program_has_a_row() -> None:
    assert set(SHAPES) == set(Op)


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_describes_a_job_has_every_table(holder: str) -> None:
    assert {name for name in HOLDERS[holder] if name.startswith("table")} == set(TABLE_NAMES.values())


def test_the_message_and_the_specification_of_a_job_have_the_same_fields() -> None:
    own = {each.name for each in fields(JobSpec)} - {"tables", "ranks", "leaves", "parent"}
    assert ASKED - set(TABLE_NAMES.values()) - {"token"} == own


def test_selftest_has_a_table_of_each_operation() -> None:
    assert set(selftest.TABLES) == set(TABLE_NAMES)
