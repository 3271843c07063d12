# SPDX-License-Identifier: Apache-2.0
"""An operation is a row of `SHAPES`. What does not follow from the row by itself has a field or a row of its own."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hopsum_controlplane import JobSpec
from hopsum_controlplane.cluster import JobRequest
from hopsum_controlplane.trees import TreeSpec
from hopsum_evaluation import selftest
from hopsum_oracle.switch_config import JobConfig
from hopsum_wire import Op
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership
from hopsum_wire.payload import SHAPES, TABLE_NAMES

HOLDERS = {
    kind.__name__: {each.name for each in fields(kind)}
    for kind in (JobMembership, JobSpec, JobRequest, TreeSpec, JobConfig)
}
HOLDERS["CreateJobRequest"] = set(pb.CreateJobRequest.DESCRIPTOR.fields_by_name)


def test_every_operation_of_the_program_has_a_row() -> None:
    assert set(SHAPES) == set(Op)


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_describes_a_job_has_every_table(holder: str) -> None:
    assert {name for name in HOLDERS[holder] if name.startswith("table")} == set(TABLE_NAMES.values())


def test_selftest_has_a_table_of_each_operation() -> None:
    assert set(selftest.TABLES) == set(TABLE_NAMES)
