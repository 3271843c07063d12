# SPDX-License-Identifier: Apache-2.0
"""The controller's side of `hopsum doctor`: two snapshots of it, and the report."""

from __future__ import annotations

import argparse
import time

from hopsum.diagnosis.controller_side import apart_s, examine_controller, no_controller
from hopsum.diagnosis.rows import DiagnosisReport
from hopsum.errors import HopsumError
from hopsum.rpc.errors import ControllerError, ControllerUnreachableError
from hopsum_cli.operator import operator, take_snapshot


def controller_report(options: argparse.Namespace) -> DiagnosisReport:
    """Ask the controller of the parsed arguments twice, and examine what it said."""
    where = options.controller
    try:
        with operator(options) as client:
            before = take_snapshot(client)
            time.sleep(apart_s(before) if options.stuck_after is None else options.stuck_after)
            after = take_snapshot(client)
    except ControllerUnreachableError as error:
        return no_controller(where, str(error), "start it (hopsum controller), or give the address where it listens")
    except ControllerError as error:
        fix = "give --admin-token-file" if error.code == "UNAUTHENTICATED" else "see the controller's log"
        return no_controller(where, str(error), fix)
    except HopsumError as error:
        return no_controller(where, str(error), "give files that can be read")
    return examine_controller(before, after, where=where, now_s=time.time(), job=options.job)
