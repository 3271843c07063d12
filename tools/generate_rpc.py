# SPDX-License-Identifier: Apache-2.0
"""Generate wire/hopsum_wire/control/control_pb2.py and .pyi from control.proto beside them.

    python tools/generate_rpc.py             write the files
    python tools/generate_rpc.py --check     exit 1 with a diff if one is stale

Needs grpcio-tools of one version, whose stubs load on protobuf 3.20.3 up to 7. It needs a newer protobuf than
p4runtime-shell, so it cannot be in the same environment. The error message says how to install it beside one. Each
file carries the digest of its source, so that a stale one is noticed where grpcio-tools is not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from p4_subset import write_or_compare  # noqa: E402

IMPORT_ROOT: Final = ROOT / "wire"
SOURCE: Final = IMPORT_ROOT / "hopsum_wire" / "control" / "control.proto"
TARGETS: Final = (SOURCE.with_name("control_pb2.py"), SOURCE.with_name("control_pb2.pyi"))
# The last release whose stubs load on protobuf 3.20 and on current ones.
GRPCIO_TOOLS: Final = "1.62.3"
# Places of messages in the serialized file: protobuf in C never reads them, and protobuf in Python only to copy a
# message's description, which nothing does here.
_OFFSETS: Final = re.compile(r"^if _descriptor\._USE_C_DESCRIPTORS == False:\n(?:  .*\n)+", re.MULTILINE)


class GeneratorMissingError(RuntimeError):
    """grpcio-tools is not importable here in the version that is meant."""


def header() -> str:
    """Return the head of the generated code: the licence, and the name of its source."""
    # The digest lets a test without protoc notice that the source is newer than the stubs.
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    return (
        "# SPDX-License-Identifier: Apache-2.0\n"
        f"# By tools/generate_rpc.py (grpcio-tools {GRPCIO_TOOLS}) from {SOURCE.name}, sha256 {digest[:32]}\n"
    )


def generate() -> dict[Path, str]:
    """Return the text that each target should have. Raises GeneratorMissingError, or CalledProcessError from protoc."""
    require_generator()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--python_out={folder}", f"--pyi_out={folder}"]
        name = str(SOURCE.relative_to(IMPORT_ROOT))
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{IMPORT_ROOT}", *outputs, name], check=True, cwd=folder
        )
        made = {
            target: (Path(folder) / target.relative_to(IMPORT_ROOT)).read_text(encoding="utf-8") for target in TARGETS
        }
        return {target: header() + _OFFSETS.sub("", text) for target, text in made.items()}


def require_generator() -> None:
    """Raise GeneratorMissingError unless grpcio-tools is installed in its version. The message says how to get it."""
    try:
        found = version("grpcio-tools")
    except PackageNotFoundError:
        found = "none"
    # Stubs of a newer protoc refuse the protobuf 3.20 that p4runtime-shell pins.
    if found != GRPCIO_TOOLS:
        raise GeneratorMissingError(
            f"the stubs are made by grpcio-tools {GRPCIO_TOOLS}, here is {found}: put it into a folder of its own with "
            f"pip install --target FOLDER grpcio-tools=={GRPCIO_TOOLS}, and set PYTHONPATH=FOLDER"
        )


def main(argv: list[str] | None = None) -> int:
    """Write the targets, or with --check compare them."""
    parser = argparse.ArgumentParser(description="generate the stubs of the controller's service")
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff if a file is stale")
    check = parser.parse_args(argv).check
    try:
        wanted = generate()
    except GeneratorMissingError as error:
        print(error, file=sys.stderr)
        return 2
    return max(write_or_compare(target, text, check=check) for target, text in wanted.items())


if __name__ == "__main__":
    sys.exit(main())
