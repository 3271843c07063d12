# SPDX-License-Identifier: Apache-2.0
"""The place of the compiled P4 program: next to this package when installed, in p4/build in a source tree."""

from __future__ import annotations

from pathlib import Path

from hopsum_controlplane.errors import ControlPlaneError

JSON_NAME = "hopsum.json"
P4INFO_NAME = "hopsum.p4info.txtpb"

_PACKAGE = Path(__file__).resolve().parent
# An editable install has no copy in the package.
_FOLDERS = (_PACKAGE / "_p4", _PACKAGE.parents[1] / "p4" / "build")


def compiled_program() -> tuple[Path, Path]:
    """Return the paths of the JSON and of the P4Info of hopsum's compiled v1model program.

    The installed copy comes before p4/build of a source tree. Raises ControlPlaneError if neither folder has both.
    """
    # The installed copy first: a wheel's program belongs to its version.
    for folder in _FOLDERS:
        json, p4info = folder / JSON_NAME, folder / P4INFO_NAME
        if json.is_file() and p4info.is_file():
            return json, p4info
    looked = " or ".join(str(folder) for folder in _FOLDERS)
    raise ControlPlaneError(f"no {JSON_NAME} and {P4INFO_NAME} in {looked}", hint="compile the P4 program")
