# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of a job that hangs or does not begin: checks that pass, or fail with a remedy.

rows          the result of a check, and the report of several
probe_client  PROBEs to a switch, from an address that it admits
worker_side   the checks of one worker, in their order
joining_side  the checks of one worker of a controller's job, in their order
hosts_side    the checks of one host before a job by hosts://
"""

from __future__ import annotations

from hopsum_cli.diagnosis.rows import CheckRow, DiagnosisReport, Status
from hopsum_cli.diagnosis.worker_side import Patience, examine

__all__ = ["CheckRow", "DiagnosisReport", "Patience", "Status", "examine"]
