# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of a job that hangs or does not begin: checks that pass, or fail with a remedy.

rows          what a check found, and the report of several: the same for workers and for the controller
kernel        what this machine's kernel says of interfaces, routes, neighbours and sockets
asking        PROBEs to a switch, from an address that it admits
slots         what the copies of a job's slots hold, in words
worker_side   the checks of one worker, in their order
joining_side  the checks of one worker of a controller's job, in their order
controller_side  the checks of a controller's switches and jobs, in their order (switchboard_checks, job_checks)
"""

from __future__ import annotations

from hopsum.diagnosis.rows import Report, Row, Status
from hopsum.diagnosis.worker_side import Observer, Patience, examine

__all__ = ["Observer", "Patience", "Report", "Row", "Status", "examine"]
