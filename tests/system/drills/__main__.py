# SPDX-License-Identifier: Apache-2.0
"""One drill in a process of its own: `python -m drills NAME TARGET FOLDER SCALE PARENT_PID`. Prints its report as JSON.

A drill needs its own process: gRPC's threads live in the network namespace of the thread that started them, and a
mount of its own stays with its process. `tests/system` is on PYTHONPATH, for the children of the drill too: a process
that a drill starts can not rely on the package name `tests`.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from hopsum_base.process_end import die_with_parent

from .catalogue import DRILLS
from .drill import DrillContext, DrillError, DrillReport, DrillSkipped


def main(name: str, target: str, folder: str, scale: str, parent_pid: str) -> None:
    die_with_parent(int(parent_pid))
    context = DrillContext(name, target, Path(folder), scale=float(scale))
    try:
        report = DRILLS[name](context)
    except DrillSkipped as reason:
        report = DrillReport(name, target, skipped=str(reason))
    except DrillError as error:
        report = DrillReport(name, target, failure=str(error))
    except Exception as error:
        report = DrillReport(name, target, failure=f"{type(error).__name__}: {error}")
        traceback.print_exc()
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main(*sys.argv[1:])
