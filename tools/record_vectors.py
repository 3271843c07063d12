# SPDX-License-Identifier: Apache-2.0
"""Record every data-plane case on bmv2 into tests/vectors/data. Needs root, simple_switch_grpc and ip.

The recordings are replaced only when every case passed on bmv2.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_ptf.recording import recordings
from hopsum_topologies import bmv2_versions

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "vectors" / "data"
MANIFEST = DATA / "manifest.json"
RUN = ROOT / "ptf_tests" / "run"
BUILD = ROOT / "p4" / "build"
PROGRAM = BUILD / "hopsum.json"


def record() -> None:
    """Run the cases on bmv2 and replace the recordings. Raises SystemExit when a case did not pass."""
    with TemporaryDirectory(prefix="hopsum-record-") as folder:
        done = subprocess.run((sys.executable, str(RUN), "--target", "bmv2", "--record", folder), check=False)
        if done.returncode != 0:
            raise SystemExit("not every case passed on bmv2: the recordings stay as they were")
        shutil.rmtree(DATA, ignore_errors=True)
        DATA.mkdir(parents=True)
        for path in recordings(Path(folder)):
            shutil.copyfile(path, DATA / path.name)
    compiler = json.loads((BUILD / "manifest.json").read_text())
    manifest = {
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "switch": f"simple_switch_grpc {bmv2_versions()['bmv2']}",
        "compiler": f"{compiler['compiler']} {compiler['version']}",
        "program_sha256": program_sha256(),
    }
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def program_sha256() -> str:
    """Return the hash of the compiled program in this tree."""
    return hashlib.sha256(PROGRAM.read_bytes()).hexdigest()


if __name__ == "__main__":
    record()
