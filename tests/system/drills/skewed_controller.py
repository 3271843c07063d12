# SPDX-License-Identifier: Apache-2.0
"""A controller whose clock jumps: `python -m drills.skewed_controller CONFIG OFFSET_FILE`.

The file has the seconds that the controller's clock is ahead of the machine's, and may change at any time. The
monotonic clock, and gRPC's own clock for deadlines, are the machine's.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from hopsum_controlplane.cluster import load_config
from hopsum_controlplane.service.controller_process import run_controller
from hopsum_controlplane.service.log_format import configure_logging


def main(config: str, offset: str) -> None:
    """Run the controller until SIGTERM. Print `ready`, as `hopsum controller` does."""
    signals = [signal.SIGTERM]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    configure_logging(form="text", level="info")
    clock = Path(offset)
    ahead = lambda: time.time() + float(clock.read_text(encoding="utf-8"))  # noqa: E731
    with run_controller(load_config(Path(config)), clock=ahead) as controller:
        print(f"ready listen={controller.address}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main(*sys.argv[1:])
