# SPDX-License-Identifier: Apache-2.0
"""Importing the control plane imports neither grpc nor protobuf."""

from __future__ import annotations

import subprocess
import sys


def test_importing_brings_no_grpc_and_no_protobuf() -> None:
    program = """
import sys
import hopsum_controlplane, hopsum_controlplane.tables.forward
heavy = {"grpc", "google.protobuf", "p4", "p4runtime_sh", "IPython", "scapy", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
